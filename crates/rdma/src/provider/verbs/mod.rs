//! RDMA adapters through rdma-core (libibverbs and librdmacm): InfiniBand, RoCE, iWARP, and the kernel's software
//! devices. The libraries are loaded when they are first needed.
//!
//! ```text
//! devices   which devices there are, what they can do, why they cannot be used
//! context   devices as libibverbs opens them        (unsafe)
//! cm        identifiers of the connection manager    (unsafe)
//! ffi       the foreign functions and structures     (unsafe)
//! ```

mod cm;
mod context;
mod devices;
mod ffi;

pub use devices::{Details, Device, Features, Gid, Limits, Port, Transport, Unusable, device_of, devices};
pub use ffi::LoadError;
