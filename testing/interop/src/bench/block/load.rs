//! The rows of the table: initiator, transport and load.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{
    super::{
        load::fio_figures,
        testbed::{Done, Sample},
        wire::Limit,
    },
    testbed::{DISK, Subject, Testbed, Transport},
};
use crate::program;

/// Seconds of one run of a load.
const SECONDS: u32 = 3;
/// Time limit of a load.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row(Load);

#[derive(Debug, Clone, Copy)]
enum Load {
    /// iscsi-perf on the host: random reads of 4 KiB, 16 in flight, over TCP, of a disk of this kind.
    IscsiPerf { local: bool },
    /// fio in a guest, with O_DIRECT, on a disk of the kernel's initiator.
    Kernel { transport: Transport, name: &'static str, rw: &'static str, block: usize, depth: u32 },
}

/// Every row.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = [true, false].map(|local| Row(Load::IscsiPerf { local })).to_vec();
    for transport in [Transport::Tcp, Transport::Iser] {
        for (name, rw, block, depth) in [
            ("read-512k-x8", "read", 512 << 10, 8),
            ("write-512k-x8", "write", 512 << 10, 8),
            ("random-read-4k-x16", "randread", 4096, 16),
        ] {
            rows.push(Row(Load::Kernel { transport, name, rw, block, depth }));
        }
    }
    rows
}

impl Row {
    /// `INITIATOR/TRANSPORT/LOAD`.
    pub(super) fn name(&self) -> String {
        match self.0 {
            Load::IscsiPerf { local } => {
                format!("iscsi-perf/tcp/{}/random-read-4k-x16", if local { "local" } else { "memory" })
            }
            Load::Kernel { transport, name, .. } => format!("kernel/{transport}/{name}"),
        }
    }

    /// Whether the rate is in MB/s. Otherwise it is in operations per second.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self.0, Load::Kernel { block, .. } if block > 4096)
    }

    /// Whether the load runs in a guest.
    pub(super) fn needs_guests(&self) -> bool {
        matches!(self.0, Load::Kernel { .. })
    }

    /// The throughput of the plain TCP connection in the direction of the data.
    pub(super) fn limit(&self) -> Option<Limit> {
        match self.0 {
            Load::Kernel { rw: "read", .. } => Some(Limit::FromHost),
            Load::Kernel { rw: "write", .. } => Some(Limit::ToHost),
            _ => None,
        }
    }

    /// The disk of Millrace.
    pub(super) fn millrace(&self) -> Subject {
        match self.0 {
            Load::IscsiPerf { local: true } => Subject::MillraceLocal,
            _ => Subject::MillraceMemory,
        }
    }

    /// The disk of the other target.
    pub(super) fn reference(&self) -> Subject {
        match self.0 {
            Load::IscsiPerf { local: true } => Subject::TgtLocal,
            Load::IscsiPerf { local: false } => Subject::TgtMemory,
            Load::Kernel { .. } => Subject::Lio,
        }
    }

    /// Measures the row once with the disk `subject`.
    ///
    /// # Errors
    /// When the load fails.
    pub(super) fn measure(&self, testbed: &mut Testbed, subject: Subject) -> Result<Sample> {
        match self.0 {
            Load::IscsiPerf { .. } => {
                let url = testbed.url(subject)?;
                testbed.measure(subject, |_| iscsi_perf(&url))
            }
            Load::Kernel { transport, rw, block, depth, .. } => {
                let device = testbed.device(subject, transport)?;
                testbed.measure(subject, |t| fio(t, &device, rw, (block, depth)))
            }
        }
    }
}

fn iscsi_perf(url: &str) -> Result<Done> {
    let seconds = SECONDS.to_string();
    let args = ["-m", "16", "-b", "8", "-r", "-t", &seconds, url];
    let text = program::run("iscsi-perf", &args, LOAD_LIMIT)?.ok()?.stdout;
    // The last line after the progress: `iops average 21011 (82 MB/s)`.
    let average = text.split(['\r', '\n']).rev().find_map(|l| l.trim().strip_prefix("iops average "));
    let rate = average.and_then(|l| l.split(' ').next()).context("iscsi-perf reports no average")?;
    let rate: f64 = rate.parse()?;
    Ok(Done { rate, work: rate * f64::from(SECONDS) })
}

fn fio(testbed: &mut Testbed, device: &str, rw: &str, (block, depth): (usize, u32)) -> Result<Done> {
    let script = format!(
        "fio --name=x --filename={device} --size={DISK} --rw={rw} --bs={block} --iodepth={depth} --direct=1 \
         --ioengine=libaio --runtime={SECONDS} --time_based --output-format=json"
    );
    let text = testbed.client()?.spawn(&script)?.wait(LOAD_LIMIT)?.ok()?.stdout;
    fio_figures(&text, rw, block)
}
