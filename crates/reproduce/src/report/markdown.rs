//! The claims as a table for documents.

use super::{SIMULATED, summary};
use crate::{Outcome, Setting, rule::RuleResult};

/// The table, one row for each rule.
pub(super) fn claims(outcomes: &[Outcome], setting: Setting) -> String {
    let small = if setting.small { " --small" } else { "" };
    let mut out = format!(
        "Everything here is {SIMULATED}: `millrace-lab reproduce --seed {}{small}`. {}.\n\n\
         | claim | rule | paper | ours | holds |\n|---|---|---|---|---|\n",
        setting.seed,
        summary(outcomes)
    );
    for o in outcomes {
        out.push_str(&format!(
            "| **{}** {} | | | | **{}** |\n",
            o.claim.id,
            cell(o.claim.claim),
            o.verdict.word()
        ));
        o.results.iter().for_each(|j| out.push_str(&rule(j)));
    }
    out.push_str("\nWhy:\n\n");
    for o in outcomes.iter().filter(|o| !o.why.is_empty()) {
        out.push_str(&format!("- **{} {}**: {}\n", o.claim.id, o.verdict.word(), o.why));
    }
    out
}

fn rule(j: &RuleResult) -> String {
    let holds = if j.holds() { "yes" } else { "**no**" };
    format!("| | {} | {} | {} | {holds} |\n", cell(&j.rule.to_string()), cell(j.rule.paper), j.ours())
}

/// Text with the separator of cells escaped.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
