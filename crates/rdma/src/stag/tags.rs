//! Allocation of steering tags.

use millrace_runtime::RuntimeRef;

const INDEX_BITS: u32 = 24;
/// Size of the buffer of random bytes, of which each index takes three.
const RANDOM_BYTES: usize = 192;

/// The index of a tag: the part that does not change with the key.
pub(super) const fn index_of(tag: u32) -> u32 {
    tag >> 8
}

/// `tag` with the next key.
pub(super) const fn next_key(tag: u32) -> u32 {
    tag & !0xff | (tag as u8).wrapping_add(1) as u32
}

/// Generates tags. The index is never 0; the key is incremented each time.
pub(super) struct Tags {
    indexes: Indexes,
    key: u8,
}

enum Indexes {
    Random {
        bytes: [u8; RANDOM_BYTES],
        used: usize,
    },
    /// Consecutive indexes, for demonstrations of attacks.
    Sequential(u32),
}

impl Indexes {
    fn next(&mut self, rt: &RuntimeRef) -> u32 {
        match self {
            Self::Random { bytes, used } => {
                if *used + 3 > RANDOM_BYTES {
                    rt.fill_random(bytes);
                    *used = 0;
                }
                let at = *used;
                let index = u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
                bytes[at..at + 3].fill(0);
                *used += 3;
                index
            }
            Self::Sequential(last) => {
                *last = last.wrapping_add(1) & ((1 << INDEX_BITS) - 1);
                *last
            }
        }
    }
}

impl Tags {
    pub(super) fn random() -> Self {
        Self { indexes: Indexes::Random { bytes: [0; RANDOM_BYTES], used: RANDOM_BYTES }, key: 0 }
    }

    pub(super) fn predictable() -> Self {
        Self { indexes: Indexes::Sequential(0), key: 0 }
    }

    /// Returns a tag whose index is not `taken`. The loop is short because most indexes are free.
    pub(super) fn fresh(&mut self, rt: &RuntimeRef, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let index = self.indexes.next(rt);
            if index != 0 && !taken(index) {
                self.key = self.key.wrapping_add(1);
                return index << 8 | u32::from(self.key);
            }
        }
    }
}
