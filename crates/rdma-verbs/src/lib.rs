//! RDMA adapters through rdma-core (libibverbs and librdmacm): InfiniBand, RoCE, iWARP, and the kernel's software
//! devices. The libraries are loaded when they are first needed.
//!
//! ```text
//! qp        drives a connection, and judges how it ends
//!  |- queues     one connection behind its lock: what is posted, completed, exposed
//!  |   |- send, receive   work, and the memory that it keeps until it is completed   (unsafe)
//!  |   |- request         what the send queue is given                                 (unsafe)
//!  |   |- shared_receive  receives that connections share                              (unsafe)
//!  |   |- local           what is registered for our own work for some time
//!  |   |- exposures       what the peer can reach: windows or regions                (unsafe)
//!  |   |- hardware        queue pair and completion queues                           (unsafe)
//!  |- fault      what the adapter's reports mean
//! setup, listen   connecting and accepting
//! adapter   a device's limits, protection domains, registered memory                 (unsafe)
//! devices   which devices there are, what they can do, why they cannot be used
//! context   devices as libibverbs opens them                                         (unsafe)
//! cm        identifiers of the connection manager                                    (unsafe)
//! ffi       the foreign functions and structures                                     (unsafe)
//! ```
//!
//! Memory for local use is registered by the arena's span, when it is first used, without any right for a peer, and
//! stays so; or as the layers above say, for each RDMA Read and Write, or by the span as long as they keep it. A peer reaches memory
//! through a window that is bound to its own queue pair, or, where the device has no windows, through a region of
//! exactly these bytes in a protection domain that the connection has for itself. Tagged offsets are addresses.
//!
//! Registered memory is pinned, within the limit of locked memory (RLIMIT_MEMLOCK). On-demand paging is not used: of the
//! devices that this was run on only rxe offers it, and that of Linux 7.3 puts whatever does not begin a page at the
//! beginning of the page.
//!
//! Completions are polled for until there are none; then an event is asked for, and they are polled for once more. There
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
    devices::{Details, Device, Features, Gid, Limits, Port, Transport, Unusable, device_of, devices},
    ffi::LoadError,
};

/// The verbs provider.
#[derive(Clone, Copy)]
pub struct Verbs {
    libraries: &'static ffi::Libraries,
}

impl Verbs {
    /// The provider, if this machine has what it needs.
    ///
    /// # Errors
    /// What is missing, and how to get it. (Devices may come and go: that there is none is found out when one is
    /// needed.)
    pub fn new() -> Result<Self, Unusable> {
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
