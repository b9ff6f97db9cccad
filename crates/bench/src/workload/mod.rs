//! Workloads in a directory of a server, over any transport and provider, or of a local file system.
//!
//! Every operation is timed, so a report has a line for each kind of operation with its rate, throughput, and
//! the median and 99th percentile of its latency. This crate contains the workloads [`Latency`],
//! [`Checkpoint`], [`Loader`] and [`Metadata`]; other crates implement the trait [`Workload`].

mod checkpoint;
mod directory;
mod latency;
mod loader;
mod members;
mod metadata;
mod report;
mod tally;

use std::future::Future;

pub use checkpoint::{Checkpoint, Model};
pub use directory::{Data, Directory};
pub use latency::Latency;
pub use loader::{Loader, Training};
pub(crate) use members::proto_of;
pub use members::{Part, Target, run, run_concurrently};
pub use metadata::Metadata;
pub use report::table;
pub use tally::{Began, CpuMeter, HostCpu, Tally};

use crate::BenchError;

/// A workload.
pub trait Workload: Sync {
    /// Name of the workload and of its command.
    fn name(&self) -> &'static str;

    /// Number of members, each with its own connection.
    fn members(&self) -> usize {
        1
    }

    /// Number of simulated client hosts for the members.
    fn client_hosts(&self) -> usize {
        1
    }

    /// Maximum number of operations in flight of a member.
    fn outstanding(&self) -> usize {
        1
    }

    /// Upper estimate of the data in the directory in bytes. A memory export may need twice as much.
    fn bytes(&self) -> u64;

    /// Runs the part of one member in `directory`, which all members share, and counts its operations in
    /// `tally`.
    ///
    /// # Errors
    /// An operation fails, or the parameters of the workload are inconsistent.
    fn member(
        &self,
        directory: &Directory,
        part: &Part,
        tally: &mut Tally,
    ) -> impl Future<Output = Result<(), BenchError>>;
}
