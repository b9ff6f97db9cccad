//! Workloads on any directory: of a server, over any transport and provider, or of the local file system.
//!
//! Every operation is timed, so the lines of a report are kinds of operations: their rate, their data rate, the median
//! and the 99th percentile of their latency. [`Latency`] is the workload of this crate; the trait [`Workload`] is
//! implemented by others.

mod crew;
mod directory;
mod latency;
mod report;
mod tally;

use std::future::Future;

pub use crew::{Part, Target, run, run_concurrently};
pub use directory::{Data, Directory};
pub use latency::Latency;
pub use report::table;
pub use tally::{Began, CpuMeter, HostCpu, Tally};

use crate::BenchError;

/// A workload.
pub trait Workload: Sync {
    /// Its name: that of its command.
    fn name(&self) -> &'static str;

    /// The number of members that run it together, each with its own connection.
    fn members(&self) -> usize {
        1
    }

    /// The number of client hosts over which the members are spread where hosts are simulated.
    fn client_hosts(&self) -> usize {
        1
    }

    /// The largest number of operations that a member has in flight.
    fn outstanding(&self) -> usize {
        1
    }

    /// An upper estimate of the bytes of data that it has in the directory. A memory export may need twice as much.
    fn bytes(&self) -> u64;

    /// Runs the part of one member in `directory`, which all members share, and counts its operations in `tally`.
    ///
    /// # Errors
    /// When an operation fails, or the parameters of the workload do not fit together.
    fn member(
        &self,
        directory: &Directory,
        part: &Part,
        tally: &mut Tally,
    ) -> impl Future<Output = Result<(), BenchError>>;
}
