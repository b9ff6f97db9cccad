//! The simulated figures that correspond to the figures of the table.

use millrace_bench::{BenchError, Figure as Measurement};
use millrace_client::Strategy;
use millrace_oncrpc::Stage;
use millrace_read_read::Design;

use crate::{
    Setting,
    calibration::Testbed,
    claims::{
        c07,
        c09::{self, Network},
        c10, c13, c14,
    },
    lab::{Iozone, Measured, share, value},
};

/// Which of a parameter's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The one that sets it.
    Point,
    /// The one for the cross-check.
    Alternative,
}

/// The number of threads of the papers' curves.
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Files of the source tree for the cross-check by untar, whose time for each file depends little on their number.
const UNTAR_FILES: u32 = 2000;

/// The simulated figure of the parameter `name` of `testbed`, or `None` if the table has none.
pub(super) fn simulated(
    (testbed, name): (Testbed, &str),
    choice: Choice,
    setting: Setting,
) -> Result<Option<f64>, BenchError> {
    let opensolaris = || Iozone::new("sdr-opensolaris", setting);
    let point = choice == Choice::Point;
    let side: fn(&Measured) -> &Measurement = if point { |m| &m.read } else { |m| &m.write };
    let figure = match (testbed, name) {
        (Testbed::OpenSolaris, "tmpfs.byte_ps") => {
            peak(&opensolaris()?.registration(Strategy::Dynamic, Strategy::Cache), side)?
        }
        (Testbed::OpenSolaris, "registration.table_ns") => {
            registration(&opensolaris()?, if point { 1 } else { 8 })?
        }
        // The figure and its alternative are of the same quantity.
        (Testbed::OpenSolaris, "tmpfs.fresh_page_ns") => peak(&opensolaris()?, |m| &m.read)?,
        (Testbed::OpenSolaris, "tcp.segment_ns") if point => {
            let rdma = Iozone { record: 64 << 10, ..opensolaris()?.design(Design::ReadRead) };
            let rate = |iozone: Iozone| value(iozone.run(1)?.write.mb_per_s);
            rate(rdma.clone())? / rate(rdma.over_tcp())?
        }
        (Testbed::OpenSolaris, "tcp.segment_ns") => {
            c10::untar_ratio(if setting.small { 200 } else { UNTAR_FILES }, setting)?
        }
        (Testbed::LinuxOpterons, "registration.table_ns") => {
            peak(&c07::iozone(Strategy::Dynamic, setting)?, side)?
        }
        (Testbed::LinuxXeons, "page_cache.byte_ps") if point => clients(Network::Rdma, 4, setting)?,
        (Testbed::LinuxXeons, "page_cache.byte_ps") => c09::read(Network::Rdma, 8, 7, setting)?,
        (Testbed::LinuxXeons, "tcp.segment_ns") => {
            clients(Network::Ipoib, if point { 8 } else { 4 }, setting)?
        }
        (Testbed::Solaris, "tcp.segment_ns") if point => {
            let tcp = Iozone { record: 256 << 10, ..Iozone::new("gige-2003", setting)?.over_tcp() };
            let read = |outstanding| value(Iozone { outstanding, ..tcp.clone() }.run(1)?.read.mb_per_s);
            most([1, 2, 4, 8, 16].map(read))?
        }
        (Testbed::WanDatagram, "tcp.segment_ns") => {
            value(side(&c13::nfs(0.2, setting)?.over_tcp().run(1)?).mb_per_s)?
        }
        (Testbed::WanConnected, "tcp.segment_ns") => {
            value(c14::nfs(if point { 32 << 10 } else { 1 << 20 }, setting)?.run(1)?.read.mb_per_s)?
        }
        _ => return Ok(None),
    };
    Ok(Some(figure))
}

fn most(values: impl IntoIterator<Item = Result<f64, BenchError>>) -> Result<f64, BenchError> {
    values.into_iter().try_fold(0.0, |most: f64, value| Ok(most.max(value?)))
}

/// The highest rate with any number of threads.
fn peak(iozone: &Iozone, side: fn(&Measured) -> &Measurement) -> Result<f64, BenchError> {
    most(THREADS.map(|threads| value(side(&iozone.run(threads)?).mb_per_s)))
}

/// The highest rate with any number of clients.
fn clients(network: Network, gigabytes: u64, setting: Setting) -> Result<f64, BenchError> {
    most((1..=8).map(|clients| c09::read(network, gigabytes, clients, setting)))
}

/// The share of server registration in the time of a READ, in percent.
fn registration(iozone: &Iozone, threads: usize) -> Result<f64, BenchError> {
    let known = iozone.run(threads)?.read.breakdown.unwrap_or_default();
    Ok(share(&known.server.unwrap_or_default(), Stage::Registration, known.mean_us))
}
