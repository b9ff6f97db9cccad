//! Checked ranges of blocks, and comparison of data.

use std::ops::Range;

use millrace_vfs::Views;

use super::{Disk, MAX_TRANSFER_BYTES};
use crate::{
    cdb::{Blocks, Cdb},
    sense::{AdditionalSense, Sense},
};

/// A range of bytes in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Extent {
    pub(super) fn range(self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// Divides the extent into pieces of at most `max` bytes.
    pub(super) fn pieces(self, max: u32) -> impl Iterator<Item = (u64, u32)> {
        let end = self.offset + self.bytes;
        let mut at = self.offset;
        std::iter::from_fn(move || {
            let count = u32::try_from(end - at).unwrap_or(u32::MAX).min(max);
            let piece = (at, count);
            at += u64::from(count);
            (count > 0).then_some(piece)
        })
    }
}

impl Disk {
    /// The extent of `blocks`, if it is on the disk. A range of no blocks may be at the end.
    pub(super) fn extent(&self, blocks: Blocks) -> Result<Extent, Sense> {
        let end = blocks.lba.checked_add(u64::from(blocks.count)).filter(|end| *end <= self.blocks());
        end.ok_or(Sense::illegal(AdditionalSense::LBA_OUT_OF_RANGE))?;
        let size = u64::from(self.block_bytes());
        // Less than the size of the file, which a u64 contains.
        Ok(Extent { offset: blocks.lba * size, bytes: u64::from(blocks.count) * size })
    }

    /// The extent of a command that transfers or verifies data.
    pub(super) fn transfer_extent(&self, cdb: &Cdb) -> Result<Extent, Sense> {
        let blocks = cdb.blocks();
        if blocks.count > MAX_TRANSFER_BYTES / self.block_bytes() {
            return Err(Sense::cdb_field(cdb.length_at(), None));
        }
        self.extent(blocks)
    }
}

/// The offset of the first byte of `a` that differs from `b`, which is at least as long.
pub(super) fn first_difference(a: &Views, b: &Views) -> Option<usize> {
    let (mut left, mut right) = (a.iter().map(|v| &v[..]), b.iter().map(|v| &v[..]));
    let (mut x, mut y): (&[u8], &[u8]) = (&[], &[]);
    let mut offset = 0;
    loop {
        if x.is_empty() {
            x = left.next()?;
        }
        if y.is_empty() {
            y = right.next()?;
        }
        let len = x.len().min(y.len());
        let ((xs, x_rest), (ys, y_rest)) = (x.split_at(len), y.split_at(len));
        if xs != ys {
            return xs.iter().zip(ys).position(|(x, y)| x != y).map(|at| offset + at);
        }
        offset += len;
        (x, y) = (x_rest, y_rest);
    }
}
