//! Block devices.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, Views};
use millrace_scsi::initiator::{
    BlockState, get_lba_status, synchronize_cache_16, unmap, unmap_list, write_same_16,
};

use crate::{
    Error, Options, Url,
    engine::{Engine, Losses, Outcome, Pieces, Place, Receiver, Request, Submissions, Work},
    extents::{Extent, extents},
    login::Dialer,
    unit::{Identity, Limits, UnitInfo},
};

/// Maximum length of the zeros that are sent to a device without WRITE SAME, in bytes.
const ZEROS: u64 = 1 << 20;

/// Maximum length of the states that one command requests, in bytes: those of 255 extents.
const LBA_STATUS: u32 = 4088;

/// A disk of an iSCSI target.
///
/// Handles are cheap to clone; operations run concurrently. One task owns the connection, and ends when the device is
/// [closed](Self::close) or all handles are dropped. An operation whose future is dropped continues.
///
/// # Order and durability
///
/// The order of operations that run at the same time is undefined. A completed write is durable after the next
/// successful [`flush`](Self::flush), or at once if the device has no volatile write cache.
///
/// # Loss of the connection
///
/// When the connection is lost or silent, the device logs in again with the same session identifier, which makes the
/// target end the previous session and its commands, and sends the commands without an outcome again. If the device then
/// reports a reset, writes that were completed but not flushed may be lost with its write cache: the flushes in
/// progress, or else the next one, fail with [`Error::DataLost`]. The same error reports that the device could not write
/// its cache to the medium. The caller then writes again what it wrote, and what it was writing, since the last
/// successful flush began. (A target that reports a reset at each login, and not only the loss of the nexus, causes this
/// error although no data is lost.) If the URL leads to another device, all operations fail with [`Error::Replaced`]. An
/// operation fails with [`Error::TimedOut`] if no command of it is completed within [`Options::timeout`].
#[derive(Clone)]
pub struct BlockDevice {
    shared: Arc<Shared>,
}

struct Shared {
    url: String,
    unit: UnitInfo,
    /// At the last login.
    capacity: Arc<AtomicU64>,
    losses: Arc<Losses>,
    arena: Arena,
    submissions: Arc<Submissions>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.submissions.release();
    }
}

impl BlockDevice {
    /// Logs in to the target of `url`, and identifies the logical unit (LUN 0 if the URL has none).
    ///
    /// # Errors
    /// The URL names no target; the connection or the login fails; there is no usable disk.
    pub async fn connect(url: &Url, options: &Options) -> Result<Self, Error> {
        let target = url.target.clone();
        if target.is_none() {
            let reason = "it names no target; list the targets with `millrace blk ls`".into();
            return Err(Error::Url { url: url.to_string(), reason });
        }
        let lun = url.lun.unwrap_or_default();
        let url_text = Url { lun: Some(lun), ..url.clone() }.to_string();
        let dialer = Arc::new(Dialer::new(url, target, options)?);
        let rt = dialer.rt.clone();
        let connect_timeout = options.connect_timeout;
        let place = Place { dialer, lun, url: url_text.clone(), connect_timeout, incomplete: Arc::default() };
        let connected = place.connect().await?;
        let unit = connected.unit.clone();
        let capacity = Arc::new(AtomicU64::new(unit.capacity));
        let submissions: Arc<Submissions> = Arc::default();
        let receiver = Receiver(Arc::clone(&submissions));
        let losses = Arc::default();
        let shared = (Arc::clone(&capacity), Arc::clone(&losses));
        let engine = Engine::new(place, options, connected, receiver, shared);
        rt.spawn("block-device", Box::pin(engine));
        let arena = Arena::new(ArenaConfig { limit: options.memory, huge_pages: false });
        let shared = Shared { url: url_text, unit, capacity, losses, arena, submissions };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The URL of the device, with its LUN and without a secret.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// The names of the device.
    pub fn identity(&self) -> &Identity {
        &self.shared.unit.identity
    }

    /// The properties that the device reported when it was opened.
    pub fn info(&self) -> &UnitInfo {
        &self.shared.unit
    }

    /// Number of bytes, as of the last login.
    pub fn capacity(&self) -> u64 {
        self.shared.capacity.load(Ordering::Relaxed)
    }

    /// Length of a block in bytes: offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.shared.unit.block_size
    }

    /// Limits of commands.
    pub fn limits(&self) -> &Limits {
        &self.shared.unit.limits
    }

    /// Allocates a buffer of `len` bytes, at most 4 MiB, with arbitrary content, from the memory of
    /// [`Options::memory`].
    ///
    /// # Errors
    /// The memory is exhausted, or `len` is too large.
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        Ok(self.shared.arena.alloc(len)?)
    }

    /// The arena of the buffers, in which operations allocate too.
    pub fn arena(&self) -> &Arena {
        &self.shared.arena
    }

    /// Fills `buffer` with the data at `offset`, and returns it. The data is received directly into the buffer.
    ///
    /// # Errors
    /// The range is invalid, or the operation fails ([`Error`]).
    pub async fn read_at_into(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
        if self.check(offset, buffer.len() as u64)? {
            return Ok(buffer);
        }
        self.submit(Work::Read(offset, Pieces::new(buffer))).await?.ok_or(Error::Closed)
    }

    /// Writes `data` at `offset`. The data is sent without a copy.
    ///
    /// # Errors
    /// The range is invalid, or the operation fails ([`Error`]); then any part of the data may have been written.
    pub async fn write_at_from(&self, offset: u64, data: Views) -> Result<(), Error> {
        if self.check(offset, data.len() as u64)? {
            return Ok(());
        }
        self.submit(Work::Write(offset, data)).await.map(drop)
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// [`Error::DataLost`] if the device was reset, or failed, before completed writes were durable; the caller writes
    /// again what it wrote, and what it was writing, since the last successful flush began. After other errors, completed
    /// writes remain volatile.
    pub async fn flush(&self) -> Result<(), Error> {
        let flushed = self.submit(Work::Flush(synchronize_cache_16(0, 0))).await;
        if let Err(Error::DataLost { .. }) = flushed {
            self.shared.losses.report();
        }
        flushed.map(drop)
    }

    /// Number of resets and failures of the device that endangered completed writes. One flush reports each of them, but
    /// any user of the device may have made the writes: a server of several users compares the numbers of losses.
    pub fn losses(&self) -> u64 {
        self.shared.losses.found()
    }

    /// Frees the storage of a range of bytes. Its content is undefined afterwards, or zeros if
    /// [`UnitInfo::discard_reads_zeroes`].
    ///
    /// # Errors
    /// The range is invalid, the device does not support it ([`Error::Unsupported`]), or the operation fails; then a part
    /// of the range may be discarded.
    pub async fn discard(&self, range: Range<u64>) -> Result<(), Error> {
        let unsupported = || Error::Unsupported { url: self.shared.url.clone(), what: "discard" };
        let max = self.limits().max_discard.ok_or_else(unsupported)?;
        for (lba, blocks) in self.chunks(range, max)? {
            let list = unmap_list(&[(lba, blocks)]).ok_or_else(unsupported)?;
            let cdb = unmap(u16::try_from(list.len()).map_err(|_| unsupported())?);
            let data = self.shared.arena.copy_from(&list)?;
            self.submit(Work::Change("UNMAP", cdb, data.into())).await?;
        }
        Ok(())
    }

    /// Writes zeros to a range of bytes, with WRITE SAME where the device supports it.
    ///
    /// # Errors
    /// The range is invalid, or the operation fails; then a part of the range may be zero.
    pub async fn write_zeroes(&self, range: Range<u64>) -> Result<(), Error> {
        self.zero(range, false).await
    }

    /// As [`Self::write_zeroes`], and frees the storage of the range if the device can do both
    /// ([`UnitInfo::punches_holes`]): WRITE SAME with UNMAP. After [`Self::discard`], in contrast, parts of the range may
    /// keep their content.
    ///
    /// # Errors
    /// Those of [`Self::write_zeroes`].
    pub async fn punch_hole(&self, range: Range<u64>) -> Result<(), Error> {
        self.zero(range, self.info().punches_holes).await
    }

    async fn zero(&self, range: Range<u64>, unmap: bool) -> Result<(), Error> {
        let block = u64::from(self.block_size());
        for (lba, blocks) in self.chunks(range, self.limits().max_write_zeroes)? {
            let zeros = self.zeros(block)?;
            let cdb = write_same_16(lba, blocks, unmap);
            match self.submit(Work::Change("WRITE SAME(16)", cdb, zeros)).await {
                Err(e) if e.is_unsupported() => {}
                done => {
                    done?;
                    continue;
                }
            }
            let end = (lba + u64::from(blocks)) * block;
            for (lba, blocks) in self.chunks(lba * block..end, ZEROS)? {
                let zeros = self.zeros(u64::from(blocks) * block)?;
                self.submit(Work::Write(lba * block, zeros)).await?;
            }
        }
        Ok(())
    }

    /// Which blocks have storage, from the beginning of `range` on: consecutive extents, at least one unless the range is
    /// empty, of which the last may end before the range does. A device that does not report it has storage for all blocks.
    ///
    /// # Errors
    /// The range is invalid, the operation fails, or the device's answer is malformed.
    pub async fn block_status(&self, range: Range<u64>) -> Result<Vec<Extent>, Error> {
        if self.check(range.start, range.end.saturating_sub(range.start))? {
            return Ok(Vec::new());
        }
        let mapped = |range| Ok(vec![Extent { range, state: BlockState::Mapped }]);
        if !self.info().thin {
            return mapped(range);
        }
        let block = u64::from(self.block_size());
        let length = LBA_STATUS.min(self.limits().max_transfer);
        let (buffer, cdb) = (self.buffer(length as usize)?, get_lba_status(range.start / block, length));
        let data = match self.submit(Work::Query("GET LBA STATUS", cdb, Pieces::new(buffer))).await {
            Err(e) if e.is_unsupported() => return mapped(range),
            done => done?.ok_or(Error::Closed)?,
        };
        extents(&data, range, block)
            .map_err(|reason| Error::Malformed { url: self.shared.url.clone(), reason })
    }

    /// Closes the device for all handles when the operations before are complete, and logs out. Completed writes are not
    /// flushed.
    pub async fn close(&self) {
        // The request has no outcome but the end of the device.
        let _closed = self.shared.submissions.submit(Request::Close).await;
    }

    async fn submit(&self, work: Work) -> Outcome {
        self.shared.submissions.submit(Request::Work(work)).await
    }

    /// `length` bytes of zeros.
    fn zeros(&self, length: u64) -> Result<Views, Error> {
        // At most ZEROS, or a block.
        let mut buffer = self.buffer(length as usize)?;
        buffer.fill(0);
        Ok(buffer.freeze().into())
    }

    /// Checks a range; returns whether it is empty.
    fn check(&self, offset: u64, length: u64) -> Result<bool, Error> {
        let (capacity, block_size) = (self.capacity(), self.block_size());
        let block = u64::from(block_size);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(Error::Unaligned { offset, length, block_size });
        }
        if offset.checked_add(length).is_none_or(|end| end > capacity) {
            return Err(Error::OutOfRange { offset, length, capacity });
        }
        Ok(length == 0)
    }

    /// Divides a range into ranges of blocks (first block and number) of at most `max` bytes.
    fn chunks(&self, range: Range<u64>, max: u64) -> Result<impl Iterator<Item = (u64, u32)> + use<>, Error> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let block = u64::from(self.block_size());
        let most = (max / block).clamp(1, u32::MAX.into());
        let (mut lba, end) = (range.start / block, range.end / block);
        Ok(std::iter::from_fn(move || {
            // At most u32::MAX.
            let blocks = end.saturating_sub(lba).min(most) as u32;
            lba += u64::from(blocks);
            (blocks > 0).then(|| (lba - u64::from(blocks), blocks))
        }))
    }
}
