//! Fresh steering tags.

use runtime::RuntimeRef;

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

/// Makes tags: a random index, never 0, and the next key.
pub(super) struct Tags {
    random: [u8; RANDOM_BYTES],
    used: usize,
    key: u8,
}

impl Tags {
    pub(super) fn new() -> Self {
        Self { random: [0; RANDOM_BYTES], used: RANDOM_BYTES, key: 0 }
    }

    /// A tag whose index is not `taken`; few enough are that this ends soon.
    pub(super) fn fresh(&mut self, rt: &RuntimeRef, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            if self.used + 3 > RANDOM_BYTES {
                rt.fill_random(&mut self.random);
                self.used = 0;
            }
            let at = self.used;
            let (a, b, c) = (self.random[at], self.random[at + 1], self.random[at + 2]);
            self.random[at..at + 3].fill(0);
            self.used += 3;
            let index = u32::from_be_bytes([0, a, b, c]) & ((1 << INDEX_BITS) - 1);
            if index != 0 && !taken(index) {
                self.key = self.key.wrapping_add(1);
                return index << 8 | u32::from(self.key);
            }
        }
    }
}
