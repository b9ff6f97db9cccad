//! The rows of the table: client, transport and load.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use millrace_bench::iozone::{Iozone, Run, Session, Test};
use millrace_client::Options;
use serde_json::Value;

use super::{
    names::Step,
    testbed::{Done, FILE, Proto, Sample, ServerKind, Testbed, mount_point},
    wire::Limit,
};

/// Seconds of one fio run.
const FIO_SECONDS: u32 = 2;
/// Entries of the directory.
const NAMES: usize = 5000;
/// Time limit of a load.
const LOAD_LIMIT: Duration = Duration::from_secs(120);
/// Number of times that the Millrace client reads or writes the file in one run.
const PASSES: u64 = 4;

/// One row of the table.
pub(super) struct Row {
    load: Load,
    /// The transport.
    pub(super) proto: Proto,
}

#[derive(Clone, Copy)]
enum Load {
    /// fio on the kernel client's mount, with O_DIRECT.
    Fio { name: &'static str, rw: &'static str, block: usize, depth: u32 },
    /// Operations on a large directory of the kernel client's mount.
    Names(Step),
    /// The Millrace client, in this process.
    Millrace { name: &'static str, test: Test, record: usize, outstanding: usize, operations: u64 },
}

/// Every row.
pub(super) fn rows() -> Vec<Row> {
    const MIB: usize = 1 << 20;
    let fio = |name, rw, block, depth| Load::Fio { name, rw, block, depth };
    let millrace = |name, test, record, outstanding, operations| Load::Millrace {
        name,
        test,
        record,
        outstanding,
        operations,
    };
    let loads = [
        fio("read-1m-x8", "read", MIB, 8),
        fio("write-1m-x8", "write", MIB, 8),
        fio("random-read-4k-x1", "randread", 4096, 1),
        fio("random-read-4k-x16", "randread", 4096, 16),
        Load::Names(Step::Create),
        Load::Names(Step::Stat),
        Load::Names(Step::List),
        Load::Names(Step::Unlink),
        millrace("read-1m-x8", Test::Read, MIB, 8, 0),
        millrace("write-1m-x8", Test::Rewrite, MIB, 8, 0),
        millrace("random-read-4k-x1", Test::RandomRead, 4096, 1, 5_000),
        millrace("random-read-4k-x16", Test::RandomRead, 4096, 16, 20_000),
    ];
    loads.into_iter().flat_map(|load| Proto::BOTH.map(|proto| Row { load, proto })).collect()
}

impl Row {
    /// `CLIENT/PROTO/LOAD`.
    pub(super) fn name(&self) -> String {
        let proto = self.proto;
        match self.load {
            Load::Fio { name, .. } => format!("kernel/{proto}/{name}"),
            Load::Names(step) => format!("kernel/{proto}/{step}"),
            Load::Millrace { name, .. } => format!("millrace/{proto}/{name}"),
        }
    }

    /// Whether the rate is in MB/s. Otherwise it is in operations per second.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self.load, Load::Fio { block, .. } | Load::Millrace { record: block, .. } if block > 4096)
    }

    /// The figure of the plain TCP connection to compare with. Rows of the kernel client with large transfers
    /// or one operation in flight have one. (The Millrace client has none, because it reaches one of the
    /// servers over loopback.)
    pub(super) fn limit(&self) -> Option<Limit> {
        match self.load {
            Load::Fio { rw: "read", .. } => Some(Limit::FromHost),
            Load::Fio { rw: "write", .. } => Some(Limit::ToHost),
            Load::Fio { depth: 1, .. } => Some(Limit::PingPong),
            _ => None,
        }
    }

    /// Measures the row once with server `with`.
    ///
    /// # Errors
    /// When the load fails.
    pub(super) fn measure(
        &self,
        testbed: &mut Testbed,
        sessions: &mut Sessions,
        with: ServerKind,
    ) -> Result<Sample> {
        let at = mount_point(with, self.proto);
        match self.load {
            Load::Fio { rw, block, depth, .. } => testbed.measure(with, |p| fio(p, &at, rw, (block, depth))),
            Load::Names(step) => {
                let command = names_command(testbed, &at, self.proto)?;
                testbed.client.spawn(&format!("{command} --prepare {step}"))?.wait(LOAD_LIMIT)?.ok()?;
                testbed.measure(with, |p| names(p, &command, step))
            }
            Load::Millrace { test, record, outstanding, operations, .. } => {
                let session = sessions.get(testbed, with, self.proto)?;
                let run = Run { test, record, outstanding, passes: PASSES, random_ops: operations };
                testbed.measure(with, |_| iozone(session, &run))
            }
        }
    }
}

fn fio(testbed: &mut Testbed, at: &str, rw: &str, (block, depth): (usize, u32)) -> Result<Done> {
    let script = format!(
        "fio --name=x --filename={at}/data --size={FILE} --rw={rw} --bs={block} --iodepth={depth} --direct=1 \
         --ioengine=libaio --runtime={FIO_SECONDS} --time_based --output-format=json"
    );
    let text = testbed.client.spawn(&script)?.wait(LOAD_LIMIT)?.ok()?.stdout;
    fio_figures(&text, rw, block)
}

/// The figures in fio's JSON output: MB/s and GB for blocks above 4 KiB, otherwise operations.
///
/// # Errors
/// When the output has none.
pub(super) fn fio_figures(text: &str, rw: &str, block: usize) -> Result<Done> {
    let result: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())?;
    let figures = &result["jobs"][0][if rw == "write" { "write" } else { "read" }];
    let number = |key: &str| figures[key].as_f64().with_context(|| format!("fio reports no {key}"));
    Ok(if block > 4096 {
        Done { rate: number("bw_bytes")? / 1e6, work: number("io_bytes")? / 1e9 }
    } else {
        Done { rate: number("iops")?, work: number("total_ios")? }
    })
}

/// The start of the guest's command. Each transport to the same server uses another directory.
fn names_command(testbed: &Testbed, at: &str, proto: Proto) -> Result<String> {
    Ok(format!("{} bench-names {at}/names-{proto} {NAMES}", testbed.client.interop()?))
}

fn names(testbed: &mut Testbed, command: &str, step: Step) -> Result<Done> {
    let text = testbed.client.spawn(&format!("{command} {step}"))?.wait(LOAD_LIMIT)?.ok()?.stdout;
    let (done, seconds) = text.trim().split_once(' ').context("bench-names prints a count and seconds")?;
    let (done, seconds): (f64, f64) = (done.parse()?, seconds.parse()?);
    Ok(Done { rate: done / seconds, work: done })
}

fn iozone(session: &Session, run: &Run) -> Result<Done> {
    let figure = session.run(run, None)?;
    let (mb, ops) = (figure.mb_per_s.unwrap_or_default(), figure.ops_per_s.unwrap_or_default());
    Ok(if run.random_ops > 0 {
        Done { rate: ops, work: run.random_ops as f64 }
    } else {
        Done { rate: mb, work: (FILE * run.passes) as f64 / 1e9 }
    })
}

/// Millrace clients, connected at their first use. Each has its own file.
#[derive(Default)]
pub(super) struct Sessions(Vec<(ServerKind, Proto, Session)>);

impl Sessions {
    fn get(&mut self, testbed: &Testbed, with: ServerKind, proto: Proto) -> Result<&Session> {
        let at = match self.0.iter().position(|s| (s.0, s.1) == (with, proto)) {
            Some(at) => at,
            None => {
                let url =
                    testbed.url(with, proto).parse().map_err(|e: millrace_client::Error| anyhow!("{e}"))?;
                let session =
                    Session::open(Iozone { url, options: Options::default(), threads: 1, size: FILE })?;
                session.prepare()?;
                self.0.push((with, proto, session));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].2)
    }
}
