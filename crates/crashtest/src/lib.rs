//! Crash-consistency checking for NFS clients and servers.
//!
//! Parts that tests combine:
//!
//! - [`Disk`]: a file system in (virtual) time whose UNSTABLE data is lost by a crash, any subset of it, torn at sector
//!   granularity.
//! - [`Model`]: which bytes a read may return, given when writes and truncations began and ended.
//! - [`Workload`]: random overlapping writes, truncations, reads and commits by several writers on several files, on any
//!   [`Subject`]: the client library ([`Library`]), or system calls on a mounted directory ([`Posix`]).
//! - [`scene`]: a server and its clients on simulated hosts.
//! - [`unstable`]: the workload on such a scene, whose disk loses data.
//! - [`seeds`]: tests that run many seeds.
//!
//! The rule that the model checks is the one of RFC 1813 section 4.8 and of POSIX: data that was written before a
//! successful commit (fsync) stays, and no older data of the same range takes its place, whatever the server and the
//! network did in between.

mod disk;
mod library;
mod model;
mod posix;
mod random;
pub mod scene;
pub mod seeds;
pub mod unstable;
mod workload;

pub use disk::{Disk, DiskConfig};
pub use library::Library;
pub use model::{Begun, Mismatch, Model, WriteId, pattern};
pub use posix::Posix;
pub use random::Random;
pub use workload::{Counts, Step, Subject, Workload};
