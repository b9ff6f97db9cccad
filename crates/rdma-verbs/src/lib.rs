//! RDMA adapters through rdma-core (libibverbs and librdmacm): InfiniBand, RoCE, iWARP, and the kernel's
//! software devices. The libraries are loaded on first use.
//!
//! ```text
//! qp        drives a connection and handles its end
//!  |- queues     the state of a connection behind its lock: posted work, completions, exposed memory
//!  |   |- send, receive   work, and the memory that it uses until its completion         (unsafe)
//!  |   |- request         work requests of the send queue                               (unsafe)
//!  |   |- shared_receive  shared receive queues                                         (unsafe)
//!  |   |- local           temporary registrations for local use
//!  |   |- exposures       memory that the peer can access: windows or regions           (unsafe)
//!  |   |- hardware        queue pair and completion queues                              (unsafe)
//!  |- fault      errors for completion statuses and failed calls
//! setup, listen   connecting and accepting
//! adapter   a device's limits, protection domains, registered memory                   (unsafe)
//! devices   list of devices, their capabilities, reasons why the provider is unavailable
//! context   devices opened through libibverbs                                           (unsafe)
//! cm        identifiers of the connection manager                                       (unsafe)
//! ffi       foreign functions and structures                                            (unsafe)
//! ```
//!
//! Memory for local use is registered by arena span at its first use, permanently and without remote access,
//! or as the upper layers request: for each RDMA Read and Write, or by span for as long as they need it. A
//! peer accesses memory through a window that is bound to its queue pair or, if the device has no windows,
//! through a region of exactly these bytes in a protection domain of this connection only. Tagged offsets are
//! addresses.
//!
//! Registered memory is pinned, within the limit of locked memory (RLIMIT_MEMLOCK). On-demand paging is not
//! used: of the tested devices only rxe supports it, and rxe of Linux 7.3 places data that does not begin at
//! a page boundary at the beginning of the page.
//!
//! The completion queues are polled until they are empty; then an event is requested, and they are polled
//! once more. There is no busy waiting, because one connection must not block the shard that it shares with
//! others.
//! is no spinning in between: one connection must not hold the shard that it shares with others.

mod adapter;
mod cm;
mod context;
mod devices;
mod exposures;
mod fault;
mod ffi;
mod hardware;
mod listen;
mod local;
mod qp;
mod queues;
mod receive;
mod request;
mod send;
mod setup;
mod shared_receive;

use std::net::SocketAddr;

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Listener, Provider, QueuePair};
use millrace_runtime::{BoxFuture, RuntimeRef};

#[doc(hidden)]
pub use self::adapter::trust_rxe_windows;
pub use self::{
    devices::{Details, Device, Features, Gid, Limits, Port, Transport, VerbsError, device_of, devices},
    ffi::LoadError,
};

/// The verbs provider.
#[derive(Clone, Copy)]
pub struct Verbs {
    libraries: &'static ffi::Libraries,
}

impl Verbs {
    /// Creates the provider, if its requirements are met.
    ///
    /// # Errors
    /// [`VerbsError`]: what is missing, and how to install it. (The absence of devices is reported when one is
    /// needed, because devices can be added at any time.)
    pub fn new() -> Result<Self, VerbsError> {
        Ok(Self { libraries: devices::usable()? })
    }
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn can_be_invalidated(&self, peer: SocketAddr) -> bool {
        setup::has_windows(self.libraries, peer)
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(setup::connect(self.libraries, rt, arena, addr, params))
    }

    fn listen(&self, rt: RuntimeRef, addr: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(listen::VerbsListener::bind(self.libraries, rt, addr)?))
    }
}
