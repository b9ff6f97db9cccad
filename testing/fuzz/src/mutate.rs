//! Deterministic mutations.

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

/// Maximum length of a mutated input.
const MAX_LEN: usize = 16 << 10;
/// Numbers at which the behaviour of decoders changes.
const NUMBERS: [u32; 16] = [
    0,
    1,
    2,
    3,
    4,
    16,
    64,
    255,
    400,
    1024,
    4096,
    0x0010_0000,
    0x3fff_ffff,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];

/// Pseudo-random numbers from a seed.
#[derive(Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }
}

/// Changes `bytes` at one to four positions, partly with bytes of `other`, another input.
pub(crate) fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        once(bytes, other, random);
    }
    bytes.truncate(MAX_LEN);
}

fn once(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(12) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 | 3 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        4 | 5 => change_word(bytes, at, |_, random| NUMBERS[random.below(NUMBERS.len())], random),
        6 => change_word(
            bytes,
            at,
            |word, random| word.wrapping_add(random.below(9) as u32).wrapping_sub(4),
            random,
        ),
        7 => {
            let new: Vec<u8> = (0..=random.below(16)).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, new);
        }
        8 => {
            let end = (at + 1 + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        9 => {
            let part = range(bytes, random).to_vec();
            bytes.splice(at..at, part);
        }
        10 => {
            let part = range(other, random);
            let end = if random.below(2) == 0 { at } else { (at + part.len()).min(bytes.len()) };
            bytes.splice(at..end, part.iter().copied());
        }
        _ => bytes.truncate(at),
    }
}

/// Changes four bytes, on a boundary of four in three of four cases.
fn change_word(bytes: &mut [u8], at: usize, change: impl Fn(u32, &mut Random) -> u32, random: &mut Random) {
    let at = if random.below(4) == 0 { at } else { at & !3 };
    if let Some(word) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        *word = change(u32::from_be_bytes(*word), random).to_be_bytes();
    }
}

/// A part of at most 256 bytes.
fn range<'a>(bytes: &'a [u8], random: &mut Random) -> &'a [u8] {
    let start = random.below(bytes.len());
    let len = random.below(256.min(bytes.len() - start)) + 1;
    &bytes[start..(start + len).min(bytes.len())]
}
