//! Exposed regions.

use crate::{Access, Memory};

/// An exposed region.
pub(super) struct Exposed {
    pub(super) memory: Memory,
    pub(super) access: Access,
    /// False after the peer has invalidated the tag.
    pub(super) valid: bool,
    /// No data was placed at or after this position, so the receiver may place data there speculatively.
    pub(super) written: usize,
}

impl Exposed {
    pub(super) fn new(memory: Memory, access: Access) -> Self {
        Self { memory, access, valid: true, written: 0 }
    }

    /// Copies the first `to.len()` bytes to `to`. After a copy, the receiver may overwrite the whole region
    /// speculatively again, because the owner has its data.
    pub(super) fn copy_out(&mut self, to: &mut [u8]) -> bool {
        let copied = self.memory.copy_out(to);
        if copied {
            self.written = 0;
        }
        copied
    }
}
