//! Identifiers of the RDMA connection manager.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    io,
    net::SocketAddr,
    ptr::{self, NonNull},
};

use socket2::SockAddr;

use super::{
    context,
    ffi::{Libraries, cm::*},
};

/// Turns the connection manager's answer into an error.
fn check(rc: i32) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An identifier (the connection manager's socket) with an event channel of its own.
pub(super) struct CmId {
    libraries: &'static Libraries,
    channel: NonNull<rdma_event_channel>,
    id: NonNull<rdma_cm_id>,
}

impl CmId {
    /// A fresh identifier for reliable connections.
    pub(super) fn new(libraries: &'static Libraries) -> io::Result<Self> {
        // SAFETY: no preconditions.
        let channel = NonNull::new(unsafe { (libraries.cm.rdma_create_event_channel)() })
            .ok_or_else(io::Error::last_os_error)?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel was just made; `id` is valid for writing.
        let made = check(unsafe {
            (libraries.cm.rdma_create_id)(channel.as_ptr(), &mut id, ptr::null_mut(), RDMA_PS_TCP)
        });
        match (made, NonNull::new(id)) {
            (Ok(()), Some(id)) => Ok(Self { libraries, channel, id }),
            (made, _) => {
                // SAFETY: made above, and no identifier uses it.
                unsafe { (libraries.cm.rdma_destroy_event_channel)(channel.as_ptr()) };
                Err(made.err().unwrap_or_else(|| io::ErrorKind::Other.into()))
            }
        }
    }

    /// Binds it to a local address, and so to a device, if the address is one's.
    pub(super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = SockAddr::from(addr);
        // SAFETY: the identifier lives; the library copies the address, whose family says how long it is.
        check(unsafe {
            (self.libraries.cm.rdma_bind_addr)(self.id.as_ptr(), addr.as_ptr().cast_mut().cast())
        })
    }

    /// The name of the device that it is bound to.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the identifier lives, and with it the context that it is bound to.
        unsafe { NonNull::new((*self.id.as_ptr()).verbs).map(|c| context::device_name(c)) }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: both are ours; the identifier goes before its channel, and no event of it is held.
        unsafe {
            (self.libraries.cm.rdma_destroy_id)(self.id.as_ptr());
            (self.libraries.cm.rdma_destroy_event_channel)(self.channel.as_ptr());
        }
    }
}
