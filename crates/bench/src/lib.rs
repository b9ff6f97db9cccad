//! Measurements and figures.
//!
//! Benchmarks are programs whose output is a table; nothing here asserts a time. Every figure is a [`Figure`], so
//! that all benches print the same columns and the same JSON keys. Processor time is taken per process ([`cpu`]),
//! which is why the peer of a measurement runs in a process of its own ([`child`]).

mod at;
pub mod breakdown;
pub mod child;
pub mod compare;
pub mod cpu;
pub mod embedded;
mod error;
pub mod figure;
pub mod iozone;
pub mod mounted;
pub mod random;
pub mod raw;
pub mod samples;
mod scrape;
pub mod stats;
pub mod table;
pub mod units;
pub mod workload;

pub use at::At;
pub use error::BenchError;
pub use figure::Figure;
pub use scrape::ServerCounters;
