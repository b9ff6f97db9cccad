//! Measurements and their figures.
//!
//! A benchmark prints a table; it does not assert times. Every result is a [`Figure`], so that all benchmarks
//! have the same columns and JSON keys. Processor time is measured per process ([`millrace_program::cpu`]), so the peer of a
//! measurement runs in a separate process ([`child`]).

pub mod breakdown;
pub mod child;
pub mod command;
pub mod compare;
pub mod connections;
pub mod disk;
pub mod embedded;
mod endpoint;
mod error;
pub mod figure;
pub mod iozone;
pub mod mounted;
pub mod no_halt;
mod placement;
pub mod random;
pub mod raw;
pub mod resident;
mod scrape;
pub mod servers;
pub mod stats;
pub mod wire_bytes;
pub mod workload;

pub use endpoint::At;
pub use error::BenchError;
pub use figure::Figure;
pub use scrape::ServerCounters;

/// The version of NFS of a benchmark whose URL and options state none, so that figures stay comparable.
const VERSION: millrace_client::Version = millrace_client::Version::V3;
