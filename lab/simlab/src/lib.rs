//! *Simulated* machines: a server host and client hosts of one profile, in virtual time.
//!
//! Client and server are the real ones. Time, CPUs, adapters and links are simulated ([`millrace_rdma_sim`]),
//! and the same seed produces the same figures. All figures are marked as simulated. [`SimulatedIozone`] runs
//! IOzone, [`simulate`] runs any workload, [`SimulatedDisk`] reads and writes a disk over iSCSI and iSER, and [`Wan`] repeats the measurements of WAN 2008.

mod disk;
mod hosts;
mod iozone;
mod machines;
mod raw;
mod storage;
mod wan;
mod workload;

pub use disk::SimulatedDisk;
pub use hosts::{Hosts, Spent};
pub use iozone::SimulatedIozone;
pub use machines::{Machines, Simulation, server_strategy};
pub use raw::{Operation, Raw};
pub use storage::{KMEM_MAXBUF, LockedWork, Lookup, Raid, Storage, Tmpfs};
pub use wan::{Wan, WanFigure};
pub use workload::simulate;
