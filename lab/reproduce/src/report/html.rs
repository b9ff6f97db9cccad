//! The claims as one self-contained page.

use super::{
    CALIBRATED, RAW, Row, SIMULATED, conditions, rows, summary,
    tables::{self, Table},
};
use crate::{
    Column, Outcome, Results, Setting,
    rule::{Rule, RuleResult},
};

const STYLE: &str = "\
body{font:16px/1.5 'DejaVu Sans',Verdana,Arial,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;margin:1rem 0}\
td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;text-align:left;vertical-align:top}\
.simulated{background:#fff3d6;border-left:4px solid #e69f00;padding:.5rem 1rem}\
.holds{color:#00734f;font-weight:bold}.fails{color:#b34700;font-weight:bold}\
svg{width:100%;height:auto;margin:1rem 0}section{border-top:2px solid #222;margin-top:2.5rem}.note{color:#5a5a5a}";

/// The page. `drawn` has the plots of each outcome.
pub(super) fn page(results: &Results, drawn: &[Vec<String>], setting: Setting) -> String {
    let outcomes = &results.outcomes;
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
         are known; a peak without a known x value is drawn at the largest one. The column <i>{RAW}</i> simulates hosts \
         that are defined by raw numbers. In the column <i>{CALIBRATED}</i>, one stated figure sets each parameter that \
         raw numbers do not define; rules that use such a figure are not counted.</p>\n<p>{}</p>\n\
         <table><tr><th></th><th>claim</th><th>the paper's figures</th><th>{RAW}</th><th>{CALIBRATED}</th></tr>\n\
         {rows}</table>\n{}{sections}</body></html>\n",
        setting.seed,
        summary(outcomes),
        tables::all(results).iter().map(table).collect::<String>()
    )
}

/// A cell with the verdict of a column, empty if there is none.
fn verdict(column: Option<&Column>) -> String {
    let word = column.map_or("", |c| c.verdict.word());
    format!("<td class=\"{word}\">{word}</td>")
}

fn row(o: &Outcome) -> String {
    let c = &o.claim;
    format!(
        "<tr><td><a href=\"#{id}\">{id}</a></td><td>{}</td><td>{}</td>{}{}</tr>\n",
        text(c.claim),
        text(c.figures),
        verdict(Some(&o.raw)),
        verdict(o.calibrated.as_ref()),
        id = c.id,
    )
}

/// A table of the calibration.
fn table(table: &Table) -> String {
    let cells = |row: &[String]| row.iter().map(|c| format!("<td>{}</td>", text(c))).collect::<String>();
    let rows: String = table.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row))).collect();
    let head: String = table.columns.iter().map(|c| format!("<th>{c}</th>")).collect();
    format!("<h2>{}</h2>\n<table><tr>{head}</tr>\n{rows}</table>\n", table.title)
}

fn section(o: &Outcome, drawn: &[String], setting: Setting) -> String {
    let c = &o.claim;
    let mut out = format!(
        "<section id=\"{id}\"><h2>{id}: {}</h2>\n<p>{}: {}.</p>\n",
        text(c.claim),
        text(c.source),
        text(c.figures),
        id = c.id,
    );
    for (name, column) in [(RAW, Some(&o.raw)), (CALIBRATED, o.calibrated.as_ref())] {
        if let Some(Column { verdict, why, .. }) = column {
            let word = verdict.word();
            out.push_str(&format!("<p>{name}: <span class=\"{word}\">{word}</span> {}</p>\n", text(why)));
        }
    }
    if !o.raw.results.is_empty() {
        let rules: String = rows(o).map(|(r, row)| rule(r, &row)).collect();
        out.push_str(&format!(
            "<table><tr><th>rule</th><th>band</th><th>paper</th><th>{RAW}</th><th></th><th>{CALIBRATED}</th><th></th>\
             </tr>\n{rules}</table>\n"
        ));
        out.push_str(&format!(
            "<p class=\"note\">{}. {}.</p>\n",
            text(&conditions(c, setting)),
            text(c.conditions)
        ));
    }
    drawn.iter().for_each(|svg| out.push_str(svg));
    out.push_str("</section>\n");
    out
}

fn rule(rule: &Rule, row: &Row<'_>) -> String {
    let cells = |r: &RuleResult| {
        let word = if r.holds() { "holds" } else { "fails" };
        format!("<td>{}</td><td class=\"{word}\">{word}</td>", r.ours())
    };
    let empty = "<td></td><td></td>".to_owned();
    let calibrated = match (row.sets, row.calibrated) {
        (Some(name), _) => format!("<td>sets {name}</td><td>not counted</td>"),
        (None, result) => result.map_or_else(|| empty.clone(), cells),
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td>{}{calibrated}</tr>\n",
        text(rule.what),
        rule.band,
        text(rule.paper),
        row.raw.map_or_else(|| empty.clone(), cells)
    )
}

/// Text with the special characters of HTML escaped.
fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
