//! READ, WRITE, SYNCHRONIZE CACHE, PRE-FETCH and START STOP UNIT.

use std::sync::Arc;

use millrace_runtime::{MaybeReady, RangeLocks};
use millrace_vfs::{Stability, Views};

use super::{blocks::Extent, command::Job};
use crate::{
    failure::{Outcome, Step},
    sense::{AdditionalSense, Sense, SenseKey},
};

/// Maximum number of bytes that a long operation reads or writes at once.
pub(super) const PIECE: u32 = 1 << 20;

/// Runs `operation` with a lock on `extent`.
pub(super) fn locked<T: Send + 'static>(
    ranges: &Arc<RangeLocks>,
    extent: Extent,
    exclusive: bool,
    operation: impl FnOnce() -> Step<T> + Send + 'static,
) -> Step<T>
where
    Outcome<T>: Unpin,
{
    match RangeLocks::lock(Arc::clone(ranges), extent.range(), exclusive) {
        MaybeReady::Ready(guard) => operation().map(move |result| {
            drop(guard);
            result
        }),
        waiting => Step::wait(async move {
            let _guard = waiting.await;
            operation().await
        }),
    }
}

impl Job {
    /// Durability of writes: durable with FUA, or with the write cache disabled.
    pub(super) fn stability(&self, fua: bool) -> Stability {
        if fua || !self.disk.modes.lock().write_cache { Stability::FileSync } else { Stability::Unstable }
    }

    /// The data of a write of `extent`, and the extent that it covers: less than the whole one if the initiator has
    /// fewer blocks.
    pub(super) fn write_data(&self, extent: Extent) -> Outcome<(Extent, Views)> {
        // At most MAX_TRANSFER_BYTES.
        let len = (extent.bytes as usize).min(self.data.len());
        if !len.is_multiple_of(self.disk.block_bytes() as usize) {
            return Err(Sense::illegal(AdditionalSense::INVALID_INFORMATION_UNIT).into());
        }
        Ok((Extent { bytes: len as u64, ..extent }, self.data.slice(0, len)))
    }

    pub(super) fn read(self) -> Step<Views> {
        match self.disk.transfer_extent(&self.cdb) {
            Err(sense) => Step::Ready(Err(sense.into())),
            Ok(extent) if extent.bytes == 0 => Step::Ready(Ok(Views::new())),
            Ok(extent) => {
                self.disk.counters.read(extent.bytes);
                // At most MAX_TRANSFER_BYTES.
                let read = || self.disk.medium.read(extent.offset, extent.bytes as u32);
                if !self.cdb.fua() {
                    return read();
                }
                // FUA reads from the medium, so that data in the cache is made durable first (SBC-3 section 5.8).
                Step::wait(async move {
                    self.commit().await?;
                    self.disk.medium.read(extent.offset, extent.bytes as u32).await
                })
            }
        }
    }

    pub(super) fn write(self) -> Step<Views> {
        let checked = self.disk.transfer_extent(&self.cdb).map_err(Into::into);
        let (extent, data) = match checked.and_then(|extent| self.write_data(extent)) {
            Ok(checked) => checked,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        if data.is_empty() {
            return Step::Ready(Ok(data));
        }
        self.disk.counters.written(extent.bytes);
        let stable = self.stability(self.cdb.fua());
        let disk = Arc::clone(&self.disk);
        // Drops the references to the data, so that the file system can be its only owner.
        drop(self);
        let medium = Arc::clone(&disk.medium);
        locked(&disk.ranges, extent, false, move || medium.write(extent.offset, data, stable))
            .map(|written| written.map(|()| Views::new()))
    }

    /// Makes all data durable. Reports each loss of data once to each initiator.
    pub(super) async fn commit(&self) -> Outcome<()> {
        let losses = self.disk.medium.commit().await?;
        if self.nexus.is_informed_of(losses) {
            return Ok(());
        }
        Err(Sense::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR).into())
    }

    /// Makes the whole disk durable, before status also with IMMED.
    pub(super) fn synchronize_cache(self) -> Step<Views> {
        match self.disk.extent(self.cdb.blocks()) {
            Err(sense) => Step::Ready(Err(sense.into())),
            Ok(_) => Step::wait(async move { self.commit().await.map(|()| Views::new()) }),
        }
    }

    /// Reads nothing: GOOD status means that the cache may not contain the blocks (SBC-3 section 5.7).
    pub(super) fn pre_fetch(&self) -> Outcome<Views> {
        self.disk.extent(self.cdb.blocks())?;
        Ok(Views::new())
    }

    /// A stop makes all data durable unless NO_FLUSH is set; the unit stays ready.
    pub(super) fn start_stop(self) -> Step<Views> {
        if self.cdb.byte(4) & 0x05 != 0 {
            return Step::Ready(Ok(Views::new()));
        }
        Step::wait(async move { self.commit().await.map(|()| Views::new()) })
    }
}
