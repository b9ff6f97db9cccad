//! The report on a run: `index.html`, `claims.md`, `claims.json`, `calibration.json`, `causes.json` and the plots.
//!
//! `write` creates the files from the results; `millrace-lab reproduce` calls it.

mod html;
mod json;
mod markdown;
mod tables;

use std::{fs, path::Path};

use crate::{
    Change, Claim, Column, Moved, Outcome, ReproduceError, Results, Setting, Variation, Verdict,
    calibration::{PARAMETERS, calibrates},
    rule::{RuleResult, number},
    search::Found,
};

/// The remark that accompanies every figure.
const SIMULATED: &str = "simulated, not measured";

/// Writes the report on `results` into `dir`, which is created if it does not exist: `index.html`
/// (self-contained), `claims.md`, `claims.json`, `calibration.json`, `causes.json`, and each plot as SVG and PNG
/// in `pictures/`, once for each column.
///
/// # Errors
/// When a file cannot be written.
pub fn write(results: &Results, setting: Setting, dir: &Path) -> Result<(), ReproduceError> {
    let pictures = dir.join("pictures");
    fs::create_dir_all(&pictures)
        .map_err(|source| ReproduceError::File { path: pictures.clone(), source })?;
    let drawn =
        results.outcomes.iter().map(|o| draw(o, setting, &pictures)).collect::<Result<Vec<_>, _>>()?;
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|source| ReproduceError::File { path, source })
    };
    put("claims.json", json::claims(&results.outcomes, setting)?)?;
    put("calibration.json", json::calibration(results)?)?;
    put("causes.json", json::causes(&results.causes)?)?;
    put("claims.md", markdown::claims(results, setting))?;
    put("index.html", html::page(results, &drawn, setting))
}

/// The plots of a claim as SVG, of each column in turn; none if its experiments failed.
fn draw(outcome: &Outcome, setting: Setting, dir: &Path) -> Result<Vec<String>, ReproduceError> {
    let claim = &outcome.claim;
    let columns = [(Some(&outcome.raw), "", RAW), (outcome.calibrated.as_ref(), "-calibrated", CALIBRATED)];
    let mut drawn = Vec::new();
    for p in claim.pictures {
        for (column, suffix, name) in columns {
            let Some(column) = column else { continue };
            if p.all_curves().all(|c| column.curves.points(c).is_empty()) {
                continue;
            }
            let note = format!("{name}; {}", conditions(claim, setting));
            let file = format!("{}-{}{suffix}", claim.id.to_lowercase(), p.name);
            drawn.push(p.draw(&column.curves, &note, dir, &file)?);
        }
    }
    Ok(drawn)
}

/// The names of the columns.
const RAW: &str = "raw numbers only";
const CALIBRATED: &str = "calibrated";

/// The conditions of a claim's figures.
fn conditions(claim: &Claim, setting: Setting) -> String {
    let small = if setting.small { ", small form" } else { "" };
    format!("{SIMULATED}; {}; seed {}{small}", claim.profiles.join(", "), setting.seed)
}

/// The numbers of claims and of rules by verdict, for each column: "raw numbers only: 1 of 15 claims and 54 of 101
/// rules hold".
pub fn summary(outcomes: &[Outcome]) -> String {
    let of = |name: &str, columns: Vec<(&Claim, &Column)>| {
        let claims = columns.iter().filter(|(_, c)| c.verdict == Verdict::Holds).count();
        let counts =
            |claim: &Claim, r: &RuleResult| name == RAW || calibrates(claim.id, r.rule.what).is_none();
        let rules: Vec<_> = columns
            .iter()
            .flat_map(|(claim, column)| column.results.iter().filter(move |r| counts(claim, r)))
            .collect();
        let hold = rules.iter().filter(|r| r.holds()).count();
        format!("{name}: {claims} of {} claims and {hold} of {} rules hold", columns.len(), rules.len())
    };
    let raw = of(RAW, outcomes.iter().map(|o| (&o.claim, &o.raw)).collect());
    let calibrated: Vec<_> =
        outcomes.iter().filter_map(|o| Some((&o.claim, o.calibrated.as_ref()?))).collect();
    if calibrated.is_empty() { raw } else { format!("{raw}; {}", of(CALIBRATED, calibrated)) }
}

/// A row of a table about a rule: its results in both columns, and the parameter that its figure sets.
struct Row<'a> {
    raw: Option<&'a RuleResult>,
    /// `None` without calibration, and if the rule does not count.
    calibrated: Option<&'a RuleResult>,
    /// The parameter whose figure the rule uses, if there is a calibrated column.
    sets: Option<&'static str>,
}

/// A row for each rule of a claim.
fn rows(o: &Outcome) -> impl Iterator<Item = (&crate::rule::Rule, Row<'_>)> {
    o.claim.rules.iter().enumerate().map(|(n, rule)| {
        let used = calibrates(o.claim.id, rule.what);
        let column = o.calibrated.as_ref();
        let row = Row {
            raw: o.raw.results.get(n),
            calibrated: column.filter(|_| used.is_none()).and_then(|c| c.results.get(n)),
            sets: column.and(used).map(|p| p.name),
        };
        (rule, row)
    })
}

/// A value of a parameter, with its unit.
fn parameter_value(found: &Found) -> String {
    format!("{:.0} {}", found.value, PARAMETERS[found.parameter].unit)
}

/// The name of a change of a parameter.
fn variation(change: &Change) -> &'static str {
    match change.variation {
        Variation::Less => "-20 %",
        Variation::More => "+20 %",
        Variation::Off => "off",
        Variation::Alternative => "alternative figure",
    }
}

/// The verdicts that a change of a parameter changes, as text.
fn changed_verdicts(change: &Change) -> String {
    let changed = change.rules.iter().filter(|m| m.holds.0 != m.holds.1);
    let one = |m: &Moved| format!("{}, {}", values(m), if m.holds.1 { "holds" } else { "fails" });
    let text = changed.map(one).collect::<Vec<_>>().join("; ");
    if text.is_empty() { "none".to_owned() } else { text }
}

/// A rule with its values before and after a change, as text.
fn values(m: &Moved) -> String {
    format!("{} {}: {} instead of {}", m.claim, m.what, figure(m.values.1), figure(m.values.0))
}

/// The value of a rule, as text.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "no value".to_owned(), number)
}
