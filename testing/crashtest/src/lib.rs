//! Crash-consistency checking for NFS clients and servers.
//!
//! The parts that tests combine:
//!
//! - [`Disk`]: a file system in (virtual) time that loses a random part of its UNSTABLE data in a crash, torn
//!   at sector granularity.
//! - [`Model`]: the bytes that a read may return, derived from the start and end times of writes and
//!   truncations.
//! - [`Workload`]: random overlapping writes, truncations, reads and commits by several writers on several
//!   files, on any [`Subject`]: the client library ([`Library`]), or system calls on a mounted directory
//!   ([`Posix`]).
//! - `cluster`: a server and its clients on simulated hosts.
//! - `unstable`: the workload on such a cluster, whose disk loses data.
//! - `lost_locks`: owners of locks on such a cluster, who lose them.
//! - `seeds`: tests that run many seeds.
//!
//! The last four need the Cargo feature `simulated`.
//!
//! The model checks the rule of RFC 1813 section 4.8 and of POSIX: data that was written before a successful
//! commit (fsync) persists, and is not replaced by older data of the same range, regardless of failures of
//! the server and the network.

#[cfg(feature = "simulated")]
pub mod cluster;
mod disk;
mod library;
#[cfg(feature = "simulated")]
pub mod lost_locks;
mod model;
mod posix;
mod random;
#[cfg(feature = "simulated")]
pub mod seeds;
#[cfg(feature = "simulated")]
pub mod unstable;
mod workload;

pub use disk::{Disk, DiskConfig};
pub use library::Library;
pub use model::{Mismatch, Model, Operation, WriteId, pattern};
pub use posix::Posix;
pub use random::Random;
pub use workload::{Counts, Step, Subject, Workload};
