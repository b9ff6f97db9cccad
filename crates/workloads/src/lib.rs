//! The workloads of the papers beside IOzone. Each type documents how it corresponds to the original program.
//!
//! They implement [`millrace_bench::workload::Workload`] and run in a directory of a server or of the local file system
//! ([`millrace_bench::workload::run`]), or on simulated machines (crate `millrace-simlab`).

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
