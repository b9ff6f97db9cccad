//! Medians and ratios, as a table and as JSON.

use millrace_program::{
    table::{Align, Table},
    units::{grouped, short},
};
use serde::Serialize;

use super::case::{Case, Reference};
use crate::{Figure, placement::Processors, stats::median, wire_bytes::WireBytes};

/// Results of a comparison.
pub struct Comparison {
    pub(super) cases: Vec<Case>,
    /// Bytes of a READ of 4 KiB with its transport.
    pub(super) small_read: Vec<(String, WireBytes)>,
    pub(super) processors: Processors,
}

/// A case relative to what it is compared with. `None`: not compared.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Ratios {
    /// Throughput, operations per second or latency.
    ratio: Option<f64>,
    /// Processor time of the server per byte or per operation.
    server_cpu_ratio: Option<f64>,
    /// Processor time of the client per byte or per operation.
    client_cpu_ratio: Option<f64>,
}

/// The JSON object of a case.
#[derive(Serialize)]
struct Line<'a> {
    workload: &'static str,
    case: &'a str,
    no_halt: Option<bool>,
    #[serde(flatten)]
    processors: &'a Processors,
    #[serde(flatten)]
    ratios: Ratios,
    wanted: &'a str,
}

impl Ratios {
    /// Of one run and its reference's run.
    fn of(reference: Reference, f: &Figure, of: &Figure) -> Self {
        let rate = |client, server| Self {
            ratio: over(f.mb_per_s, of.mb_per_s),
            server_cpu_ratio: over(f.server_cpu_s_per_gb, server),
            client_cpu_ratio: over(f.client_cpu_s_per_gb, client),
        };
        match reference {
            Reference::Nothing => Self::default(),
            // The client of the raw stream is its sender. The server sends the data of READ.
            Reference::RawRate { server_is_sender: true } => {
                rate(of.server_cpu_s_per_gb, of.client_cpu_s_per_gb)
            }
            Reference::RawRate { server_is_sender: false } | Reference::Rate(_) => {
                rate(of.client_cpu_s_per_gb, of.server_cpu_s_per_gb)
            }
            Reference::Operations(_) => Self {
                ratio: over(f.ops_per_s, of.ops_per_s),
                server_cpu_ratio: over(f.server_cpu_us_per_op, of.server_cpu_us_per_op),
                client_cpu_ratio: over(f.client_cpu_us_per_op, of.client_cpu_us_per_op),
            },
            Reference::Latency(_) => Self { ratio: over(f.p50_us, of.p50_us), ..Self::default() },
        }
    }

    /// The medians over all runs of a case.
    fn median(case: &Case) -> Self {
        let pairs = case.runs.iter().zip(&case.beside);
        let all: Vec<_> = pairs.map(|(f, of)| Self::of(case.reference, f, of)).collect();
        let mid = |get: fn(&Self) -> Option<f64>| median(all.iter().filter_map(get));
        Self {
            ratio: mid(|r| r.ratio),
            server_cpu_ratio: mid(|r| r.server_cpu_ratio),
            client_cpu_ratio: mid(|r| r.client_cpu_ratio),
        }
    }
}

fn over(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b)
}

impl Comparison {
    /// The sizes of a READ of 4 KiB as a sentence.
    pub fn small_read(&self) -> String {
        let of = |(proto, WireBytes { call, reply }): &(String, WireBytes)| {
            format!("{call} bytes of call and {reply} of reply over {proto}")
        };
        format!("A READ of 4 KiB has {}.", self.small_read.iter().map(of).collect::<Vec<_>>().join(", "))
    }

    /// The placement of client and server as a sentence.
    pub fn placement(&self) -> String {
        self.processors.condition()
    }

    /// A JSON object with the medians of the ratios for each case that is compared.
    pub fn json(&self) -> Vec<String> {
        let compared = self.cases.iter().filter(|c| c.reference != Reference::Nothing);
        let line = |case: &Case| {
            let f = Figure::median(&case.runs)?;
            let ratios = Ratios::median(case);
            let line = Line {
                workload: "compare",
                case: case.name,
                no_halt: f.no_halt,
                processors: &self.processors,
                ratios,
                wanted: case.wanted,
            };
            serde_json::to_string(&line).ok()
        };
        compared.filter_map(line).collect()
    }

    /// Table of medians and ratios.
    pub fn table(&self) -> Table {
        let left = [("case", Align::Left)];
        let right = ["MB/s", "ops/s", "p50 us", "client s/GB", "server s/GB", "client us/op", "server us/op"];
        let ratios = ["ratio", "server CPU", "client CPU"];
        let columns = right.into_iter().chain(ratios).map(|name| (name, Align::Right));
        let columns: Vec<_> = left.into_iter().chain(columns).chain([("wanted", Align::Left)]).collect();
        let mut t = Table::new(&columns);
        let show = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
        for case in &self.cases {
            let Some(f) = Figure::median(&case.runs) else { continue };
            let Ratios { ratio, server_cpu_ratio, client_cpu_ratio } = Ratios::median(case);
            let bulk = f.record >= 1 << 16;
            let ops = f.ops_per_s.filter(|_| !bulk);
            t.row([
                case.name.to_owned(),
                show(f.mb_per_s),
                ops.map_or_else(|| "-".into(), |v| grouped(v.round() as u64)),
                show(f.p50_us),
                show(f.client_cpu_s_per_gb.filter(|_| bulk)),
                show(f.server_cpu_s_per_gb.filter(|_| bulk)),
                show(f.client_cpu_us_per_op.filter(|_| !bulk)),
                show(f.server_cpu_us_per_op.filter(|_| !bulk)),
                show(ratio),
                show(server_cpu_ratio),
                show(client_cpu_ratio),
                case.wanted.to_owned(),
            ]);
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::case::{Measured, RANDOM, READ},
        *,
    };

    fn case(reference: Reference, pairs: impl IntoIterator<Item = (Figure, Figure)>) -> Case {
        let (runs, beside) = pairs.into_iter().unzip();
        Case { runs, beside, ..Case::new("case", Measured::RawStream, reference, "") }
    }

    fn bulk(rate: f64, client: f64, server: f64) -> Figure {
        Figure {
            record: 1 << 20,
            mb_per_s: Some(rate),
            client_cpu_s_per_gb: Some(client),
            server_cpu_s_per_gb: Some(server),
            ..Figure::default()
        }
    }

    fn small(rate: f64, client: f64, server: f64, p50: f64) -> Figure {
        Figure {
            record: 4096,
            ops_per_s: Some(rate),
            client_cpu_us_per_op: Some(client),
            server_cpu_us_per_op: Some(server),
            p50_us: Some(p50),
            ..Figure::default()
        }
    }

    fn comparison(cases: Vec<Case>) -> Comparison {
        Comparison { cases, small_read: Vec::new(), processors: Processors::any("one core") }
    }

    /// Rate or latency, processor time of the server, and of the client.
    type Values = (Option<f64>, Option<f64>, Option<f64>);

    fn ratios(cases: Vec<Case>) -> Vec<Values> {
        let value = |line: String| serde_json::from_str::<serde_json::Value>(&line).unwrap();
        let lines = comparison(cases).json().into_iter().map(value);
        lines
            .map(|l| (l["ratio"].as_f64(), l["server_cpu_ratio"].as_f64(), l["client_cpu_ratio"].as_f64()))
            .collect()
    }

    #[test]
    fn ratios_are_those_to_the_reference_of_a_case() {
        // Sender 0.25, receiver 0.5.
        let stream = bulk(4000.0, 0.25, 0.5);
        let bound = small(500_000.0, 0.5, 1.0, 10.0);
        let raw = |server_is_sender| Reference::RawRate { server_is_sender };
        let one = |reference, f, of: &Figure| case(reference, [(f, of.clone())]);
        let cases = vec![
            case(Reference::Nothing, [(stream.clone(), Figure::default())]),
            one(raw(true), bulk(3000.0, 1.0, 1.0), &stream),
            one(raw(false), bulk(2000.0, 1.0, 1.0), &stream),
            one(Reference::Rate(READ), bulk(1500.0, 2.0, 3.0), &bulk(3000.0, 1.0, 1.0)),
            one(Reference::Operations(RANDOM), small(250_000.0, 2.0, 3.0, 60.0), &bound),
            one(Reference::Latency(RANDOM), small(1.0, 1.0, 1.0, 15.0), &bound),
        ];
        let expected = [
            (Some(0.75), Some(4.0), Some(2.0)),
            (Some(0.5), Some(2.0), Some(4.0)),
            (Some(0.5), Some(3.0), Some(2.0)),
            (Some(0.5), Some(3.0), Some(4.0)),
            (Some(1.5), None, None),
        ];
        assert_eq!(ratios(cases), expected);
    }

    #[test]
    fn a_line_has_the_processors_of_both_ends() {
        let line =
            comparison(vec![case(Reference::Rate(READ), [(bulk(1.0, 1.0, 1.0), bulk(1.0, 1.0, 1.0))])]);
        let line = line.json().remove(0);
        assert!(line.contains(r#""client_processor":null,"server_processor":null,"#), "{line}");
    }

    #[test]
    fn a_change_of_the_hosts_speed_between_runs_does_not_change_ratios() {
        let slow = |f: f64| (bulk(900.0 * f, 2.0 / f, 2.0 / f), bulk(1000.0 * f, 1.0 / f, 1.0 / f));
        let rate = Reference::Rate(READ);
        let all = [slow(1.0), slow(1.0), slow(4.0), slow(4.0), slow(4.0)];
        assert_eq!(ratios(vec![case(rate, all)]), [(Some(0.9), Some(2.0), Some(2.0))]);
    }
}
