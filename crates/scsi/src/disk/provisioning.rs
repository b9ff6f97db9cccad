//! UNMAP, WRITE SAME and GET LBA STATUS.

use std::sync::Arc;

use millrace_buffer::{BLOCK_BYTES, View};
use millrace_runtime::RangeLocks;
use millrace_vfs::{Stability, Views};

use super::{
    Disk, MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME_BLOCKS,
    blocks::Extent,
    command::{Job, NDOB},
    transfer::{PIECE, locked},
};
use crate::{
    bytes::{be16, be32, be64},
    cdb::Blocks,
    failure::{Failure, Outcome, Step},
    medium::Supported,
    sense::{AdditionalSense, Sense, Status},
};

/// ANCHOR of UNMAP, in byte 1.
const UNMAP_ANCHOR: u8 = 0x01;
/// ANCHOR of WRITE SAME, in byte 1.
const ANCHOR: u8 = 0x10;
/// UNMAP of WRITE SAME, in byte 1.
const UNMAP: u8 = 0x08;
/// Maximum number of descriptors that GET LBA STATUS returns.
const MAX_STATUS_DESCRIPTORS: u32 = 256;

/// The new contents of a range.
enum Fill {
    /// It reads as zeros, and its storage is freed.
    Unmap,
    /// It reads as zeros, and has storage.
    Zero,
    /// Each block is a copy of this one.
    Block(Views),
}

impl Job {
    /// Fills a range. A file system without a call for zeros gets them as data.
    async fn fill(&self, extent: Extent, fill: Fill) -> Outcome<()> {
        let (medium, block) = (&self.disk.medium, self.disk.block_bytes() as usize);
        let (offset, bytes) = (extent.offset, extent.bytes);
        if matches!(fill, Fill::Unmap) && medium.deallocate(offset, bytes).await? == Supported::Yes {
            return Ok(());
        }
        let pattern = match fill {
            Fill::Block(data) => self.pattern(block, &data)?,
            _ if medium.zero(offset, bytes).await? == Supported::Yes => return Ok(()),
            _ => self.pattern(block, &Views::new())?,
        };
        for (at, count) in extent.pieces(PIECE) {
            let mut data: Views = (0..count as usize).step_by(BLOCK_BYTES).map(|_| pattern.clone()).collect();
            data.truncate(count as usize);
            medium.write(at, data, Stability::Unstable).await?;
        }
        Ok(())
    }

    /// Memory with copies of `data`, which is a block, or zeros if it is empty.
    fn pattern(&self, block: usize, data: &Views) -> Outcome<View> {
        let alloc = self.target.arena.alloc(BLOCK_BYTES);
        let mut buffer = alloc.map_err(|_| Failure::Status(Status::Busy))?;
        if data.is_empty() {
            buffer.fill(0);
        } else {
            buffer.chunks_exact_mut(block).for_each(|copy| data.copy_to(copy));
        }
        Ok(buffer.freeze())
    }

    /// Makes the changes durable if the write cache is disabled.
    async fn finish(&self) -> Outcome<Views> {
        if self.stability(false) == Stability::FileSync {
            self.commit().await?;
        }
        Ok(Views::new())
    }

    pub(super) fn write_same(self) -> Step<Views> {
        let (extent, fill) = match self.same() {
            Ok(checked) => checked,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        let ranges = Arc::clone(&self.disk.ranges);
        locked(&ranges, extent, false, move || {
            Step::wait(async move {
                self.fill(extent, fill).await?;
                self.finish().await
            })
        })
    }

    /// Range and content of WRITE SAME.
    fn same(&self) -> Outcome<(Extent, Fill)> {
        let (cdb, block) = (&self.cdb, self.disk.block_bytes());
        let (unmap, anchor) = (cdb.flag(UNMAP), cdb.flag(ANCHOR));
        if unmap && !self.disk.thin {
            return Err(Sense::cdb_field(1, Some(3)).into());
        }
        if anchor && !unmap {
            return Err(Sense::cdb_field(1, Some(4)).into());
        }
        let blocks = cdb.blocks();
        let extent = self.disk.extent(blocks)?;
        if blocks.count == 0 || blocks.count > MAX_WRITE_SAME_BLOCKS {
            return Err(Sense::cdb_field(cdb.length_at(), None).into());
        }
        let unmapped = if unmap && !anchor { Fill::Unmap } else { Fill::Zero };
        if cdb.command.len() == 16 && cdb.flag(NDOB) {
            return Ok((extent, unmapped));
        }
        let data = self.exact_data(block.into())?;
        // An unmapped block reads as zeros, so only zeros are unmapped.
        let zeros = data.iter().all(|view| view.iter().all(|byte| *byte == 0));
        Ok((extent, if zeros { unmapped } else { Fill::Block(data) }))
    }

    pub(super) fn unmap(self) -> Step<Views> {
        let extents = match self.unmap_list() {
            Ok(extents) => extents,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        Step::wait(async move {
            for extent in extents {
                let _guard = RangeLocks::lock(&*self.disk.ranges, extent.range(), false).await;
                let fill = if self.cdb.flag(UNMAP_ANCHOR) { Fill::Zero } else { Fill::Unmap };
                self.fill(extent, fill).await?;
            }
            self.finish().await
        })
    }

    /// The ranges of UNMAP, all of them on the disk. A last incomplete descriptor is ignored (SBC-3 section 5.28.2).
    fn unmap_list(&self) -> Outcome<Vec<Extent>> {
        let list = self.parameter_list()?;
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let (Some(length), Some(descriptors)) = (be16(&list, 2), list.get(8..)) else {
            return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH).into());
        };
        let descriptors = descriptors.get(..usize::from(length)).unwrap_or(descriptors).chunks_exact(16);
        if descriptors.len() > MAX_UNMAP_DESCRIPTORS as usize {
            return Err(Sense::parameter(2).into());
        }
        let mut extents = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            let blocks = be64(descriptor, 0).zip(be32(descriptor, 8));
            let extent = blocks.map(|(lba, count)| self.disk.extent(Blocks { lba, count })).transpose()?;
            extents.extend(extent.filter(|e| e.bytes > 0));
        }
        Ok(extents)
    }

    pub(super) fn get_lba_status(self) -> Step<Views> {
        if self.cdb.lba16() >= self.disk.blocks() {
            return Step::Ready(Err(Sense::illegal(AdditionalSense::LBA_OUT_OF_RANGE).into()));
        }
        Step::wait(async move {
            let room = self.cdb.length().saturating_sub(8) / 16;
            let descriptors = self.disk.provisioning(self.cdb.lba16(), room).await?;
            let mut data = vec![0; 8];
            for (lba, count, mapped) in &descriptors {
                data.extend_from_slice(&lba.to_be_bytes());
                data.extend_from_slice(&count.to_be_bytes());
                data.extend_from_slice(&[u8::from(!mapped), 0, 0, 0]);
            }
            let length = data.len() as u32 - 4;
            data[..4].copy_from_slice(&length.to_be_bytes());
            self.reply(data)
        })
    }
}

impl Disk {
    /// Ranges of blocks from `lba` with the same state: first block, number, whether they are mapped. At least one
    /// and at most `max` ranges.
    async fn provisioning(&self, lba: u64, max: u32) -> Outcome<Vec<(u64, u32, bool)>> {
        let (size, blocks) = (u64::from(self.block_bytes()), self.blocks());
        let mut found: Vec<(u64, u32, bool)> = Vec::new();
        let mut at = lba;
        while at < blocks && found.len() < max.clamp(1, MAX_STATUS_DESCRIPTORS) as usize {
            let (mut mapped, end) = self.medium.extent(at * size, blocks * size).await?;
            // A block with a byte of data is mapped.
            let mut next = if mapped { end.div_ceil(size) } else { end / size };
            if next <= at {
                (mapped, next) = (true, at + 1);
            }
            let count = u32::try_from(next - at).unwrap_or(u32::MAX);
            match found.last_mut() {
                Some((_, total, m)) if *m == mapped && total.checked_add(count).is_some() => *total += count,
                _ => found.push((at, count, mapped)),
            }
            at += u64::from(count);
        }
        Ok(found)
    }
}
