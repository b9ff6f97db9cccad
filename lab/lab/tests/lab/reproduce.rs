//! Tests of the command `millrace-lab reproduce`.

use std::fs;

use crate::common::{ok, run};

#[test]
fn reproduce_tests_the_selected_claims_and_writes_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    let said =
        ok(&["reproduce", "--only", "C1,C14", "--small", "--seed", "3", "--out", out.to_str().unwrap()]);
    for word in [
        "SIMULATED, not measured; seed 3",
        "C1 ",
        "raw numbers only: fails",
        "raw numbers only: 0 of 2 claims and",
        "; calibrated: ",
        "index.html",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    for file in [
        "index.html",
        "claims.md",
        "claims.json",
        "calibration.json",
        "pictures/c1-read.svg",
        "pictures/c1-read-calibrated.svg",
        "pictures/c14-blocks.svg",
    ] {
        assert!(fs::metadata(out.join(file)).unwrap().len() > 100, "{file}");
    }
}

#[test]
fn the_calibrated_column_can_be_omitted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    let said = ok(&["reproduce", "--only", "C2", "--small", "--raw-only", "--out", out.to_str().unwrap()]);
    assert!(said.contains("raw numbers only: ") && !said.contains("calibrated"), "{said}");
    assert_eq!(fs::read_to_string(out.join("calibration.json")).unwrap(), "[]\n");
    assert!(!out.join("pictures/c2-read-calibrated.svg").exists());
    assert!(!run(&["reproduce", "--raw-only", "--sensitivity"]).status.success());
}

#[test]
fn an_unknown_claim_is_rejected_with_the_list_of_claims() {
    let out = run(&["reproduce", "--only", "C2,C99"]);
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("C99") && said.contains("C1, C2") && said.contains("C15"), "{said}");
}
