//! Medians and ratios, as a table and as JSON.

use serde::Serialize;

use super::case::{Case, Reference, STREAM};
use crate::{
    Figure,
    table::{Align, Table},
    units::{grouped, short},
    wire_bytes::WireBytes,
};

/// Results of a comparison.
pub struct Comparison {
    pub(super) cases: Vec<Case>,
    /// Bytes of a READ of 4 KiB with its transport.
    pub(super) small_read: Vec<(String, WireBytes)>,
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
    ratios: Ratios,
    wanted: &'a str,
}

fn over(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b)
}

impl Comparison {
    fn median(&self, name: &str) -> Figure {
        let runs = self.cases.iter().find(|c| c.name == name).map(|c| &*c.runs);
        runs.and_then(Figure::median).unwrap_or_default()
    }

    /// The ratios of a case whose medians are `f`.
    fn ratios(&self, reference: Reference, f: &Figure) -> Ratios {
        match reference {
            Reference::Nothing => Ratios::default(),
            Reference::RawRate { server_is_sender } => {
                let raw = self.median(STREAM);
                // The client of the raw stream is its sender. The server sends the data of READ.
                let (sender, receiver) = (raw.client_cpu_s_per_gb, raw.server_cpu_s_per_gb);
                let (client, server) = if server_is_sender { (receiver, sender) } else { (sender, receiver) };
                Ratios {
                    ratio: over(f.mb_per_s, raw.mb_per_s),
                    server_cpu_ratio: over(f.server_cpu_s_per_gb, server),
                    client_cpu_ratio: over(f.client_cpu_s_per_gb, client),
                }
            }
            Reference::Rate(name) => {
                let of = self.median(name);
                Ratios {
                    ratio: over(f.mb_per_s, of.mb_per_s),
                    server_cpu_ratio: over(f.server_cpu_s_per_gb, of.server_cpu_s_per_gb),
                    client_cpu_ratio: over(f.client_cpu_s_per_gb, of.client_cpu_s_per_gb),
                }
            }
            Reference::Operations(name) => {
                let of = self.median(name);
                Ratios {
                    ratio: over(f.ops_per_s, of.ops_per_s),
                    server_cpu_ratio: over(f.server_cpu_us_per_op, of.server_cpu_us_per_op),
                    client_cpu_ratio: over(f.client_cpu_us_per_op, of.client_cpu_us_per_op),
                }
            }
            Reference::Latency(name) => {
                Ratios { ratio: over(f.p50_us, self.median(name).p50_us), ..Ratios::default() }
            }
        }
    }

    /// The sizes of a READ of 4 KiB as a sentence.
    pub fn small_read(&self) -> String {
        let of = |(proto, WireBytes { call, reply }): &(String, WireBytes)| {
            format!("{call} bytes of call and {reply} of reply over {proto}")
        };
        format!("A READ of 4 KiB has {}.", self.small_read.iter().map(of).collect::<Vec<_>>().join(", "))
    }

    /// A JSON object with the ratios of the medians for each case that is compared.
    pub fn json(&self) -> Vec<String> {
        let compared = self.cases.iter().filter(|c| c.reference != Reference::Nothing);
        let line = |case: &Case| {
            let f = Figure::median(&case.runs)?;
            let ratios = self.ratios(case.reference, &f);
            let line = Line {
                workload: "compare",
                case: case.name,
                no_halt: f.no_halt,
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
            let Ratios { ratio, server_cpu_ratio, client_cpu_ratio } = self.ratios(case.reference, &f);
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

    fn case(name: &'static str, reference: Reference, f: Figure) -> Case {
        Case { runs: vec![f], ..Case::new(name, Measured::RawStream, reference, "") }
    }

    #[test]
    fn ratios_are_those_to_the_reference_of_a_case() {
        let bulk = |rate, client, server| Figure {
            record: 1 << 20,
            mb_per_s: Some(rate),
            client_cpu_s_per_gb: Some(client),
            server_cpu_s_per_gb: Some(server),
            ..Figure::default()
        };
        let small = |rate, client, server, p50| Figure {
            record: 4096,
            ops_per_s: Some(rate),
            client_cpu_us_per_op: Some(client),
            server_cpu_us_per_op: Some(server),
            p50_us: Some(p50),
            ..Figure::default()
        };
        let comparison = Comparison {
            cases: vec![
                // Sender 0.25, receiver 0.5.
                case(STREAM, Reference::Nothing, bulk(4000.0, 0.25, 0.5)),
                case(READ, Reference::RawRate { server_is_sender: true }, bulk(3000.0, 1.0, 1.0)),
                case("write", Reference::RawRate { server_is_sender: false }, bulk(2000.0, 1.0, 1.0)),
                case("disk", Reference::Rate(READ), bulk(1500.0, 2.0, 3.0)),
                case("bound", Reference::Nothing, small(500_000.0, 0.5, 1.0, 10.0)),
                case(RANDOM, Reference::Operations("bound"), small(250_000.0, 2.0, 3.0, 60.0)),
                case("one", Reference::Latency("bound"), small(1.0, 1.0, 1.0, 15.0)),
            ],
            small_read: Vec::new(),
        };
        let ratios: Vec<_> = comparison
            .json()
            .iter()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|l| (l["ratio"].as_f64(), l["server_cpu_ratio"].as_f64(), l["client_cpu_ratio"].as_f64()))
            .collect();
        assert_eq!(
            ratios,
            [
                (Some(0.75), Some(4.0), Some(2.0)),
                (Some(0.5), Some(2.0), Some(4.0)),
                (Some(0.5), Some(3.0), Some(2.0)),
                (Some(0.5), Some(3.0), Some(4.0)),
                (Some(1.5), None, None),
            ]
        );
    }
}
