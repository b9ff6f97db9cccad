//! Medians and ratios, as a table, as a chart and as JSON.

use millrace_program::{
    table::{Align, Table},
    units::{grouped, short},
};
use serde::Serialize;

use super::chart::{Bar, Group, chart};
use crate::{Figure, stats::median};

/// Figures of servers side by side.
pub struct SideBySide {
    /// The names of the servers.
    names: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    /// For each server its runs.
    runs: Vec<Vec<Figure>>,
}

/// A figure as one line of JSON, with the key `server`.
pub fn json(server: &str, figure: &Figure) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        server: &'a str,
        #[serde(flatten)]
        figure: &'a Figure,
    }
    serde_json::to_string(&Line { server, figure }).unwrap_or_default()
}

/// What is compared: throughput of large operations, otherwise operations per second.
fn rate(figure: &Figure) -> Option<f64> {
    if is_large(figure) { figure.mb_per_s } else { figure.ops_per_s }
}

fn is_large(figure: &Figure) -> bool {
    figure.record >= 1 << 16
}

/// A line of the table.
struct Line {
    server: String,
    figure: Figure,
    /// The median of the ratios of runs beside each other; `None` for the first server.
    ratio: Option<f64>,
}

impl Row {
    fn lines(&self, names: &[String]) -> Vec<Line> {
        let first = self.runs.first().map_or(&[][..], Vec::as_slice);
        let line = |(at, (name, runs)): (usize, (&String, &Vec<Figure>))| {
            let ratios =
                runs.iter().zip(first).filter_map(|(f, of)| Some(rate(f)? / rate(of).filter(|r| *r > 0.0)?));
            let ratio = if at == 0 { None } else { median(ratios) };
            Some(Line { server: name.clone(), figure: Figure::median(runs)?, ratio })
        };
        names.iter().zip(&self.runs).enumerate().filter_map(line).collect()
    }
}

impl SideBySide {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self { names, rows: Vec::new() }
    }

    /// Adds a run of the server with the number `server` to the row `row`.
    pub(super) fn add(&mut self, row: &str, server: usize, figure: Figure) {
        let at = self.rows.iter().position(|r| r.name == row).unwrap_or_else(|| {
            self.rows.push(Row { name: row.to_owned(), runs: vec![Vec::new(); self.names.len()] });
            self.rows.len() - 1
        });
        if let Some(runs) = self.rows.get_mut(at).and_then(|row| row.runs.get_mut(server)) {
            runs.push(figure);
        }
    }

    /// The medians, and the ratios to the first server.
    pub fn table(&self) -> Table {
        let mut t = Table::new(&[
            ("operation", Align::Left),
            ("server", Align::Left),
            ("MB/s", Align::Right),
            ("ops/s", Align::Right),
            ("ratio", Align::Right),
            ("p50 us", Align::Right),
            ("server us/op", Align::Right),
        ]);
        let show = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
        let ops = |v: Option<f64>| v.map_or_else(|| "-".into(), |v| grouped(v.round() as u64));
        for row in &self.rows {
            let mut name = row.name.as_str();
            for Line { server, figure, ratio } in row.lines(&self.names) {
                t.row([
                    name.to_owned(),
                    server,
                    show(figure.mb_per_s.filter(|_| figure.record > 0)),
                    ops(figure.ops_per_s),
                    show(ratio),
                    show(figure.p50_us),
                    show(figure.server_cpu_us_per_op),
                ]);
                name = "";
            }
        }
        t
    }

    /// The rates as bars in an SVG image, with `note` below the title.
    pub fn svg(&self, note: &str) -> String {
        let group = |row: &Row| {
            let lines = row.lines(&self.names);
            let unit = if lines.iter().any(|line| is_large(&line.figure)) { "MB/s" } else { "per second" };
            let bar = |line: &Line| {
                let value = rate(&line.figure).unwrap_or(0.0);
                let ratio = line.ratio.map(|ratio| format!(" ({} times)", short(ratio))).unwrap_or_default();
                let text = format!("{}{ratio}", grouped(value.round() as u64));
                Bar { name: line.server.clone(), value, text }
            };
            Group { title: format!("{}, {unit}", row.name), bars: lines.iter().map(bar).collect() }
        };
        chart("NFS servers side by side", note, &self.rows.iter().map(group).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> SideBySide {
        let mut found = SideBySide::new(vec!["a <1>".into(), "b".into()]);
        let figure = |record, mb, ops| Figure {
            record,
            mb_per_s: Some(mb),
            ops_per_s: Some(ops),
            p50_us: Some(10.0),
            ..Figure::default()
        };
        // The host is ten times as fast in the second run.
        for speed in [1.0, 10.0, 1.0] {
            found.add("READ 1 MiB x 8", 0, figure(1 << 20, 100.0 * speed, 0.0));
            found.add("READ 1 MiB x 8", 1, figure(1 << 20, 200.0 * speed, 0.0));
            found.add("file stat", 0, figure(0, 0.0, 4000.0 * speed));
            found.add("file stat", 1, figure(0, 0.0, 1000.0 * speed));
        }
        found
    }

    #[test]
    fn ratios_are_those_of_runs_beside_each_other() {
        let text = found().table().to_string();
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["READ", "1", "MiB", "x", "8", "a", "<1>", "100", "0", "-", "10.0", "-"]);
        assert_eq!(rows[1], ["b", "200", "0", "2.00", "10.0", "-"]);
        assert_eq!(rows[2], ["file", "stat", "a", "<1>", "-", "4,000", "-", "10.0", "-"]);
        assert_eq!(rows[3], ["b", "-", "1,000", "0.25", "10.0", "-"]);
    }

    #[test]
    fn the_longest_bar_of_a_group_has_the_whole_width() {
        let svg = found().svg("note & more");
        let widths: Vec<&str> = svg
            .lines()
            .filter(|line| line.starts_with("<rect x"))
            .map(|line| line.split(" width=\"").nth(1).unwrap().split('"').next().unwrap())
            .collect();
        assert_eq!(widths, ["200.0", "400.0", "400.0", "100.0"]);
        for text in [
            "READ 1 MiB x 8, MB/s",
            "file stat, per second",
            "a &lt;1&gt;",
            "200 (2.00 times)",
            "note &amp; more",
        ] {
            assert!(svg.contains(&format!(">{text}</text>")), "{text}: {svg}");
        }
    }

    #[test]
    fn json_has_the_name_of_the_server_and_the_keys_of_figures() {
        let line = json("a", &Figure { test: "read".into(), ..Figure::default() });
        assert!(line.starts_with(r#"{"server":"a","workload":"","test":"read","#), "{line}");
    }
}
