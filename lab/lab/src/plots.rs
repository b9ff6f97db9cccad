//! Plots of a matrix in the layout of the figures of TR06, whose numbers are prefixes of the file names. A
//! file name refers to the layout, not to the paper's machines.

use std::path::Path;

use millrace_bench::{Figure, iozone::Test};
use millrace_plot::{Axis, BarsWithLines, Heading, Lines, Places, PlotError, Scale, Series};
use millrace_program::units::ByteSize;

const RATE: &str = "MB/s";
const CPU: &str = "client CPU % (100 = one core)";
/// Colour of lines in front of bars of all colours.
const LINE_COLOUR: usize = 6;

/// The figures, and the values of their parameters in the order of the figures.
struct PlotData<'a> {
    figures: &'a [Figure],
    note: &'a str,
    strategy: fn(&Figure) -> String,
    designs: Vec<String>,
    strategies: Vec<String>,
    threads: Vec<usize>,
    records: Vec<u64>,
}

/// The value of a figure in a plot.
type Value = fn(&Figure) -> Option<f64>;

/// Selects the figures of a series: one for each number of threads.
#[derive(Clone, Copy)]
struct SeriesKey<'a> {
    test: Test,
    design: &'a str,
    strategy: &'a str,
    record: u64,
}

/// Plots `figures` (medians, one for each cell) into `dir`. `note` describes the conditions of the
/// measurement.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn draw(figures: &[Figure], note: &str, dir: &Path) -> Result<(), PlotError> {
    let data = PlotData::new(figures, note);
    for (test, word, numbers) in
        [(Test::Read, "read", [5, 7, 11, 14]), (Test::Write, "write", [6, 8, 12, 15])]
    {
        if !figures.iter().any(|f| f.test == test.to_string()) {
            continue;
        }
        let name = |n: usize, what: &str| format!("fig{:02}-{word}-{what}", numbers[n]);
        for strategy in &data.strategies {
            data.designs_beside(test, strategy).write(dir, &name(0, &format!("designs-{strategy}")))?;
            for design in &data.designs {
                let file = name(1, &format!("records-{design}-{strategy}"));
                data.records_over_threads(test, design, strategy).write(dir, &file)?;
            }
        }
        for design in &data.designs {
            for record in &data.records {
                let size = file_size(*record);
                let file = name(2, &format!("strategies-cpu-{design}-{size}"));
                data.strategies_with_cpu(test, design, *record).write(dir, &file)?;
                let file = name(3, &format!("strategies-{design}-{size}"));
                data.strategies_over_threads(test, design, &[*record]).write(dir, &file)?;
            }
            if test == Test::Read {
                let ends = data.smallest_and_largest();
                let file = format!("fig13-read-strategies-{design}-small-and-large");
                data.strategies_over_threads(test, design, &ends).write(dir, &file)?;
            }
        }
        data.exposed(test).write(dir, &format!("exposed-{word}"))?;
    }
    Ok(())
}

impl<'a> PlotData<'a> {
    fn new(figures: &'a [Figure], note: &'a str) -> Self {
        let strategy = compared(figures);
        Self {
            figures,
            note,
            strategy,
            designs: distinct(figures.iter().map(design)),
            strategies: distinct(figures.iter().map(strategy)),
            threads: distinct(figures.iter().map(|f| f.threads)),
            records: distinct(figures.iter().map(|f| f.record)),
        }
    }

    /// For each number of threads, the value that `get` returns for the figure.
    fn values(&self, key: SeriesKey<'_>, get: impl Fn(&Figure) -> Option<f64>) -> Vec<Option<f64>> {
        let test = key.test.to_string();
        let fits = |f: &&Figure| {
            f.test == test
                && f.record == key.record
                && design(f) == key.design
                && (self.strategy)(f) == key.strategy
        };
        let at = |n: &usize| self.figures.iter().filter(fits).find(|f| f.threads == *n).and_then(&get);
        self.threads.iter().map(at).collect()
    }

    fn heading(&self, title: String) -> Heading {
        Heading { title, note: self.note.to_owned() }
    }

    fn over_threads(&self) -> Places {
        let names = self.threads.iter().map(ToString::to_string).collect();
        Places { label: "threads, each with a connection and a file".into(), names }
    }

    /// Figures 5 and 6: bars for each record with the designs side by side, and lines of the client's
    /// processor time. According to the paper, the latter hardly differs between records, so each design has
    /// one line, for the first record.
    fn designs_beside(&self, test: Test, strategy: &str) -> BarsWithLines {
        let mut bars = Vec::new();
        for (colour, record) in self.records.iter().enumerate() {
            for (d, design) in self.designs.iter().enumerate() {
                let key = SeriesKey { test, design, strategy, record: *record };
                let name = format!("{design}, {}", ByteSize(*record).human());
                bars.push(Series { name, values: self.values(key, |f| f.mb_per_s), colour, second: d > 0 });
            }
        }
        let mut lines = Vec::new();
        for (d, design) in self.designs.iter().enumerate() {
            let Some(record) = self.records.first() else { continue };
            let key = SeriesKey { test, design, strategy, record: *record };
            lines.push(Series {
                name: format!("CPU, {design}, {}", ByteSize(*record).human()),
                values: self.values(key, |f| f.client_cpu_percent),
                colour: LINE_COLOUR,
                second: d > 0,
            });
        }
        BarsWithLines {
            heading: self
                .heading(format!("{} bandwidth and client CPU by design ({strategy})", capital(test))),
            x: self.over_threads(),
            bars: Axis { label: RATE.into(), scale: Scale::Linear, series: bars },
            lines: Axis { label: CPU.into(), scale: Scale::Linear, series: lines },
        }
    }

    /// Figures 7 and 8: a line for each record.
    fn records_over_threads(&self, test: Test, design: &str, strategy: &str) -> Lines {
        let line = |(colour, record): (usize, &u64)| {
            let values = self.values(SeriesKey { test, design, strategy, record: *record }, |f| f.mb_per_s);
            Series { name: ByteSize(*record).human().to_string(), values, colour, second: false }
        };
        Lines {
            heading: self.heading(format!("{} bandwidth by record ({design}, {strategy})", capital(test))),
            x: self.over_threads(),
            y: Axis {
                label: RATE.into(),
                scale: Scale::Linear,
                series: self.records.iter().enumerate().map(line).collect(),
            },
        }
    }

    /// Figures 11 and 12: bars for each strategy, and lines of the client's processor time.
    fn strategies_with_cpu(&self, test: Test, design: &str, record: u64) -> BarsWithLines {
        let series = |get: Value, word: &'static str| {
            let one = move |(colour, strategy): (usize, &String)| Series {
                name: format!("{word}{strategy}"),
                values: self.values(SeriesKey { test, design, strategy, record }, get),
                colour,
                second: false,
            };
            self.strategies.iter().enumerate().map(one).collect()
        };
        let title = format!("{} bandwidth and client CPU by registration", capital(test));
        BarsWithLines {
            heading: self.heading(format!("{title} ({design}, {})", ByteSize(record).human())),
            x: self.over_threads(),
            bars: Axis { label: RATE.into(), scale: Scale::Linear, series: series(|f| f.mb_per_s, "") },
            lines: Axis {
                label: CPU.into(),
                scale: Scale::Linear,
                series: series(|f| f.client_cpu_percent, "CPU, "),
            },
        }
    }

    /// Figures 14 and 15: a line for each strategy. Figure 13: the same for small and large records.
    fn strategies_over_threads(&self, test: Test, design: &str, records: &[u64]) -> Lines {
        let mut series = Vec::new();
        for (second, record) in records.iter().enumerate() {
            for (colour, strategy) in self.strategies.iter().enumerate() {
                let values =
                    self.values(SeriesKey { test, design, strategy, record: *record }, |f| f.mb_per_s);
                let name = match records {
                    [_] => strategy.clone(),
                    _ => format!("{strategy}, {}", ByteSize(*record).human()),
                };
                series.push(Series { name, values, colour, second: second > 0 });
            }
        }
        let sizes: Vec<String> = records.iter().map(|r| ByteSize(*r).human().to_string()).collect();
        let what = format!("({design}, {})", sizes.join(" and "));
        Lines {
            heading: self.heading(format!("{} bandwidth by registration strategy {what}", capital(test))),
            x: self.over_threads(),
            y: Axis { label: RATE.into(), scale: Scale::Linear, series },
        }
    }

    fn smallest_and_largest(&self) -> Vec<u64> {
        distinct(self.records.iter().min().into_iter().chain(self.records.iter().max()).copied())
    }

    /// Memory exposed to the other end, integrated over time: that of client and server, by strategy and
    /// design, for the largest number of threads and the first record.
    fn exposed(&self, test: Test) -> BarsWithLines {
        let record = self.records.first().copied().unwrap_or_default();
        let ends: [(&str, Value); 2] =
            [("client", |f| f.client_exposed_byte_s), ("server", |f| f.server_exposed_byte_s)];
        let mut series = Vec::new();
        for (d, design) in self.designs.iter().enumerate() {
            for (colour, (end, get)) in ends.iter().enumerate() {
                let last = |strategy: &String| {
                    self.values(SeriesKey { test, design, strategy, record }, get)
                        .into_iter()
                        .next_back()
                        .flatten()
                };
                let values = self.strategies.iter().map(last).collect();
                series.push(Series { name: format!("{end}'s, {design}"), values, colour, second: d > 0 });
            }
        }
        let threads = self.threads.last().copied().unwrap_or_default();
        BarsWithLines {
            heading: self.heading(format!(
                "Memory exposed to the peer, {test}, {threads} threads, {}",
                ByteSize(record).human()
            )),
            x: Places { label: "registration strategy".into(), names: self.strategies.clone() },
            bars: Axis { label: "bytes exposed, times seconds".into(), scale: Scale::Linear, series },
            lines: Axis { label: String::new(), scale: Scale::Linear, series: Vec::new() },
        }
    }
}

fn design(f: &Figure) -> String {
    f.design.clone().unwrap_or_else(|| f.proto.clone())
}

/// The compared strategies: those of the client, or those of the server if only they differ.
fn compared(figures: &[Figure]) -> fn(&Figure) -> String {
    fn client(f: &Figure) -> String {
        f.registration.clone().unwrap_or_else(|| "none".into())
    }
    fn server(f: &Figure) -> String {
        f.server_registration.clone().unwrap_or_else(|| "none".into())
    }
    let one_client = distinct(figures.iter().map(client)).len() == 1;
    if one_client && distinct(figures.iter().map(server)).len() > 1 { server } else { client }
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

/// The name of a test in the spelling of NFS procedures.
fn capital(test: Test) -> String {
    test.to_string().to_uppercase()
}

/// The size of a record in a file name.
fn file_size(record: u64) -> String {
    ByteSize(record).human().to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(design: &str, strategy: &str, threads: usize, mb_per_s: f64) -> Figure {
        Figure {
            test: "read".into(),
            design: Some(design.into()),
            registration: Some(strategy.into()),
            server_registration: Some("cache".into()),
            threads,
            record: 131_072,
            mb_per_s: Some(mb_per_s),
            client_exposed_byte_s: Some(mb_per_s / 10.0),
            server_exposed_byte_s: Some(0.0),
            ..Figure::default()
        }
    }

    #[test]
    fn a_series_has_gaps_for_missing_figures() {
        let figures = [
            figure("read-write", "fast", 1, 10.0),
            figure("read-write", "fast", 4, 40.0),
            figure("read-write", "cache", 4, 44.0),
            figure("read-read", "fast", 1, 9.0),
        ];
        let data = PlotData::new(&figures, "");
        let lines = data.strategies_over_threads(Test::Read, "read-write", &[131_072]);
        let drawn: Vec<_> = lines.y.series.iter().map(|s| (s.name.as_str(), s.values.clone())).collect();
        assert_eq!(drawn, [("fast", vec![Some(10.0), Some(40.0)]), ("cache", vec![None, Some(44.0)])]);
        let bars = data.designs_beside(Test::Read, "fast").bars.series;
        assert_eq!(
            bars.iter().map(|s| (s.values[0], s.second)).collect::<Vec<_>>(),
            [(Some(10.0), false), (Some(9.0), true)]
        );
        let exposed = data.exposed(Test::Read);
        assert_eq!(exposed.x.names, ["fast", "cache"]);
        assert_eq!(exposed.bars.series[0].values, [Some(4.0), Some(4.4)]);
        assert_eq!(exposed.bars.series[1].values, [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn server_strategies_are_compared_if_the_client_has_one_strategy() {
        let of = |server: &str| Figure {
            server_registration: Some(server.into()),
            ..figure("read-write", "fast", 1, 1.0)
        };
        let figures = [of("dynamic"), of("cache")];
        assert_eq!(PlotData::new(&figures, "").strategies, ["dynamic", "cache"]);
        assert_eq!(PlotData::new(&figures[..1], "").strategies, ["fast"]);
    }
}
