//! Writing to memory that others own, as an adapter would: through a window whose memory has a new owner while the peer
//! can still write through it ([`crate::Domain::release`]); and, where that was asked for to show it, through the global
//! tag.
//!
//! No code of this process may touch memory that others own. An adapter does not ask: it writes to the addresses that
//! were registered. So does this, by way of the kernel, and only for writes that come too late or go astray; the owner
//! may find its bytes changed. The mapping stays while the window is bound or the exposure lasts, so nothing but memory
//! for buffers is ever hit.

use std::{fs::OpenOptions, io, os::unix::fs::FileExt};

use millrace_buffer::{Buffer, SpanRef};

use super::access::AccessError;

/// Where a released window leads.
pub(super) struct Released {
    address: u64,
    pub(super) len: usize,
    /// Keeps the mapping.
    _span: SpanRef,
}

impl Released {
    /// A window to `buffer`, which goes to another owner now.
    pub(super) fn new(buffer: &Buffer) -> Self {
        Self { address: buffer.address() as u64, len: buffer.len(), _span: buffer.span().clone() }
    }

    /// Whether the peer may write `len` bytes at `offset`.
    pub(super) fn check(&self, offset: u64, len: usize) -> Result<(), AccessError> {
        let end = offset.checked_add(len as u64).ok_or(AccessError::Wrap)?;
        if end > self.len as u64 { Err(AccessError::Bounds) } else { Ok(()) }
    }

    /// Writes behind the new owner's back.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_behind(self.address + offset, bytes)
    }
}

/// Writes behind the owner's back to an address in a span that is mapped.
pub(super) fn write_behind(address: u64, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(bytes, address)
}
