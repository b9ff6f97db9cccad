//! Execution of commands on the device.

use std::{
    future::poll_fn,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{channel::oneshot, future::try_join_all};
use millrace_buffer::{BufferLengths, MemoryWait};
use millrace_iscsi_initiator::{BlockDevice, BlockState, Buffer, Error, View};
use millrace_runtime::{RuntimeRef, timeout};
use tokio::sync::Mutex;

use crate::{
    command::{Geometry, MAX_PAYLOAD},
    failure::Failure,
    handshake::Description,
    options::Options,
    wire::{export_flag as flag, state},
};

/// Maximum length of a buffer. The device executes longer operations as several commands, and copies their data if it
/// uses iSER.
const MAX_PIECE: u32 = 1 << 20;
/// Time after which a request fails if the device's memory is exhausted all the time.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// The device of a server, for all its connections.
#[derive(Clone)]
pub(crate) struct Device {
    disk: BlockDevice,
    pub(crate) rt: RuntimeRef,
    read_only: bool,
    flushes: Arc<Flushes>,
}

/// The flushes of all connections, of which one is executed at a time.
#[derive(Default)]
struct Flushes {
    requested: AtomicU64,
    last: Arc<Mutex<LastFlush>>,
}

struct LastFlush {
    /// Number of flushes that were requested before the last one began: it is the result of all of them.
    covers: u64,
    result: Result<(), Failure>,
}

impl Default for LastFlush {
    fn default() -> Self {
        Self { covers: 0, result: Ok(()) }
    }
}

impl Device {
    pub(crate) fn new(disk: BlockDevice, rt: RuntimeRef, options: &Options) -> Self {
        let read_only = options.read_only || disk.info().read_only;
        Self { disk, rt, read_only, flushes: Arc::default() }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            capacity: self.disk.capacity(),
            block_size: self.disk.block_size(),
            read_only: self.read_only,
            trim: self.disk.limits().max_discard.is_some(),
        }
    }

    pub(crate) fn description(&self) -> Description {
        let geometry = self.geometry();
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_WRITE_ZEROES | if geometry.trim { flag::SEND_TRIM } else { 0 };
        }
        Description {
            size: geometry.capacity,
            block_size: geometry.block_size,
            max_payload: MAX_PAYLOAD,
            flags,
            text: self.disk.identity().to_string(),
        }
    }

    /// Allocates buffers of `length` bytes together, all or none.
    ///
    /// # Errors
    /// The device's memory is exhausted.
    pub(crate) fn buffers(&self, length: usize) -> Result<Vec<Buffer>, Error> {
        let block = self.disk.block_size();
        let piece = (self.disk.limits().max_transfer.min(MAX_PIECE) / block * block).max(block) as usize;
        let buffers = self.disk.arena().alloc_all(BufferLengths::new(length, piece));
        Ok(buffers.collect::<Result<_, _>>()?)
    }

    pub(crate) async fn read(&self, start: u64, buffers: Vec<Buffer>) -> Result<Vec<View>, Failure> {
        let reads = with_offsets(start, buffers).map(|(offset, b)| self.disk.read_at_into(offset, b));
        let buffers = try_join_all(reads).await?;
        Ok(buffers.into_iter().map(Buffer::freeze).collect())
    }

    pub(crate) async fn write(&self, start: u64, buffers: Vec<Buffer>, fua: bool) -> Result<(), Failure> {
        let writes = with_offsets(start, buffers)
            .map(|(offset, buffer)| self.disk.write_at_from(offset, buffer.freeze().into()));
        try_join_all(writes).await?;
        if fua { self.flush().await } else { Ok(()) }
    }

    pub(crate) async fn trim(&self, range: Range<u64>, fua: bool) -> Result<(), Failure> {
        with_memory(self, || self.disk.discard(range.clone())).await?;
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Writes zeros; with `punch`, the range loses its storage if the device can do that.
    pub(crate) async fn write_zeroes(
        &self,
        range: Range<u64>,
        fua: bool,
        punch: bool,
    ) -> Result<(), Failure> {
        match punch {
            true => with_memory(self, || self.disk.punch_hole(range.clone())).await?,
            false => with_memory(self, || self.disk.write_zeroes(range.clone())).await?,
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    /// The states of ranges from the beginning of `range` on, which is shorter than 4 GiB: length in bytes, and flags of
    /// `base:allocation`. With `one`, the first only.
    pub(crate) async fn block_status(
        &self,
        range: Range<u64>,
        one: bool,
    ) -> Result<Vec<(u32, u32)>, Failure> {
        let extents = with_memory(self, || self.disk.block_status(range.clone())).await?;
        let zero = if self.disk.info().discard_reads_zeroes { state::ZERO } else { 0 };
        let ranges = extents.into_iter().map(|extent| {
            let flags = match extent.state {
                BlockState::Mapped => 0,
                BlockState::Anchored => zero,
                BlockState::Deallocated => state::HOLE | zero,
            };
            // The extent is within the requested range, whose length has 32 bits.
            ((extent.range.end - extent.range.start) as u32, flags)
        });
        Ok(ranges.take(if one { 1 } else { usize::MAX }).collect())
    }

    /// Makes completed writes durable. Flushes that are requested during another one have one successor, whose result is
    /// that of all of them.
    pub(crate) async fn flush(&self) -> Result<(), Failure> {
        let number = self.flushes.requested.fetch_add(1, Ordering::Relaxed);
        let mut last = Arc::clone(&self.flushes.last).lock_owned().await;
        if last.covers > number {
            return last.result.clone();
        }
        let (disk, flushes) = (self.disk.clone(), Arc::clone(&self.flushes));
        let (done, result) = oneshot::channel();
        // A separate task: the connection may end, and the device reports a loss only once.
        self.rt.spawn(
            "nbd-flush",
            Box::pin(async move {
                let covers = flushes.requested.load(Ordering::Relaxed);
                let flushed = disk.flush().await;
                *last = LastFlush { covers, result: flushed.map_err(Failure::from) };
                // The connection may have ended.
                drop(done.send(last.result.clone()));
            }),
        );
        result.await.unwrap_or_else(|_| Err(Error::Closed.into()))
    }

    /// Number of losses of completed writes so far. The device reports a loss to one flush only, but any connection may
    /// have made the writes. Therefore each connection compares the numbers at its flushes.
    pub(crate) fn losses(&self) -> u64 {
        self.disk.losses()
    }
}

/// Repeats an operation while the device's memory is exhausted: other requests return theirs.
pub(crate) async fn with_memory<T, F: Future<Output = Result<T, Error>>>(
    device: &Device,
    mut operation: impl FnMut() -> F,
) -> Result<T, Error> {
    let deadline = device.rt.now() + MEMORY_TIMEOUT;
    let mut wait = MemoryWait::new(device.disk.arena());
    loop {
        let full = match operation().await {
            Err(Error::OutOfMemory(full)) => full,
            done => return done,
        };
        wait.begin(&full);
        let left = deadline.duration_since(device.rt.now());
        if timeout(&*device.rt, left, poll_fn(|cx| wait.poll(cx))).await.is_none() {
            return Err(full.into());
        }
    }
}

/// The buffers of data at `start`, each with its offset.
fn with_offsets(start: u64, buffers: Vec<Buffer>) -> impl Iterator<Item = (u64, Buffer)> {
    buffers.into_iter().scan(start, |next, buffer| {
        let offset = *next;
        *next += buffer.len() as u64;
        Some((offset, buffer))
    })
}
