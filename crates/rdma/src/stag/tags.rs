//! Fresh steering tags.

use millrace_runtime::RuntimeRef;

const INDEX_BITS: u32 = 24;
/// Random bytes fetched at a time, three for each index.
const RANDOM_BYTES: usize = 192;

/// The index of a tag: what stays when its key changes.
pub(super) const fn index_of(tag: u32) -> u32 {
    tag >> 8
}

/// `tag` with the key that follows its own.
pub(super) const fn next_key(tag: u32) -> u32 {
    tag & !0xff | (tag as u8).wrapping_add(1) as u32
}

/// Makes tags: an index, never 0, and the next key.
pub(super) struct Tags {
    indexes: Indexes,
    key: u8,
}

enum Indexes {
    Random {
        bytes: [u8; RANDOM_BYTES],
        used: usize,
    },
    /// One after the other: to show what comes of it.
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

    /// A tag whose index is not `taken`; few enough are that this ends soon.
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
