//! Tests of the complete report.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use millrace_reproduce::{Outcome, Reproduction, Setting, Verdict, claims};
use serde_json::Value;

const SMALL: Setting = Setting { seed: 7, small: true };

fn outcomes(only: &[&str], setting: Setting) -> Vec<Outcome> {
    let only: Vec<String> = only.iter().map(ToString::to_string).collect();
    Reproduction { claims: claims::named(&only).unwrap(), setting }.run(|_| ())
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

#[test]
fn the_report_has_every_claim_in_all_forms_with_inline_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let outcomes = outcomes(&["C2", "C15"], SMALL);
    millrace_reproduce::write(&outcomes, SMALL, dir.path()).unwrap();

    let json: Value = serde_json::from_str(&read(dir.path(), "claims.json")).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["id"].as_str().unwrap()).collect::<Vec<_>>(), ["C2", "C15"]);
    for row in rows {
        for key in ["id", "claim", "paper", "ours", "rule", "holds", "why"] {
            assert!(row.get(key).is_some(), "{row} has no {key}");
        }
        assert_eq!(row["simulated"]["seed"], 7);
    }
    let [c2, c15] = &rows[..] else { unreachable!() };
    assert_eq!(c2["rule"].as_array().unwrap().len(), c2["ours"].as_array().unwrap().len());
    assert!(c2["ours"].as_array().unwrap().iter().all(Value::is_number));
    assert_eq!(c2["holds"].as_bool(), Some(outcomes[0].verdict == Verdict::Holds));
    assert_eq!(c15["rule"].as_array().unwrap().len(), c15["ours"].as_array().unwrap().len());

    let html = read(dir.path(), "index.html");
    for id in ["C2", "C15"] {
        assert!(
            html.contains(&format!("<section id=\"{id}\">")) && html.contains(&format!("href=\"#{id}\""))
        );
    }
    assert_eq!((html.matches("<svg").count(), html.matches("</svg>").count()), (5, 5));
    assert!(html.contains("simulated, not measured; sdr-opensolaris; seed 7, small form"));
    for outside in ["src=", "<link", "<script", "@import"] {
        assert!(!html.contains(outside), "the page refers to {outside}");
    }

    let table = read(dir.path(), "claims.md");
    assert!(table.contains("simulated, not measured") && table.contains("| **C2**"));
    let cells = |line: &&str| line.starts_with('|') && !line.contains("---");
    assert!(table.lines().filter(cells).all(|l| l.matches(" |").count() == 5), "{table}");
}

#[test]
fn the_same_seed_produces_identical_claims() {
    let claims = || {
        let dir = tempfile::tempdir().unwrap();
        millrace_reproduce::write(&outcomes(&["C2"], SMALL), SMALL, dir.path()).unwrap();
        read(dir.path(), "claims.json")
    };
    assert_eq!(claims(), claims());
}

#[test]
fn the_error_names_a_directory_that_cannot_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = millrace_reproduce::write(&[], SMALL, &file).unwrap_err().to_string();
    assert!(error.contains("file") && error.contains("--out"), "{error}");
}

#[test]
#[ignore = "half a minute: every experiment, in its small form"]
fn every_experiment_produces_a_value_for_every_rule() {
    for outcome in outcomes(&[], SMALL) {
        for result in &outcome.results {
            // Messages of 16 MiB exceed the largest contiguous piece of simulated memory.
            let known = result.rule.what.contains("16 MiB");
            assert_eq!(result.ours.is_none(), known, "{}: {}", outcome.claim.id, result.rule);
        }
        assert!(!outcome.results.is_empty(), "{}: {}", outcome.claim.id, outcome.why);
    }
}
