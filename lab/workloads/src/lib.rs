//! The workloads of the papers other than IOzone. The documentation of each type describes how it corresponds
//! to the original program.
//!
//! The workloads implement [`millrace_bench::workload::Workload`]. They run in a directory of a server or of
//! the local file system ([`millrace_bench::workload::run`]), or on simulated machines (crate
//! `millrace-simlab`).

mod btio;
mod clients;
mod fileop;
mod oltp;
mod postmark;
mod sources;
mod tile;

pub use btio::{Btio, Class};
pub use clients::Clients;
pub use fileop::Fileop;
pub use oltp::Oltp;
pub use postmark::Postmark;
pub use sources::{Compile, Sources, Untar};
pub use tile::Tile;
