//! The claims as one self-contained page.

use super::{SIMULATED, conditions, summary};
use crate::{Outcome, Setting, rule::RuleResult};

const STYLE: &str = "\
body{font:16px/1.5 'DejaVu Sans',Verdana,Arial,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;margin:1rem 0}\
td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;text-align:left;vertical-align:top}\
.simulated{background:#fff3d6;border-left:4px solid #e69f00;padding:.5rem 1rem}\
.holds{color:#00734f;font-weight:bold}.fails{color:#b34700;font-weight:bold}\
svg{width:100%;height:auto;margin:1rem 0}section{border-top:2px solid #222;margin-top:2.5rem}.note{color:#5a5a5a}";

/// The page. `drawn` has the plots of each outcome.
pub(super) fn page(outcomes: &[Outcome], drawn: &[Vec<String>], setting: Setting) -> String {
    let rows: String = outcomes.iter().map(row).collect();
    let sections: String = outcomes.iter().zip(drawn).map(|(o, d)| section(o, d, setting)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Millrace: the papers' claims, {SIMULATED}</title><style>{STYLE}</style></head><body>\n\
         <h1>The papers' claims</h1>\n\
         <p class=\"simulated\">Everything on this page is <b>{SIMULATED}</b>: the real client and server on simulated \
         machines, in virtual time, with seed {}. The rules were \
         defined before any experiment was run. The papers' measurements are drawn dashed or pale where their figures \
         are known; a peak without a known x value is drawn at the largest one.</p>\n<p>{}</p>\n\
         <table><tr><th></th><th>claim</th><th>the paper's figures</th><th></th></tr>\n{rows}</table>\n{sections}\
         </body></html>\n",
        setting.seed,
        summary(outcomes)
    )
}

fn row(o: &Outcome) -> String {
    let c = &o.claim;
    format!(
        "<tr><td><a href=\"#{id}\">{id}</a></td><td>{}</td><td>{}</td><td class=\"{word}\">{word}</td></tr>\n",
        text(c.claim),
        text(c.figures),
        id = c.id,
        word = o.verdict.word()
    )
}

fn section(o: &Outcome, drawn: &[String], setting: Setting) -> String {
    let c = &o.claim;
    let word = o.verdict.word();
    let mut out = format!(
        "<section id=\"{id}\"><h2>{id}: {} <span class=\"{word}\">{word}</span></h2>\n<p>{}: {}.</p>\n",
        text(c.claim),
        text(c.source),
        text(c.figures),
        id = c.id,
    );
    if !o.why.is_empty() {
        out.push_str(&format!("<p class=\"{word}\">{}</p>\n", text(&o.why)));
    }
    if !o.results.is_empty() {
        let rules: String = o.results.iter().map(rule).collect();
        out.push_str(&format!(
            "<table><tr><th>rule</th><th>band</th><th>paper</th><th>ours</th><th></th></tr>\n{rules}</table>\n"
        ));
        out.push_str(&format!(
            "<p class=\"note\">{}. {}.</p>\n",
            text(&conditions(o, setting)),
            text(c.conditions)
        ));
    }
    drawn.iter().for_each(|svg| out.push_str(svg));
    out.push_str("</section>\n");
    out
}

fn rule(j: &RuleResult) -> String {
    let (class, word) = if j.holds() { ("holds", "holds") } else { ("fails", "fails") };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td></tr>\n",
        text(j.rule.what),
        j.rule.band,
        text(j.rule.paper),
        j.ours()
    )
}

/// Text with the special characters of HTML escaped.
fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
