//! Tests of the command `millrace-lab reproduce`.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{ok, run};

#[test]
fn reproduce_tests_the_selected_claims_and_writes_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    let said =
        ok(&["reproduce", "--only", "C2,C15", "--small", "--seed", "3", "--out", out.to_str().unwrap()]);
    for word in ["SIMULATED, not measured; seed 3", "C2 ", "C15  fails", "1 hold, 1 fail", "index.html"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    for file in ["index.html", "claims.md", "claims.json", "pictures/c2-read.svg", "pictures/c15-far.svg"] {
        assert!(fs::metadata(out.join(file)).unwrap().len() > 100, "{file}");
    }
}

#[test]
fn an_unknown_claim_is_rejected_with_the_list_of_claims() {
    let out = run(&["reproduce", "--only", "C2,C99"]);
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("C99") && said.contains("C1, C2") && said.contains("C15"), "{said}");
}
