//! Pages of studies.

use std::{fmt::Write, fs, path::Path};

use millrace_program::units::grouped;

use super::Study;
use crate::{Curves, Picture, ReproduceError, Setting};

/// Writes a page and its plots.
pub(super) fn write(
    study: &Study,
    curves: &Curves,
    setting: Setting,
    out: &Path,
) -> Result<(), ReproduceError> {
    let small = if setting.small { " --small" } else { "" };
    let command = format!("millrace-lab study {} --seed {}{small}", study.name, setting.seed);
    let note = format!("SIMULATED, not measured: {command}");
    let mut text = study.page.replace(&published(study), &command);
    for picture in study.pictures {
        let file = format!("{}-{}", study.name, picture.name);
        picture.draw(curves, &note, out, &file)?;
        let mut shown = format!("![{}]({file}.svg)\n", picture.title);
        if study.summary.is_none() {
            shown = format!("{shown}\n{}", table(picture, curves));
        }
        text = fill(&text, picture.name, &shown);
    }
    if let Some(summary) = study.summary {
        text = fill(&text, "summary", &summary(curves));
    }
    let path = out.join(format!("{}.md", study.name));
    fs::write(&path, text).map_err(|source| ReproduceError::File { path, source })
}

/// The command in the published page.
fn published(study: &Study) -> String {
    format!("millrace-lab study {} --seed 1", study.name)
}

/// The page with `content` between `<!-- NAME -->` and the next `<!-- end -->`.
fn fill(page: &str, name: &str, content: &str) -> String {
    let start = format!("<!-- {name} -->\n");
    let (before, rest) = page.split_once(&start).unwrap_or((page, ""));
    let after = rest.split_once("<!-- end -->").map_or("", |(_, after)| after);
    format!("{before}{start}{content}\n<!-- end -->{after}")
}

/// The figures of a plot as a table, one row for each x value.
fn table(picture: &Picture, curves: &Curves) -> String {
    let names: Vec<_> = picture.all_curves().collect();
    let mut out =
        format!("| {} | {} |\n|---|{}\n", picture.x.0, names.join(" | "), "---|".repeat(names.len()));
    for x in picture.places(curves) {
        let cell = |name: &&str| curves.at(name, x).map_or_else(|| "-".to_owned(), number);
        let cells: Vec<_> = names.iter().map(cell).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {} |", picture.place(x), cells.join(" | "));
    }
    out
}

/// A value with three significant digits, or with all digits before the decimal point.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => grouped(v.round() as u64),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Unit, studies};

    #[test]
    fn every_page_has_a_place_for_each_result() {
        for study in studies::ALL {
            let count = |text: &str| study.page.matches(text).count();
            assert_eq!(
                count(&format!("`{} --out docs/lab/studies`", published(&study))),
                1,
                "{}",
                study.name
            );
            assert!(study.page.contains("simulated, not measured"), "{}", study.name);
            for p in study.pictures {
                assert_eq!(count(&format!("<!-- {} -->\n![{}]", p.name, p.title)), 1, "{}", p.name);
            }
            let summary = usize::from(study.summary.is_some());
            assert_eq!(count("<!-- summary -->\n|"), summary, "{}", study.name);
            assert_eq!(count("\n<!-- end -->\n"), study.pictures.len() + summary, "{}", study.name);
        }
    }

    #[test]
    fn a_result_replaces_the_published_one_of_its_name_only() {
        let page = "a\n<!-- p -->\nold p\n\n<!-- end -->\nb\n<!-- q -->\nold q\n\n<!-- end -->\nc\n";
        let made = fill(&fill(page, "q", "| q |\n"), "p", "new p\n");
        assert_eq!(made, page.replace("old p", "new p").replace("old q", "| q |"));
        assert_eq!(fill(&made, "p", "new p\n"), made);
    }

    #[test]
    fn the_error_for_an_unknown_study_lists_all() {
        let Err(e) = studies::named("depth") else { panic!("the study exists") };
        assert_eq!(
            e.to_string(),
            "there is no study \"depth\"; the studies are: distance, credits, registration, block, modern, all"
        );
        assert_eq!(studies::named("all").map(|s| s.len()).ok(), Some(5));
    }

    #[test]
    fn a_table_has_a_row_for_each_x_value_and_marks_missing_values() {
        let mut c = Curves::default();
        for (curve, x, y) in [("a", 4096.0, 0.5), ("a", 65_536.0, 12_345.6), ("b", 65_536.0, 12.34)] {
            c.put(curve, x, y);
        }
        let picture = Picture {
            name: "p",
            title: "t",
            x: ("record", Unit::Bytes),
            y: ("MB/s", millrace_plot::Scale::Linear),
            curves: &["a", "b"],
            right: None,
            paper: &[],
        };
        let rows = "| record | a | b |\n|---|---|---|\n| 4 KiB | 0.50 | - |\n| 64 KiB | 12,346 | 12.3 |\n";
        assert_eq!(table(&picture, &c), rows);
    }
}
