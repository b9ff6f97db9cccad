//! What the peer can reach, and the two ways to let it: windows and regions.

#![allow(unsafe_code)] // Registers memory for the peer.

use std::{
    collections::{HashMap, VecDeque},
    io,
};

use millrace_buffer::SpanRef;
use millrace_rdma::{Access, ExposeError, Means, Memory};

use super::{
    adapter::{Protection, Registration, Window},
    ffi::verbs::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE},
    request::Binding,
};

/// The right that the peer gets.
const fn right(access: Access) -> u32 {
    match access {
        Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
        Access::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
    }
}

/// Memory in one piece.
pub(super) struct Piece<'a> {
    pub(super) span: &'a SpanRef,
    pub(super) addr: usize,
    pub(super) len: usize,
}

impl<'a> Piece<'a> {
    /// `memory`, if it is in one piece and not empty.
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

/// How memory is exposed.
pub(super) enum By {
    /// By a window: the memory is registered for local access already, and a work request lets the peer reach a part
    /// of it, through this queue pair alone. With whether it came out of the reserve, to which it goes back.
    Window(Window, bool),
    /// By a region: exactly these bytes are registered, with the one right.
    Region(#[allow(dead_code)] Registration), // Only to be dropped.
    /// Not any more: the connection ends.
    Nothing,
}

/// Exposed memory.
pub(super) struct Exposed {
    // The registration goes before the memory.
    pub(super) by: By,
    pub(super) memory: Memory,
    /// False once the peer has invalidated the tag.
    pub(super) valid: bool,
}

/// The steering tags of a connection.
pub(super) struct Exposures {
    by_tag: HashMap<u32, Exposed>,
    bytes: usize,
    /// Whether the device has windows: then nothing is exposed in another way, for connections share a protection
    /// domain.
    windows: bool,
    /// The one that is idle longest comes first: so tags are used again as late as can be.
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
    // Memory that a peer writes must be writable locally too, for the adapter.
    let local = if access == Access::RemoteWrite { IBV_ACCESS_LOCAL_WRITE } else { 0 };
    // SAFETY: the memory becomes part of an `Exposed`, whose registration goes before it.
    let region = unsafe { protection.register(piece.addr, piece.len, local | right(access)) }?;
    Ok((region.rkey(), By::Region(region), None))
}

impl Exposures {
    /// By windows if the device has them, else by regions.
    pub(super) fn new(windows: bool) -> Self {
        Self { by_tag: HashMap::new(), bytes: 0, windows, idle: VecDeque::new(), reserved: 0 }
    }

    /// Allocates windows, if there are none yet; how many there are.
    pub(super) fn reserve(&mut self, protection: &Protection, count: usize) -> usize {
        if self.windows && self.reserved == 0 {
            self.idle.extend((0..count).map_while(|_| protection.window().ok()));
            self.reserved = self.idle.len();
        }
        self.reserved
    }

    /// Lets the peer reach `memory`. Gives the tag, the address, and work to be posted before the tag is told to the
    /// peer.
    pub(super) fn expose(
        &mut self,
        protection: &Protection,
        by: Means,
        memory: Memory,
        access: Access,
    ) -> Result<(u32, u64, Option<Binding>), ExposeError> {
        let Some(piece) = Piece::of(&memory) else {
            return Err(ExposeError { memory, reason: "it is empty, or in several pieces" });
        };
        let made = match by {
            Means::Registration if !self.windows => register(protection, &piece, access),
            Means::Registration => {
                protection.window().and_then(|w| bind(w, false, protection, &piece, access))
            }
            Means::Window => match self.idle.pop_front() {
                Some(w) => bind(w, true, protection, &piece, access),
                None => return Err(ExposeError { memory, reason: "no window of the reserve is idle" }),
            },
            Means::Global => {
                return Err(ExposeError { memory, reason: "adapters have no tag for the whole arena" });
            }
        };
        let (addr, len) = (piece.addr as u64, piece.len);
        match made {
            Ok((tag, by, binding)) => {
                self.bytes += len;
                self.by_tag.insert(tag, Exposed { by, memory, valid: true });
                Ok((tag, addr, binding))
            }
            Err(error) => {
                tracing::warn!(%error, bytes = len, "the adapter does not expose memory");
                Err(ExposeError { memory, reason: "the adapter refuses to expose more" })
            }
        }
    }

    /// Takes an exposure out of the table; the caller makes the peer unable to reach it.
    pub(super) fn remove(&mut self, tag: u32) -> Option<Exposed> {
        let exposed = self.by_tag.remove(&tag)?;
        self.bytes -= exposed.memory.len();
        Some(exposed)
    }

    pub(super) fn get_mut(&mut self, tag: u32) -> Option<&mut Exposed> {
        self.by_tag.get_mut(&tag)
    }

    /// The peer has invalidated a tag; whether it is one of ours.
    pub(super) fn invalidated(&mut self, tag: u32) -> bool {
        self.by_tag.get_mut(&tag).map(|e| e.valid = false).is_some()
    }

    pub(super) fn is_valid(&self, tag: u32) -> bool {
        self.by_tag.get(&tag).is_some_and(|e| e.valid)
    }

    /// A window of the reserve that reaches nothing any more.
    pub(super) fn give_back(&mut self, window: Window) {
        self.idle.push_back(window);
    }

    /// Frees all windows: none of them reaches anything any more. (A queue pair must not go before the windows that are
    /// bound to it.)
    pub(super) fn free_windows(&mut self) {
        self.idle.clear();
        let exposed = self.by_tag.values_mut();
        exposed.filter(|e| matches!(e.by, By::Window(..))).for_each(|e| e.by = By::Nothing);
    }

    /// How many there are, and their bytes.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.by_tag.len(), self.bytes)
    }
}
