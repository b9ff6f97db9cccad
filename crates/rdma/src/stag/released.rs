//! Writes of the peer to memory that has another owner: through a released window that is still bound
//! ([`crate::Domain::release`]) and, in demonstrations, through the global tag.
//!
//! No Rust code may write to memory that other code owns. An adapter writes to the registered addresses
//! regardless. This module reproduces that by writing to `/proc/self/mem`, only for writes that are late or
//! outside of exposed memory; the owner may find its data changed. The mapping is kept while the window is
//! bound or the exposure lasts, so only buffer memory is ever written.

use std::{fs::OpenOptions, io, os::unix::fs::FileExt};

use millrace_buffer::{Buffer, SpanRef};

use super::access::AccessError;

/// The memory of a released window.
pub(super) struct Released {
    address: u64,
    pub(super) len: usize,
    /// Keeps the memory mapped.
    _span: SpanRef,
}

impl Released {
    /// A window to `buffer`, which is about to get another owner.
    pub(super) fn new(buffer: &Buffer) -> Self {
        Self { address: buffer.address() as u64, len: buffer.len(), _span: buffer.span().clone() }
    }

    /// Whether the peer may write `len` bytes at `offset`.
    pub(super) fn check(&self, offset: u64, len: usize) -> Result<(), AccessError> {
        let end = offset.checked_add(len as u64).ok_or(AccessError::Wrap)?;
        if end > self.len as u64 { Err(AccessError::Bounds) } else { Ok(()) }
    }

    /// Writes although the memory has another owner.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_mapped(self.address + offset, bytes)
    }
}

/// Writes to an address in a mapped span although the memory has another owner.
pub(super) fn write_mapped(address: u64, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(bytes, address)
}
