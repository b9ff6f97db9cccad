//! Identifiers (`rdma_cm_id`) of the RDMA connection manager.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    time::Duration,
};

use socket2::{SockAddr, SockAddrStorage};

use super::{
    context,
    ffi::{Libraries, cm::*, verbs::*},
};

/// Converts the result of a call of librdmacm.
fn check(rc: i32) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Converts a socket address stored by the connection manager, an IPv4-mapped one to IPv4.
fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    // SAFETY: both have the C type `sockaddr_storage`.
    unsafe { *copy.view_as::<libc::sockaddr_storage>() = *storage };
    // SAFETY: a complete `sockaddr_storage`, zeroed and then filled by the connection manager.
    unsafe { SockAddr::new(copy, size_of::<libc::sockaddr_storage>() as libc::socklen_t) }
        .as_socket()
        .map(millrace_runtime::canonical)
}

/// Milliseconds for the connection manager, at least 1.
fn millis(d: Duration) -> i32 {
    i32::try_from(d.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Parameters of a connection request or of its acceptance.
pub(super) struct Parameters<'a> {
    pub(super) private_data: &'a [u8],
    /// RDMA Reads of the peer that this end serves at the same time.
    pub(super) ird: u8,
    /// RDMA Reads that this end has in flight.
    pub(super) ord: u8,
}

impl Parameters<'_> {
    /// The C structure, valid while the private data is.
    fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // Longer private data was rejected before.
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.ird,
            initiator_depth: self.ord,
            flow_control: 0,
            retry_count: 7,
            // 7 means without limit: the peer posts its receives when it can.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// An event of an identifier.
pub(super) struct Event {
    /// `RDMA_CM_EVENT_*`.
    pub(super) kind: u32,
    /// 0, a negative errno, or the reason of an InfiniBand rejection.
    pub(super) status: i32,
    /// The peer's private data; InfiniBand pads it with zeros.
    pub(super) private_data: Vec<u8>,
    /// RDMA Reads that this end may have to serve at the same time, and may have in flight.
    pub(super) ird: u8,
    pub(super) ord: u8,
    /// The identifier of a connection request.
    pub(super) request: Option<CmId>,
}

/// The event channel of an identifier. Must be destroyed after the identifier.
struct Channel {
    libraries: &'static Libraries,
    channel: NonNull<rdma_event_channel>,
}

impl Channel {
    fn new(libraries: &'static Libraries) -> io::Result<Self> {
        // SAFETY: no preconditions.
        let channel = unsafe { (libraries.cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { libraries, channel })
    }

    fn as_ptr(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: owned by this value, and no identifier uses it.
        unsafe { (self.libraries.cm.rdma_destroy_event_channel)(self.as_ptr()) };
    }
}

/// An identifier with its own event channel. Destroyed on drop, which notifies the peer.
pub(super) struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: Channel,
}

// SAFETY: librdmacm may be called from any thread; only the owner of the identifier calls it.
unsafe impl Send for CmId {}

impl CmId {
    /// Creates an identifier for reliable connections.
    pub(super) fn new(libraries: &'static Libraries) -> io::Result<Self> {
        let channel = Channel::new(libraries)?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is valid; `id` is valid for writing.
        check(unsafe {
            (libraries.cm.rdma_create_id)(channel.as_ptr(), &mut id, ptr::null_mut(), RDMA_PS_TCP)
        })?;
        let id = NonNull::new(id).ok_or(io::ErrorKind::Other)?;
        Ok(Self { id, channel })
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.channel.libraries
    }

    /// Pointer for the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The open device to which the identifier is bound; it stays open as long as `self` exists.
    pub(super) fn context(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the identifier is valid.
        NonNull::new(unsafe { (*self.as_ptr()).verbs })
    }

    /// The name of the device to which the identifier is bound.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the context is open.
        self.context().map(|c| unsafe { context::device_name(c) })
    }

    /// The port of the device, from 1.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: the identifier is valid.
        unsafe { (*self.as_ptr()).port_num }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid.
        address(unsafe { &(*self.as_ptr()).route.addr.src_addr })
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid.
        address(unsafe { &(*self.as_ptr()).route.addr.dst_addr })
    }

    /// A duplicate of the event channel's descriptor, for polling.
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor is open as long as the channel exists.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }.try_clone_to_owned()
    }

    /// Binds the identifier to a local address, and to the device that has the address, if any.
    pub(super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = SockAddr::from(addr);
        // SAFETY: the identifier is valid; the library copies the address, whose length follows from its
        // family.
        check(unsafe { (self.libraries().cm.rdma_bind_addr)(self.as_ptr(), addr.as_ptr().cast_mut().cast()) })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.libraries().cm.rdma_listen)(self.as_ptr(), backlog) })
    }

    /// Starts to resolve `addr` to a device.
    pub(super) fn resolve_addr(&self, addr: SocketAddr, limit: Duration) -> io::Result<()> {
        let addr = SockAddr::from(addr);
        let to = addr.as_ptr().cast_mut().cast();
        // SAFETY: as in `bind`; without a source address the kernel chooses one.
        check(unsafe {
            (self.libraries().cm.rdma_resolve_addr)(self.as_ptr(), ptr::null_mut(), to, millis(limit))
        })
    }

    pub(super) fn resolve_route(&self, limit: Duration) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.libraries().cm.rdma_resolve_route)(self.as_ptr(), millis(limit)) })
    }

    pub(super) fn connect(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        // SAFETY: the identifier is valid; the library copies the parameters.
        check(unsafe { (self.libraries().cm.rdma_connect)(self.as_ptr(), &mut parameters.raw()) })
    }

    pub(super) fn accept(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        // SAFETY: as above.
        check(unsafe { (self.libraries().cm.rdma_accept)(self.as_ptr(), &mut parameters.raw()) })
    }

    pub(super) fn reject(&self) -> io::Result<()> {
        // SAFETY: the identifier is valid; no private data.
        check(unsafe { (self.libraries().cm.rdma_reject)(self.as_ptr(), ptr::null(), 0) })
    }

    /// Closes the connection, notifies the peer, and stops the queue pair.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.libraries().cm.rdma_disconnect)(self.as_ptr()) })
    }

    /// Returns the next event, if any (the descriptor must be non-blocking).
    pub(super) fn next_event(&mut self) -> io::Result<Event> {
        let cm = &self.libraries().cm;
        let mut event = ptr::null_mut();
        // SAFETY: the channel is valid; `event` is valid for writing.
        check(unsafe { (cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) })?;
        // SAFETY: the library returned an event, which is valid until it is acknowledged. Events of
        // connections contain a `rdma_conn_param` with the length of its private data.
        let (kind, status, id, ird, ord, private_data) = unsafe {
            let e = &*event;
            let data = NonNull::new(e.param.private_data.cast_mut().cast::<u8>());
            let data = data.map(|d| std::slice::from_raw_parts(d.as_ptr(), e.param.private_data_len.into()));
            let data = data.unwrap_or_default().to_vec();
            (e.event, e.status, e.id, e.param.responder_resources, e.param.initiator_depth, data)
        };
        // SAFETY: acknowledged once, and not accessed afterwards.
        unsafe { (cm.rdma_ack_cm_event)(event) };
        let request = match kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => NonNull::new(id).map(|id| self.migrate(id)).transpose()?,
            _ => None,
        };
        Ok(Event { kind, status, private_data, ird, ord, request })
    }

    /// Moves the identifier of a connection request, which is created on the listener's channel, to its own
    /// channel.
    fn migrate(&self, id: NonNull<rdma_cm_id>) -> io::Result<Self> {
        let cm = &self.libraries().cm;
        let moved = Channel::new(self.libraries()).and_then(|channel| {
            // SAFETY: both are valid, and no event of the identifier is held.
            check(unsafe { (cm.rdma_migrate_id)(id.as_ptr(), channel.as_ptr()) })?;
            Ok(channel)
        });
        match moved {
            Ok(channel) => Ok(Self { id, channel }),
            Err(e) => {
                // SAFETY: no other code has the identifier.
                unsafe { (cm.rdma_destroy_id)(id.as_ptr()) };
                Err(e)
            }
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: owned by this value; its queue pair is destroyed, no event of it is held, its channel is
        // destroyed later.
        unsafe { (self.libraries().cm.rdma_destroy_id)(self.as_ptr()) };
    }
}
