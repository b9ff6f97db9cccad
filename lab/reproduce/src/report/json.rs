//! The claims and the calibration in a form for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{changed_verdicts, rows, variation};
use crate::{
    Column, Outcome, ReproduceError, Results, Setting, Verdict,
    calibration::{Figure, PARAMETERS},
    causes::{Compared, Tested},
    rule::RuleResult,
};

/// One claim. `ours`, `holds` and `why` are those of raw numbers only; `ours` and `rules` have a value for each
/// element of `rule`, in order.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    claim: &'a str,
    paper: Paper<'a>,
    ours: Vec<Option<f64>>,
    rule: Vec<String>,
    rules: Vec<Rule<'a>>,
    holds: bool,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated: Option<Calibrated<'a>>,
    simulated: Simulated<'a>,
}

#[derive(Serialize)]
struct Paper<'a> {
    source: &'a str,
    figures: &'a str,
    /// The paper's value for each element of `rule`.
    rule: Vec<&'a str>,
}

#[derive(Serialize)]
struct Rule<'a> {
    rule: String,
    paper: &'a str,
    raw: Value,
    /// Absent if the rule does not count, or without calibration.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated: Option<Value>,
    /// The parameter whose figure the rule uses, so that it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrates: Option<&'a str>,
}

#[derive(Serialize)]
struct Value {
    figure: Option<f64>,
    holds: bool,
}

/// The column with calibrated parameters.
#[derive(Serialize)]
struct Calibrated<'a> {
    holds: bool,
    why: &'a str,
    curves: Points<'a>,
}

type Points<'a> = BTreeMap<&'a str, &'a [(f64, f64)]>;

#[derive(Serialize)]
struct Simulated<'a> {
    profiles: &'a [&'a str],
    seed: u64,
    small: bool,
    curves: Points<'a>,
}

/// The claims as a JSON list.
pub(super) fn claims(outcomes: &[Outcome], setting: Setting) -> Result<String, ReproduceError> {
    let list: Vec<_> = outcomes.iter().map(|o| row(o, setting)).collect();
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn value(result: Option<&RuleResult>) -> Value {
    Value { figure: result.and_then(|r| r.ours), holds: result.is_some_and(RuleResult::holds) }
}

fn points(column: &Column) -> Points<'_> {
    column.curves.names().map(|n| (n, column.curves.points(n))).collect()
}

fn rule(rule: &crate::rule::Rule, row: &super::Row<'_>, calibrated: bool) -> Rule<'static> {
    Rule {
        rule: rule.to_string(),
        paper: rule.paper,
        raw: value(row.raw),
        calibrated: (calibrated && row.sets.is_none()).then(|| value(row.calibrated)),
        calibrates: row.sets,
    }
}

fn row(o: &Outcome, setting: Setting) -> Row<'_> {
    Row {
        id: o.claim.id,
        claim: o.claim.claim,
        paper: Paper {
            source: o.claim.source,
            figures: o.claim.figures,
            rule: o.claim.rules.iter().map(|r| r.paper).collect(),
        },
        ours: o.raw.results.iter().map(|j| j.ours).collect(),
        rule: o.claim.rules.iter().map(ToString::to_string).collect(),
        rules: rows(o).map(|(r, row)| rule(r, &row, o.calibrated.is_some())).collect(),
        holds: o.raw.verdict == Verdict::Holds,
        why: &o.raw.why,
        calibrated: o.calibrated.as_ref().map(|c| Calibrated {
            holds: c.verdict == Verdict::Holds,
            why: &c.why,
            curves: points(c),
        }),
        simulated: Simulated {
            profiles: o.claim.profiles,
            seed: setting.seed,
            small: setting.small,
            curves: points(&o.raw),
        },
    }
}

#[derive(Serialize)]
struct Parameter<'a> {
    testbed: &'a str,
    name: &'a str,
    unit: &'a str,
    range: (f64, f64),
    value: f64,
    paper: f64,
    figure: &'a str,
    source: &'a str,
    simulated: f64,
    reached: bool,
    /// The effects of changes of the value, if they were requested.
    changes: Vec<Change<'a>>,
}

#[derive(Serialize)]
struct Change<'a> {
    change: &'a str,
    value: f64,
    verdicts: String,
    /// Claim, rule, and its values before and after, of all rules whose value differs.
    rules: Vec<(&'a str, &'a str, Option<f64>, Option<f64>)>,
}

/// The parameters as a JSON list.
pub(super) fn calibration(results: &Results) -> Result<String, ReproduceError> {
    let list = results.found.iter().map(|found| {
        let (p, Figure { value, what, source }) = (&PARAMETERS[found.parameter], found.figure);
        let changes = results.sensitivity.iter().filter(|c| c.parameter == found.parameter);
        let change = |c: &'_ crate::Change| Change {
            change: variation(c),
            value: c.value,
            verdicts: changed_verdicts(c),
            rules: c.rules.iter().map(|m| (m.claim, m.what, m.values.0, m.values.1)).collect(),
        };
        Parameter {
            testbed: p.testbed.name(),
            name: p.name,
            unit: p.unit,
            range: p.range,
            value: found.value,
            paper: value,
            figure: what,
            source,
            simulated: found.simulated,
            reached: found.reached(),
            changes: changes.map(change).collect(),
        }
    });
    Ok(serde_json::to_string_pretty(&list.collect::<Vec<_>>())? + "\n")
}

/// An experiment about the cause of a failure, and a rule.
#[derive(Serialize)]
struct Cause<'a> {
    claim: &'a str,
    rule: &'a str,
    cause: &'a str,
    experiment: &'a str,
    calibrated: Value,
    experimental: Value,
    outcome: &'a str,
}

/// The experiments about causes as a JSON list.
pub(super) fn causes(tested: &[Tested]) -> Result<String, ReproduceError> {
    let one = |t: &Tested| {
        let cause = t.cause;
        let rule = move |m: &Compared| {
            let value = |v: Option<f64>| Value { figure: v, holds: v.is_some_and(|v| m.band.has(v)) };
            Cause {
                claim: cause.claim,
                rule: m.what,
                cause: cause.cause,
                experiment: cause.experiment,
                calibrated: value(m.values.0),
                experimental: value(m.values.1),
                outcome: m.outcome().word(),
            }
        };
        t.rules.iter().map(rule).collect::<Vec<_>>()
    };
    Ok(serde_json::to_string_pretty(&tested.iter().flat_map(one).collect::<Vec<_>>())? + "\n")
}
