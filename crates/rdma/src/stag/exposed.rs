//! Exposed regions.

use crate::{Access, Memory};

/// An exposed region.
pub(super) struct Exposed {
    pub(super) memory: Memory,
    pub(super) access: Access,
    /// False once the peer has invalidated the tag.
    pub(super) valid: bool,
    /// Everything from here on was never placed: the receiver may guess into it.
    pub(super) written: usize,
}

impl Exposed {
    pub(super) fn new(memory: Memory, access: Access) -> Self {
        Self { memory, access, valid: true, written: 0 }
    }

    /// Copies bytes from its start to `to`. Its owner has what was placed then: all of it may be placed anew, and
    /// guessed into.
    pub(super) fn copy_out(&mut self, to: &mut [u8]) -> bool {
        let copied = self.memory.copy_out(to);
        if copied {
            self.written = 0;
        }
        copied
    }
}
