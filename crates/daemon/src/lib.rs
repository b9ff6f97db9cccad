//! The parts of a server process around the NFS and iSCSI service of `millrace-server`: the configuration file (TOML), the HTTP
//! endpoint for metrics and health, and the registration with rpcbind.
//!
//! [`Config`] is read from a file or built in code; [`Daemon`] runs it. The programs `millrace` and `millrace-lab` use
//! them.

mod access;
mod config;
mod control_group;
mod daemon;
mod diagnostics;
mod endpoint;
mod error;
mod file;
mod keys;
mod negotiation;
mod observer;
mod process;
mod prometheus;
mod renewal;
mod rpcbind;
mod samples;
mod snapshot;
mod status_page;
mod target_keys;
mod values;
mod warnings;
mod words;

pub use access::{AccessError, MetricsAccess};
pub use config::Config;
pub use daemon::Daemon;
pub use diagnostics::Diagnostic;
pub use error::DaemonError;
pub use values::listening_address;
pub use warnings::RecentWarnings;
