//! Exposed memory of a connection, by windows or by regions.

#![allow(unsafe_code)] // Registers memory for the peer.

use std::{
    collections::{HashMap, VecDeque},
    io,
};

use millrace_buffer::SpanRef;
use millrace_rdma::{Access, ExposeError, Memory, RegistrationKind};

use super::{
    adapter::{Protection, Registration, Window},
    ffi::verbs::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE},
    request::Binding,
};

/// The verbs access flag for `access`.
const fn right(access: Access) -> u32 {
    match access {
        Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
        Access::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
    }
}

/// A contiguous piece of memory.
pub(super) struct Piece<'a> {
    pub(super) span: &'a SpanRef,
    pub(super) addr: usize,
    pub(super) len: usize,
}

impl<'a> Piece<'a> {
    /// Returns `memory` as one piece, if it is contiguous and not empty.
    pub(super) fn of(memory: &'a Memory) -> Option<Self> {
        match memory {
            Memory::Owned(b) => Some(Self { span: b.span(), addr: b.address(), len: b.len() }),
            Memory::Shared(views) => {
                let first = views.iter().next().filter(|_| views.pieces().nth(1).is_none())?;
                Some(Self { span: first.span(), addr: first.address(), len: views.len() })
            }
        }
        .filter(|p| p.len > 0)
    }
}

/// How a region is exposed.
pub(super) enum By {
    /// By a window: the memory is registered for local access, and a bind request grants access to a part of
    /// it through this queue pair only. The flag states whether the window belongs to the reserve.
    Window(Window, bool),
    /// By a region: exactly these bytes are registered, with one access right.
    Region(#[allow(dead_code)] Registration), // Dropping it deregisters the memory.
    /// The memory is no longer exposed, because the connection ends.
    Nothing,
}

/// Exposed memory.
pub(super) struct Exposed {
    // Dropped before the memory.
    pub(super) by: By,
    pub(super) memory: Memory,
    /// False after the peer has invalidated the tag.
    pub(super) valid: bool,
}

/// The exposures of a connection, by tag.
pub(super) struct Exposures {
    by_tag: HashMap<u32, Exposed>,
    bytes: usize,
    /// Whether the device has windows. If so, memory is exposed only by windows, because connections share a
    /// protection domain.
    windows: bool,
    /// Unbound windows of the reserve. The least recently used one is first, so that tags are reused as late
    /// as possible.
    idle: VecDeque<Window>,
    reserved: usize,
}

fn bind(
    mut window: Window,
    reserved: bool,
    protection: &Protection,
    piece: &Piece<'_>,
    access: Access,
) -> io::Result<(u32, By, Option<Binding>)> {
    let (_, mr) = protection.span(piece.span)?;
    let rkey = window.next_rkey();
    let (mw, access) = (window.as_ptr(), right(access));
    let binding = Binding { mw, mr, addr: piece.addr, len: piece.len, access, rkey };
    Ok((rkey, By::Window(window, reserved), Some(binding)))
}

fn register(
    protection: &Protection,
    piece: &Piece<'_>,
    access: Access,
) -> io::Result<(u32, By, Option<Binding>)> {
    // An adapter requires local write access for remote write access.
    let local = if access == Access::RemoteWrite { IBV_ACCESS_LOCAL_WRITE } else { 0 };
    // SAFETY: the memory becomes part of an `Exposed`, which drops the registration first.
    let region = unsafe { protection.register(piece.addr, piece.len, local | right(access)) }?;
    Ok((region.rkey(), By::Region(region), None))
}

impl Exposures {
    /// Creates an empty table. `windows`: whether the device has windows.
    pub(super) fn new(windows: bool) -> Self {
        Self { by_tag: HashMap::new(), bytes: 0, windows, idle: VecDeque::new(), reserved: 0 }
    }

    /// Allocates windows at the first call, and returns their number.
    pub(super) fn reserve(&mut self, protection: &Protection, count: usize) -> usize {
        if self.windows && self.reserved == 0 {
            self.idle.extend((0..count).map_while(|_| protection.window().ok()));
            self.reserved = self.idle.len();
        }
        self.reserved
    }

    /// Exposes `memory`. Returns the tag, the address, and a bind request, which must be posted before a Send
    /// that conveys the tag.
    pub(super) fn expose(
        &mut self,
        protection: &Protection,
        by: RegistrationKind,
        memory: Memory,
        access: Access,
    ) -> Result<(u32, u64, Option<Binding>), ExposeError> {
        let Some(piece) = Piece::of(&memory) else {
            return Err(ExposeError { memory, reason: "the region is empty, or in several pieces" });
        };
        let result = match by {
            RegistrationKind::Region if !self.windows => register(protection, &piece, access),
            RegistrationKind::Region => {
                protection.window().and_then(|w| bind(w, false, protection, &piece, access))
            }
            RegistrationKind::Window => match self.idle.pop_front() {
                Some(w) => bind(w, true, protection, &piece, access),
                None => return Err(ExposeError { memory, reason: "no free window in the reserve" }),
            },
            RegistrationKind::Global => {
                return Err(ExposeError {
                    memory,
                    reason: "the adapter does not support a tag for the whole arena",
                });
            }
        };
        let (addr, len) = (piece.addr as u64, piece.len);
        match result {
            Ok((tag, by, binding)) => {
                self.bytes += len;
                self.by_tag.insert(tag, Exposed { by, memory, valid: true });
                Ok((tag, addr, binding))
            }
            Err(error) => {
                tracing::warn!(%error, bytes = len, "the adapter cannot expose memory");
                Err(ExposeError {
                    memory,
                    reason: "the adapter failed to register memory or to allocate a window",
                })
            }
        }
    }

    /// Removes an exposure from the table; the caller ends the peer's access.
    pub(super) fn remove(&mut self, tag: u32) -> Option<Exposed> {
        let exposed = self.by_tag.remove(&tag)?;
        self.bytes -= exposed.memory.len();
        Some(exposed)
    }

    pub(super) fn get_mut(&mut self, tag: u32) -> Option<&mut Exposed> {
        self.by_tag.get_mut(&tag)
    }

    /// Records that the peer has invalidated a tag. Returns whether the tag is in the table.
    pub(super) fn invalidated(&mut self, tag: u32) -> bool {
        self.by_tag.get_mut(&tag).map(|e| e.valid = false).is_some()
    }

    pub(super) fn is_valid(&self, tag: u32) -> bool {
        self.by_tag.get(&tag).is_some_and(|e| e.valid)
    }

    /// Returns an invalidated window to the reserve.
    pub(super) fn return_window(&mut self, window: Window) {
        self.idle.push_back(window);
    }

    /// Frees all windows, which ends the peer's access through them. (Windows must be freed before the queue
    /// pair to which they are bound is destroyed.)
    pub(super) fn free_windows(&mut self) {
        self.idle.clear();
        let exposed = self.by_tag.values_mut();
        exposed.filter(|e| matches!(e.by, By::Window(..))).for_each(|e| e.by = By::Nothing);
    }

    /// Number of exposures, and their total bytes.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.by_tag.len(), self.bytes)
    }
}
