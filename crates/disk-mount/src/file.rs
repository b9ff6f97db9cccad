//! Ranges of bytes of a block device that need not begin or end at a block.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use futures::future::try_join_all;
use millrace_buffer::copy;
use millrace_iscsi_initiator::{BlockDevice, Buffer, Error, View};
use millrace_runtime::RangeLocks;

/// A block device as a sequence of bytes. Other users of the device, such as other initiators, are not excluded while a
/// part of a block is written.
pub(super) struct DiskFile {
    device: BlockDevice,
    /// The blocks that writes change. A write of a part of a block writes the whole block, with what it has read
    /// before: no other write may come between.
    writes: RangeLocks,
}

/// An open file.
#[derive(Default)]
pub(super) struct Opened {
    /// Number of losses ([`BlockDevice::losses`]) that it has reported, or that are older.
    reported: AtomicU64,
}

/// The data of a write in the buffer of the blocks that it changes.
pub(super) struct Pending {
    /// The blocks, as a range of bytes.
    blocks: Range<u64>,
    buffer: Buffer,
    /// Where the data is in the buffer.
    data: Range<usize>,
}

impl DiskFile {
    pub(super) fn new(device: BlockDevice) -> Self {
        Self { device, writes: RangeLocks::default() }
    }

    pub(super) fn device(&self) -> &BlockDevice {
        &self.device
    }

    fn block(&self) -> u64 {
        self.device.block_size().into()
    }

    /// The part of a range that is on the device.
    fn clip(&self, offset: u64, length: u64) -> Range<u64> {
        let size = self.device.capacity();
        offset.min(size)..offset.saturating_add(length).min(size)
    }

    /// The blocks that contain a range of the device.
    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        range.start - range.start % self.block()..range.end.next_multiple_of(self.block())
    }

    /// Reads `length` bytes at `offset`, or fewer at the end of the device.
    pub(super) async fn read(&self, offset: u64, length: u32) -> Result<View, Error> {
        let range = self.clip(offset, length.into());
        let blocks = self.blocks(&range);
        // The buffer has at most `length` bytes and two blocks.
        let buffer = self.device.buffer((blocks.end - blocks.start) as usize)?;
        let data = self.device.read_at_into(blocks.start, buffer).await?.freeze();
        let start = (range.start - blocks.start) as usize;
        Ok(data.slice(start, (range.end - range.start) as usize))
    }

    /// Copies the part of `data` that fits on the device, for a write at `offset`: `None` if nothing fits.
    pub(super) fn prepare(&self, offset: u64, data: &[u8]) -> Result<Option<Pending>, Error> {
        let range = self.clip(offset, data.len() as u64);
        if range.is_empty() {
            return Ok(None);
        }
        let blocks = self.blocks(&range);
        let mut buffer = self.device.buffer((blocks.end - blocks.start) as usize)?;
        let (start, length) = ((range.start - blocks.start) as usize, (range.end - range.start) as usize);
        copy(&mut buffer[start..], &data[..length]);
        Ok(Some(Pending { blocks, buffer, data: start..start + length }))
    }

    /// Writes, and returns the number of bytes. The future must be completed once it was polled, so that the lock is
    /// held until the device has executed the write.
    pub(super) async fn write(&self, write: Pending) -> Result<usize, Error> {
        let _lock = RangeLocks::lock(&self.writes, write.blocks.clone(), true).await;
        self.write_locked(write).await
    }

    async fn write_locked(&self, mut write: Pending) -> Result<usize, Error> {
        let length = write.data.len();
        self.complete(&mut write).await?;
        self.device.write_at_from(write.blocks.start, write.buffer.freeze().into()).await?;
        Ok(length)
    }

    /// Reads the rest of the first and of the last block from the device.
    async fn complete(&self, Pending { blocks, buffer, data }: &mut Pending) -> Result<(), Error> {
        let (block, start) = (self.block() as usize, blocks.start);
        let first = (data.start > 0).then_some(0);
        let last = (data.end < buffer.len()).then(|| buffer.len() - block);
        let incomplete = first.into_iter().chain(last.filter(|last| Some(*last) != first));
        let olds = incomplete.map(|at| async move {
            let old = self.device.read_at_into(start + at as u64, self.device.buffer(block)?).await?;
            Ok::<_, Error>((at, old))
        });
        for (at, old) in try_join_all(olds).await? {
            let (before, after) = (data.start.clamp(at, at + block), data.end.clamp(at, at + block));
            copy(&mut buffer[at..before], &old[..before - at]);
            copy(&mut buffer[after..at + block], &old[after - at..]);
        }
        Ok(())
    }

    /// Makes a range of the device zero; with `punch`, its whole blocks lose their storage if possible. As for
    /// [`Self::write`], the future must be completed.
    pub(super) async fn zero(&self, range: Range<u64>, punch: bool) -> Result<(), Error> {
        let range = self.clip(range.start, range.end.saturating_sub(range.start));
        let _lock = RangeLocks::lock(&self.writes, self.blocks(&range), true).await;
        let whole = range.start.next_multiple_of(self.block())..range.end - range.end % self.block();
        if whole.start > whole.end {
            return self.zero_part(range).await;
        }
        self.zero_part(range.start..whole.start).await?;
        match punch {
            true => self.device.punch_hole(whole.clone()).await?,
            false => self.device.write_zeroes(whole.clone()).await?,
        }
        self.zero_part(whole.end..range.end).await
    }

    /// Makes a range within a block zero.
    async fn zero_part(&self, range: Range<u64>) -> Result<(), Error> {
        let zeros = vec![0; (range.end.saturating_sub(range.start)) as usize];
        match self.prepare(range.start, &zeros)? {
            Some(write) => self.write_locked(write).await.map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn open(&self) -> Opened {
        Opened { reported: AtomicU64::new(self.device.losses()) }
    }

    /// Makes completed writes durable, for fsync(2): fails also if writes were lost since `opened` was opened or has
    /// reported it.
    pub(super) async fn sync(&self, opened: &Opened) -> Result<(), Error> {
        let flushed = self.device.flush().await;
        let losses = self.device.losses();
        let lost = opened.reported.swap(losses, Ordering::Relaxed) != losses;
        flushed?;
        if lost { Err(Error::DataLost { url: self.device.url().to_owned() }) } else { Ok(()) }
    }
}
