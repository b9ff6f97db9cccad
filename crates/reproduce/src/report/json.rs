//! The claims in a form for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Outcome, ReproduceError, Setting, Verdict};

/// One claim. `ours` has a value for each element of `rule`, in order.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    claim: &'a str,
    paper: Paper<'a>,
    ours: Vec<Option<f64>>,
    rule: Vec<String>,
    holds: bool,
    why: &'a str,
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
struct Simulated<'a> {
    profiles: &'a [&'a str],
    seed: u64,
    small: bool,
    curves: BTreeMap<&'a str, &'a [(f64, f64)]>,
}

/// The claims as a JSON list.
pub(super) fn claims(outcomes: &[Outcome], setting: Setting) -> Result<String, ReproduceError> {
    let rows: Vec<_> = outcomes.iter().map(|o| row(o, setting)).collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

fn row(o: &Outcome, setting: Setting) -> Row<'_> {
    let rules = o.claim.rules;
    Row {
        id: o.claim.id,
        claim: o.claim.claim,
        paper: Paper {
            source: o.claim.source,
            figures: o.claim.figures,
            rule: rules.iter().map(|r| r.paper).collect(),
        },
        ours: o.results.iter().map(|j| j.ours).collect(),
        rule: rules.iter().map(ToString::to_string).collect(),
        holds: o.verdict == Verdict::Holds,
        why: &o.why,
        simulated: Simulated {
            profiles: o.claim.profiles,
            seed: setting.seed,
            small: setting.small,
            curves: o.curves.names().map(|n| (n, o.curves.points(n))).collect(),
        },
    }
}
