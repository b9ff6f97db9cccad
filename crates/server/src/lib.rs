//! The server: exports and who may use them, NFS version 3 and MOUNT onto [`millrace_vfs::FileSystem`], transports, limits,
//! counters, life cycle.

mod backend;
#[cfg(feature = "call-counts")]
pub mod call_counts;
mod config;
mod config_file;
mod design;
mod drc;
mod error;
mod export;
mod handle;
mod hosted;
mod limits;
mod listen;
mod metrics;
mod mount3;
mod network;
mod nfs3;
mod prometheus;
mod registration;
mod reload;
mod server;
mod shard;
mod siphash;
mod size;
mod usage;

pub use backend::{Resources, open};
pub use config::{Backend, Config, ExportConfig, Identities, Squash, StageSampling};
pub use design::{ExposedBuffers, Exposure};
pub use error::ServerError;
pub use hosted::Hosted;
pub use limits::{Limits, MAX_TRANSFER, TRANSFER_UNIT};
pub use metrics::{ConnectionStats, RdmaStats, Stats};
pub use network::Network;
pub use reload::Reloaded;
pub use server::{Running, Server};
pub use size::ByteSize;
pub use usage::{LATENCY_BUCKETS, LatencyStats, UsageStats};
