//! Identifiers of the RDMA connection manager: its sockets.

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

/// Turns the connection manager's answer into an error.
fn check(rc: i32) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket address that the connection manager keeps.
fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    // SAFETY: both are the C library's `sockaddr_storage`.
    unsafe { *copy.view_as::<libc::sockaddr_storage>() = *storage };
    // SAFETY: a whole `sockaddr_storage`, which the connection manager has zeroed and then filled.
    unsafe { SockAddr::new(copy, size_of::<libc::sockaddr_storage>() as libc::socklen_t) }.as_socket()
}

/// Milliseconds for the connection manager, at least one.
fn millis(d: Duration) -> i32 {
    i32::try_from(d.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// What a connection is asked for, or accepted, with.
pub(super) struct Parameters<'a> {
    pub(super) private_data: &'a [u8],
    /// RDMA Reads of the peer that we serve at once.
    pub(super) ird: u8,
    /// RDMA Reads that we have in flight.
    pub(super) ord: u8,
}

impl Parameters<'_> {
    /// Valid while the private data is.
    fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // What is longer was refused before.
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.ird,
            initiator_depth: self.ord,
            flow_control: 0,
            retry_count: 7,
            // 7 is for ever: the peer has its receives posted when it can.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// Something that happened to an identifier.
pub(super) struct Event {
    /// `RDMA_CM_EVENT_*`.
    pub(super) kind: u32,
    /// 0, a negative error number, or (when rejected over InfiniBand) the reason.
    pub(super) status: i32,
    /// The peer's; InfiniBand fills it up with zeros.
    pub(super) private_data: Vec<u8>,
    /// RDMA Reads that we may have to serve at once, and may have in flight.
    pub(super) ird: u8,
    pub(super) ord: u8,
    /// Of a connection request: its identifier.
    pub(super) request: Option<CmId>,
}

/// The event channel of an identifier. It must not go before the identifier.
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
        // SAFETY: ours, and no identifier uses it any more.
        unsafe { (self.libraries.cm.rdma_destroy_event_channel)(self.as_ptr()) };
    }
}

/// An identifier with an event channel of its own. Destroyed on drop; the peer is told.
pub(super) struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: Channel,
}

// SAFETY: librdmacm may be called from any thread; whoever has the identifier is the only one who calls it.
unsafe impl Send for CmId {}

impl CmId {
    /// A fresh identifier for reliable connections.
    pub(super) fn new(libraries: &'static Libraries) -> io::Result<Self> {
        let channel = Channel::new(libraries)?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel lives; `id` is valid for writing.
        check(unsafe {
            (libraries.cm.rdma_create_id)(channel.as_ptr(), &mut id, ptr::null_mut(), RDMA_PS_TCP)
        })?;
        let id = NonNull::new(id).ok_or(io::ErrorKind::Other)?;
        Ok(Self { id, channel })
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.channel.libraries
    }

    /// For the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The open device that it is bound to; it stays open as long as `self` lives.
    pub(super) fn context(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the identifier lives.
        NonNull::new(unsafe { (*self.as_ptr()).verbs })
    }

    /// The name of the device that it is bound to.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the context is open.
        self.context().map(|c| unsafe { context::device_name(c) })
    }

    /// The port of the device, from 1.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: the identifier lives.
        unsafe { (*self.as_ptr()).port_num }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives.
        address(unsafe { &(*self.as_ptr()).route.addr.src_addr })
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives.
        address(unsafe { &(*self.as_ptr()).route.addr.dst_addr })
    }

    /// Another descriptor of its event channel, to be watched.
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        // SAFETY: the channel has its descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }.try_clone_to_owned()
    }

    /// Binds it to a local address, and so to a device, if the address is one's.
    pub(super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = SockAddr::from(addr);
        // SAFETY: the identifier lives; the library copies the address, whose family says how long it is.
        check(unsafe { (self.libraries().cm.rdma_bind_addr)(self.as_ptr(), addr.as_ptr().cast_mut().cast()) })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.libraries().cm.rdma_listen)(self.as_ptr(), backlog) })
    }

    /// Begins to look for the device and the way to `addr`.
    pub(super) fn resolve_addr(&self, addr: SocketAddr, limit: Duration) -> io::Result<()> {
        let addr = SockAddr::from(addr);
        let to = addr.as_ptr().cast_mut().cast();
        // SAFETY: as in `bind`; without a source address the kernel chooses one.
        check(unsafe {
            (self.libraries().cm.rdma_resolve_addr)(self.as_ptr(), ptr::null_mut(), to, millis(limit))
        })
    }

    pub(super) fn resolve_route(&self, limit: Duration) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.libraries().cm.rdma_resolve_route)(self.as_ptr(), millis(limit)) })
    }

    pub(super) fn connect(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        // SAFETY: the identifier lives; the library copies what it is given.
        check(unsafe { (self.libraries().cm.rdma_connect)(self.as_ptr(), &mut parameters.raw()) })
    }

    pub(super) fn accept(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        // SAFETY: as above.
        check(unsafe { (self.libraries().cm.rdma_accept)(self.as_ptr(), &mut parameters.raw()) })
    }

    pub(super) fn reject(&self) -> io::Result<()> {
        // SAFETY: the identifier lives; no private data.
        check(unsafe { (self.libraries().cm.rdma_reject)(self.as_ptr(), ptr::null(), 0) })
    }

    /// Tells the peer that the connection is over, and stops the queue pair's work.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.libraries().cm.rdma_disconnect)(self.as_ptr()) })
    }

    /// The next event, if there is one (its descriptor must be non-blocking).
    pub(super) fn next_event(&mut self) -> io::Result<Event> {
        let cm = &self.libraries().cm;
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives; `event` is valid for writing.
        check(unsafe { (cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) })?;
        // SAFETY: the library gave an event, which lives until it is acknowledged. Of a connection it has a
        // `rdma_conn_param`, whose private data are as long as is said.
        let (kind, status, id, ird, ord, private_data) = unsafe {
            let e = &*event;
            let data = NonNull::new(e.param.private_data.cast_mut().cast::<u8>());
            let data = data.map(|d| std::slice::from_raw_parts(d.as_ptr(), e.param.private_data_len.into()));
            let data = data.unwrap_or_default().to_vec();
            (e.event, e.status, e.id, e.param.responder_resources, e.param.initiator_depth, data)
        };
        // SAFETY: acknowledged once, and not looked at afterwards.
        unsafe { (cm.rdma_ack_cm_event)(event) };
        let request = match kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => NonNull::new(id).map(|id| self.adopt(id)).transpose()?,
            _ => None,
        };
        Ok(Event { kind, status, private_data, ird, ord, request })
    }

    /// Gives the identifier of a connection request, which is born with the listener's channel, one of its own.
    fn adopt(&self, id: NonNull<rdma_cm_id>) -> io::Result<Self> {
        let cm = &self.libraries().cm;
        let moved = Channel::new(self.libraries()).and_then(|channel| {
            // SAFETY: both live, and no event of the identifier is held.
            check(unsafe { (cm.rdma_migrate_id)(id.as_ptr(), channel.as_ptr()) })?;
            Ok(channel)
        });
        match moved {
            Ok(channel) => Ok(Self { id, channel }),
            Err(e) => {
                // SAFETY: nobody else knows it.
                unsafe { (cm.rdma_destroy_id)(id.as_ptr()) };
                Err(e)
            }
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: ours; its queue pair is gone, no event of it is held, and its channel goes after it.
        unsafe { (self.libraries().cm.rdma_destroy_id)(self.as_ptr()) };
    }
}
