//! Tests of the complete report.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use millrace_reproduce::{Columns, Reproduction, Results, Setting, Verdict, causes, claims};
use serde_json::Value;

const SMALL: Setting = Setting::raw(7, true);

fn results(only: &[&str], columns: Columns) -> Results {
    let only: Vec<String> = only.iter().map(ToString::to_string).collect();
    Reproduction { claims: claims::named(&only).unwrap(), setting: SMALL, columns }.run(|_| ()).unwrap()
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

#[test]
fn the_report_has_every_claim_in_all_forms_with_inline_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let results = results(&["C2", "C15"], Columns::Raw);
    millrace_reproduce::write(&results, SMALL, dir.path()).unwrap();

    let json: Value = serde_json::from_str(&read(dir.path(), "claims.json")).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["id"].as_str().unwrap()).collect::<Vec<_>>(), ["C2", "C15"]);
    for row in rows {
        for key in ["id", "claim", "paper", "ours", "rule", "rules", "holds", "why"] {
            assert!(row.get(key).is_some(), "{row} has no {key}");
        }
        assert!(row.get("calibrated").is_none());
        assert_eq!(row["simulated"]["seed"], 7);
    }
    let [c2, c15] = &rows[..] else { unreachable!() };
    assert_eq!(c2["rule"].as_array().unwrap().len(), c2["ours"].as_array().unwrap().len());
    assert!(c2["ours"].as_array().unwrap().iter().all(Value::is_number));
    assert_eq!(c2["holds"].as_bool(), Some(results.outcomes[0].raw.verdict == Verdict::Holds));
    assert_eq!(c15["rule"].as_array().unwrap().len(), c15["rules"].as_array().unwrap().len());

    let html = read(dir.path(), "index.html");
    for id in ["C2", "C15"] {
        assert!(
            html.contains(&format!("<section id=\"{id}\">")) && html.contains(&format!("href=\"#{id}\""))
        );
    }
    assert_eq!((html.matches("<svg").count(), html.matches("</svg>").count()), (5, 5));
    assert!(html.contains("raw numbers only; simulated, not measured; sdr-opensolaris; seed 7, small form"));
    for outside in ["src=", "<link", "<script", "@import"] {
        assert!(!html.contains(outside), "the page refers to {outside}");
    }

    let table = read(dir.path(), "claims.md");
    assert!(table.contains("simulated, not measured") && table.contains("| **C2**"));
    let cells = |line: &&str| line.starts_with('|') && !line.contains("---");
    assert!(table.lines().filter(cells).all(|l| l.matches(" |").count() == 7), "{table}");
}

#[test]
fn the_calibrated_column_counts_the_rules_whose_figures_set_no_parameter() {
    let dir = tempfile::tempdir().unwrap();
    let results = results(&["C1", "C14"], Columns::Both { sensitivity: true, causes: true });
    millrace_reproduce::write(&results, SMALL, dir.path()).unwrap();
    let json: Value = serde_json::from_str(&read(dir.path(), "claims.json")).unwrap();
    let c1 = &json[0];
    for rule in c1["rules"].as_array().unwrap() {
        assert!(rule["raw"]["figure"].is_number() && rule["raw"]["holds"].is_boolean(), "{rule}");
        let sets = rule.get("calibrates").is_some();
        assert_eq!(sets, rule.get("calibrated").is_none(), "{rule}");
        assert!(sets || rule["calibrated"]["figure"].is_number() && rule["calibrated"]["holds"].is_boolean());
    }
    assert_eq!(c1["rules"][0]["calibrates"], "tcp.segment_ns");
    assert_ne!(c1["calibrated"]["curves"], c1["simulated"]["curves"]);

    let calibration: Value = serde_json::from_str(&read(dir.path(), "calibration.json")).unwrap();
    let [solaris, connected] = &calibration.as_array().unwrap()[..] else { panic!("{calibration}") };
    assert_eq!(
        (&solaris["name"], &connected["testbed"]),
        (&"tcp.segment_ns".into(), &"WAN 2008, IPoIB-CM".into())
    );
    // The parameter has the paper's figure, which the column of raw numbers does not have.
    let reached = solaris["simulated"].as_f64().unwrap() / solaris["paper"].as_f64().unwrap();
    assert!((reached - 1.0).abs() < 0.01 && solaris["reached"] == true, "{solaris}");
    let changes = |of: &Value| of["changes"].as_array().unwrap().len();
    assert_eq!((changes(solaris), changes(connected)), (3, 4)); // Solaris has no alternative figure.
    let html = read(dir.path(), "index.html");
    assert!(html.contains("calibrated; simulated, not measured; gige-2003") && html.contains("Sensitivity"));
    assert!(html.contains("not counted"));
}

#[test]
fn causes_are_tested_with_everything_else_as_calibrated() {
    let dir = tempfile::tempdir().unwrap();
    let results = results(&["C7"], Columns::Both { sensitivity: false, causes: true });
    millrace_reproduce::write(&results, SMALL, dir.path()).unwrap();
    let tested: Value = serde_json::from_str(&read(dir.path(), "causes.json")).unwrap();
    let tested = tested.as_array().unwrap();
    let of_claim = causes::CAUSES.iter().filter(|c| c.claim == "C7").count();
    assert!(of_claim > 1 && tested.len() == of_claim, "{tested:?}");
    let claims: Value = serde_json::from_str(&read(dir.path(), "claims.json")).unwrap();
    for one in tested {
        let rules = claims[0]["rules"].as_array().unwrap();
        let counted =
            rules.iter().find(|r| r["rule"].as_str().unwrap().starts_with(one["rule"].as_str().unwrap()));
        assert_eq!(counted.unwrap()["calibrated"]["figure"], one["calibrated"]["figure"]);
        assert!(one["experimental"]["figure"].is_number(), "{one}");
    }
    // The modifications have an effect.
    assert!(tested.iter().any(|t| t["experimental"] != t["calibrated"]), "{tested:?}");
    let html = read(dir.path(), "index.html");
    assert!(html.contains("<h2>Causes of failures, tested by experiments</h2>"));
    assert!(read(dir.path(), "claims.md").contains("| claim | rule | supposed cause |"));
}

#[test]
fn the_same_seed_produces_identical_reports() {
    let report = || {
        let dir = tempfile::tempdir().unwrap();
        let results = results(&["C7", "C14"], Columns::Both { sensitivity: false, causes: false });
        millrace_reproduce::write(&results, SMALL, dir.path()).unwrap();
        ["claims.json", "calibration.json", "claims.md", "index.html"].map(|name| read(dir.path(), name))
    };
    assert_eq!(report(), report());
}

#[test]
fn the_error_names_a_directory_that_cannot_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = millrace_reproduce::write(&Results::default(), SMALL, &file).unwrap_err().to_string();
    assert!(error.contains("file") && error.contains("--out"), "{error}");
}

#[test]
#[ignore = "a minute: every experiment, in its small form"]
fn every_experiment_produces_a_value_for_every_rule() {
    for outcome in results(&[], Columns::Both { sensitivity: false, causes: false }).outcomes {
        let calibrated = outcome.calibrated.unwrap();
        for (raw, calibrated) in outcome.raw.results.iter().zip(&calibrated.results) {
            // The column of raw numbers has no messages of 16 MiB.
            let known = raw.rule.what.contains("16 MiB");
            assert_eq!(raw.ours.is_none(), known, "{}: {}", outcome.claim.id, raw.rule);
            assert!(calibrated.ours.is_some(), "{}: {}", outcome.claim.id, raw.rule);
        }
        assert!(!outcome.raw.results.is_empty(), "{}: {}", outcome.claim.id, outcome.raw.why);
    }
}
