//! The claims as tables for documents.

use super::{Row, SIMULATED, changed_verdicts, parameter_value, rows, summary, variation};
use crate::{
    Outcome, Results, Setting,
    calibration::PARAMETERS,
    rule::{Rule, RuleResult, number},
};

/// The claims, one row for each rule; the parameters; and their sensitivity.
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
        parameters(&mut out, results);
    }
    out
}

fn why(out: &mut String, o: &Outcome, (word, why): (&str, String)) {
    if !why.is_empty() {
        out.push_str(&format!("- **{} {word}**: {why}\n", o.claim.id));
    }
}

fn parameters(out: &mut String, results: &Results) {
    out.push_str(
        "\n| testbed | parameter | value | range | figure of the paper | simulated |\n|---|---|---|---|---|---|\n",
    );
    for found in &results.found {
        let (p, figure) = (&PARAMETERS[found.parameter], found.figure);
        let end = if found.reached() { "" } else { ", not reached" };
        out.push_str(&format!(
            "| {} | `{}` | {} | {} to {} | {} {} ({}) | {}{end} |\n",
            p.testbed.name(),
            p.name,
            parameter_value(found),
            p.range.0,
            p.range.1,
            figure.value,
            cell(figure.what),
            figure.source,
            number(found.simulated)
        ));
    }
    if results.sensitivity.is_empty() {
        return;
    }
    out.push_str(
        "\n| testbed | parameter | change | value | verdicts that change | rules whose value changes by more than 10 % |\n\
         |---|---|---|---|---|---|\n",
    );
    for change in &results.sensitivity {
        let p = &PARAMETERS[change.parameter];
        let far = change.rules.iter().filter(|m| match m.values {
            (Some(a), Some(b)) => (b / a - 1.0).abs() > 0.1,
            _ => true,
        });
        out.push_str(&format!(
            "| {} | `{}` | {} | {:.0} {} | {} | {} |\n",
            p.testbed.name(),
            p.name,
            variation(change),
            change.value,
            p.unit,
            cell(&changed_verdicts(change)),
            far.count()
        ));
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
