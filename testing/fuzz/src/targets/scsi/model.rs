//! The data that a command may transfer and change, derived from its CDB alone (SPC-4, SBC-3).

/// Unsigned big-endian number of `len` bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes.iter().skip(at).take(len).fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// First block and number of blocks of a command with a range of blocks.
fn range(cdb: &[u8; 16]) -> Option<(u64, u64)> {
    Some(match cdb[0] {
        0x08 | 0x0a => (number(cdb, 1, 3) & 0x1f_ffff, if cdb[4] == 0 { 256 } else { cdb[4].into() }),
        0x28 | 0x2a | 0x2e | 0x41 => (number(cdb, 2, 4), number(cdb, 7, 2)),
        0xa8 | 0xaa | 0xae => (number(cdb, 2, 4), number(cdb, 6, 4)),
        0x88 | 0x8a | 0x8b | 0x8e | 0x93 => (number(cdb, 2, 8), number(cdb, 10, 4)),
        0x89 => (number(cdb, 2, 8), cdb[13].into()),
        _ => return None,
    })
}

/// Maximum length of the data-in.
pub(super) fn allocation(cdb: &[u8; 16], block: u64) -> u64 {
    match cdb[0] {
        0x03 | 0x1a => cdb[4].into(),
        0x12 => number(cdb, 3, 2),
        0x25 => 8,
        0x5a | 0x5e => number(cdb, 7, 2),
        0x9e => number(cdb, 10, 4),
        0xa0 | 0xa3 => number(cdb, 6, 4),
        0x08 | 0x28 | 0x88 | 0xa8 => range(cdb).map_or(0, |(_, count)| count.saturating_mul(block)),
        _ => 0,
    }
}

/// The contents of a disk.
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    pub(super) block: usize,
}

impl Contents {
    /// The bytes of `count` blocks from `lba`.
    ///
    /// # Panics
    /// They are not on the disk.
    fn blocks(&mut self, (lba, count): (u64, u64)) -> &mut [u8] {
        let end = lba.checked_add(count).filter(|end| *end <= (self.bytes.len() / self.block) as u64);
        let end = end.expect("a command beyond the end of the disk has succeeded") as usize;
        &mut self.bytes[lba as usize * self.block..end * self.block]
    }

    /// Applies a command that has succeeded with `data_out`, and checks its data-in.
    pub(super) fn apply(&mut self, cdb: &[u8; 16], data_out: &[u8], data_in: &[u8]) {
        let block = self.block;
        let blocks = range(cdb);
        match (cdb[0], blocks) {
            (0x08 | 0x28 | 0x88 | 0xa8, Some(blocks)) => {
                assert_eq!(data_in, self.blocks(blocks), "the data read")
            }
            (0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae, Some(blocks)) => {
                self.blocks(blocks).iter_mut().zip(data_out).for_each(|(old, new)| *old = *new);
            }
            (0x8b, Some(blocks)) => {
                self.blocks(blocks).iter_mut().zip(data_out).for_each(|(old, new)| *old |= new)
            }
            (0x89, Some(blocks)) => {
                let to = self.blocks(blocks);
                assert_eq!(to, &data_out[..to.len()], "blocks that differ were written");
                to.copy_from_slice(&data_out[to.len()..2 * to.len()]);
            }
            // WRITE SAME(16) with NDOB has no data.
            (0x41 | 0x93, Some(blocks)) => {
                let pattern =
                    if cdb[0] == 0x93 && cdb[1] & 1 != 0 { &vec![0; block] } else { &data_out[..block] };
                self.blocks(blocks).chunks_exact_mut(block).for_each(|to| to.copy_from_slice(pattern));
            }
            (0x42, _) => self.unmap(&data_out[..number(cdb, 7, 2) as usize]),
            _ => {}
        }
    }

    fn unmap(&mut self, list: &[u8]) {
        let length = number(list, 2, 2) as usize;
        let descriptors = list.get(8..).unwrap_or_default();
        for descriptor in descriptors[..length.min(descriptors.len())].chunks_exact(16) {
            self.blocks((number(descriptor, 0, 8), number(descriptor, 8, 4))).fill(0);
        }
    }
}
