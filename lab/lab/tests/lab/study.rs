//! Tests of the command `millrace-lab study`.

use std::fs;

use crate::common::{ok, run};

#[test]
fn study_writes_a_page_with_plots() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("studies");
    let said = ok(&["study", "registration", "--small", "--seed", "3", "--out", out.to_str().unwrap()]);
    assert!(said.contains("SIMULATED, not measured; seed 3") && said.contains("registration.md"), "{said}");
    let page = fs::read_to_string(out.join("registration.md")).unwrap();
    assert!(page.contains("millrace-lab study registration --seed 3 --small"), "{page}");
    for picture in ["one", "read", "write", "cpu", "threads", "cost"] {
        let file = format!("registration-{picture}.svg");
        assert!(page.contains(&format!("]({file})")), "{file}");
        assert!(fs::read_to_string(out.join(file)).unwrap().contains("SIMULATED"), "{picture}");
    }
}

#[test]
fn an_unknown_study_is_rejected_with_the_list_of_studies() {
    let out = run(&["study", "depth"]);
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        said.contains("depth") && said.contains("distance, credits, registration, block, modern, all"),
        "{said}"
    );
}
