//! The claims as tables for documents.

use super::{Row, SIMULATED, rows, summary, tables};
use crate::{
    Outcome, Results, Setting,
    rule::{Rule, RuleResult},
};

/// The claims, one row for each rule, and the tables of the calibration.
pub(super) fn claims(results: &Results, setting: Setting) -> String {
    let small = if setting.small { " --small" } else { "" };
    let outcomes = &results.outcomes;
    let mut out = format!(
        "Everything here is {SIMULATED}: `millrace-lab reproduce --seed {}{small}`. {}.\n\n\
         | claim | rule | paper | raw numbers only | holds | calibrated | holds |\n|---|---|---|---|---|---|---|\n",
        setting.seed,
        summary(outcomes)
    );
    for o in outcomes {
        out.push_str(&format!(
            "| **{}** {} | | | | **{}** | | {} |\n",
            o.claim.id,
            cell(o.claim.claim),
            o.raw.verdict.word(),
            o.calibrated.as_ref().map_or_else(String::new, |c| format!("**{}**", c.verdict.word()))
        ));
        rows(o).for_each(|(r, row)| out.push_str(&rule(r, &row)));
    }
    out.push_str("\nWhy, with raw numbers only:\n\n");
    let raw = |o: &Outcome| (o.raw.verdict.word(), o.raw.why.clone());
    outcomes.iter().for_each(|o| why(&mut out, o, raw(o)));
    if !results.found.is_empty() {
        out.push_str("\nWhy, calibrated:\n\n");
        for o in outcomes {
            if let Some(c) = &o.calibrated {
                why(&mut out, o, (c.verdict.word(), c.why.clone()));
            }
        }
    }
    for table in tables::all(results) {
        out.push_str(&format!("\n{}:\n\n{}", table.title, table.markdown()));
    }
    out
}

fn why(out: &mut String, o: &Outcome, (word, why): (&str, String)) {
    if !why.is_empty() {
        out.push_str(&format!("- **{} {word}**: {why}\n", o.claim.id));
    }
}

fn rule(rule: &Rule, row: &Row<'_>) -> String {
    let ours = |r: Option<&RuleResult>| r.map_or_else(|| "no value".to_owned(), RuleResult::ours);
    let holds = |r: Option<&RuleResult>| if r.is_some_and(RuleResult::holds) { "yes" } else { "**no**" };
    let calibrated = match (row.sets, row.calibrated) {
        (Some(name), _) => format!("sets `{name}` | not counted"),
        (None, Some(r)) => format!("{} | {}", r.ours(), holds(Some(r))),
        (None, None) => " | ".to_owned(),
    };
    let (text, paper) = (cell(&rule.to_string()), cell(rule.paper));
    format!("| | {text} | {paper} | {} | {} | {calibrated} |\n", ours(row.raw), holds(row.raw))
}

/// Text with the separator of cells escaped.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
