//! The protection domain: what software enforces on iWARP, and what it costs on an adapter.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use millrace_buffer::{SpanRef, Views};
use millrace_rdma::{
    Access, Domain, ExposeError, Exposure, ExposureId, LocalKey, LocalUse, Means, Memory, Segment, Segments,
    stag::{AccessError, Source, StagDomain, StagTables},
};
use millrace_runtime::RuntimeRef;
use smallvec::SmallVec;

use super::{
    host::EndId,
    world::{Charge, Inner},
};

/// The bytes of a registration in its key for local use, and whether it is a window.
const LOCAL_BYTES: u64 = 0xffff_ffff;
const WINDOW: u64 = 1 << 32;

/// The domain of one end.
pub(super) struct SimDomain {
    table: StagDomain,
    world: Weak<Inner>,
    end: EndId,
    /// Segments are as small, if this is not 0.
    segment_bytes: u64,
    next_local: AtomicU64,
}

/// Whether memory is in one piece and not empty, as adapters want it.
fn is_one_piece(memory: &Memory) -> bool {
    match memory {
        Memory::Owned(b) => !b.is_empty(),
        Memory::Shared(views) => !views.is_empty() && views.pieces().nth(1).is_none(),
    }
}

/// `segment` in pieces of at most `most` bytes, as a client names memory page by page. Pages lie anywhere in memory, so
/// no two are neighbours on the adapter: between them is a page that is not there.
fn cut(segment: &Segment, most: u64) -> impl Iterator<Item = Segment> + use<> {
    let s = *segment;
    let (mut at, end) = (s.offset, s.offset + u64::from(s.length));
    std::iter::from_fn(move || {
        let length = ((at / most + 1) * most).min(end).checked_sub(at).filter(|n| *n > 0)?;
        let offset = at / most * 2 * most + at % most;
        at += length;
        Some(Segment { handle: s.handle, length: length as u32, offset })
    })
}

/// Where the bytes of a piece that [`cut`] made are.
fn whole(piece: &Segment, most: u64) -> Result<Segment, AccessError> {
    let (page, at) = (piece.offset / most, piece.offset % most);
    if page % 2 == 1 || at + u64::from(piece.length) > most {
        return Err(AccessError::Bounds);
    }
    Ok(Segment { offset: page / 2 * most + at, ..*piece })
}

impl SimDomain {
    pub(super) fn new(rt: RuntimeRef, world: &Arc<Inner>, end: EndId) -> Self {
        Self {
            table: StagTables::default().domain(rt),
            world: Arc::downgrade(world),
            end,
            segment_bytes: world.profile.adapter.segment_bytes.into(),
            next_local: AtomicU64::new(0),
        }
    }

    /// A new key for local use. It says what its end costs.
    fn local_key(&self, by: Means, bytes: usize) -> LocalKey {
        let number = self.next_local.fetch_add(1, Ordering::Relaxed) << 33;
        let window = if by == Means::Window { WINDOW } else { 0 };
        LocalKey(number | window | bytes as u64 & LOCAL_BYTES)
    }

    fn charge(&self, what: Charge) {
        if let Some(world) = self.world.upgrade() {
            world.charge(self.end, what);
        }
    }

    /// The connection is gone, and with it everything that was exposed.
    pub(super) fn close(&self) {
        self.table.close();
        let released = self.table.lock().clear();
        drop(released);
    }

    /// What the peer means by a segment that it was given, or a part of it.
    fn meant(&self, by_peer: &Segment) -> Result<Segment, AccessError> {
        if self.segment_bytes == 0 { Ok(*by_peer) } else { whole(by_peer, self.segment_bytes) }
    }

    /// The peer writes.
    pub(super) fn place(&self, to: &Segment, data: &Views) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        let to = self.meant(to)?;
        let mut table = self.table.lock();
        match table.place(to.handle.0, to.offset, data.len()) {
            Ok((memory, _)) => {
                let mut at = 0;
                for v in data.iter() {
                    memory[at..at + v.len()].copy_from_slice(v);
                    at += v.len();
                }
                Ok(())
            }
            Err(AccessError::Released) => {
                let mut at = to.offset;
                for v in data.iter() {
                    table.write_released(to.handle.0, at, v)?;
                    at += v.len() as u64;
                }
                Ok(())
            }
            Err(denied) => Err(denied),
        }
    }

    /// Whether the peer may read.
    pub(super) fn check_read(&self, from: &Segment) -> Result<(), AccessError> {
        self.read(from, |_| ())
    }

    /// The peer reads into `sink`.
    pub(super) fn fill(
        &self,
        from: &Segment,
        sink: &mut [millrace_buffer::Buffer],
    ) -> Result<(), AccessError> {
        let mut parts = sink.iter_mut().map(|b| &mut **b);
        let mut part: &mut [u8] = &mut [];
        self.read(from, |mut bytes| {
            while !bytes.is_empty() {
                while part.is_empty() {
                    let Some(next) = parts.next() else { return };
                    part = next;
                }
                let n = part.len().min(bytes.len());
                let (now, later) = std::mem::take(&mut part).split_at_mut(n);
                now.copy_from_slice(&bytes[..n]);
                (part, bytes) = (later, &bytes[n..]);
            }
        })
    }

    fn read(&self, from: &Segment, mut f: impl FnMut(&[u8])) -> Result<(), AccessError> {
        if from.length == 0 {
            return Ok(());
        }
        let from = self.meant(from)?;
        let (offset, length) = (from.offset, from.length as usize);
        match self.table.lock().source(from.handle.0, offset, length)? {
            Source::Bytes(bytes) => f(bytes),
            Source::Views(views, at) => views.slice(at, length).iter().for_each(|v| f(v)),
        }
        Ok(())
    }

    /// The peer invalidates a tag; whether it may.
    pub(super) fn invalidate(&self, tag: u32) -> bool {
        self.table.lock().invalidate(tag).is_ok()
    }
}

impl Domain for SimDomain {
    fn expose(&self, by: Means, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if !is_one_piece(&memory) {
            return Err(ExposeError { memory, reason: "it is empty, or in several pieces" });
        }
        let bytes = memory.len();
        let mut exposure = self.table.expose(by, memory, access)?;
        match by {
            Means::Registration => self.charge(Charge::Register(bytes)),
            Means::Window => self.charge(Charge::Bind(bytes)),
            Means::Global => {}
        }
        if self.segment_bytes > 0 {
            let cut: SmallVec<_> =
                exposure.segments.iter().flat_map(|s| cut(s, self.segment_bytes)).collect();
            exposure.segments = Segments::from(cut);
        }
        Ok(exposure)
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        let by = self.table.lock().means(id);
        let invalid = !self.table.is_valid(id);
        let memory = self.table.revoke(id)?;
        match by {
            Some(Means::Registration) => self.charge(Charge::Deregister(memory.len())),
            // A window that the peer has invalidated costs nothing more.
            Some(Means::Window) if !invalid => self.charge(Charge::Unbind(1)),
            _ => {}
        }
        Some(memory)
    }

    fn release(&self, id: ExposureId) -> Option<Memory> {
        self.table.release(id)
    }

    fn invalidate_released(&self) -> usize {
        let windows = self.table.invalidate_released();
        self.charge(Charge::Unbind(windows));
        windows
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.table.is_valid(id)
    }

    fn exposed(&self) -> (usize, usize) {
        self.table.exposed()
    }

    fn reserve_windows(&self, count: usize, largest: usize) -> usize {
        self.table.reserve_windows(count, largest)
    }

    fn enable_global(&self) -> bool {
        self.table.enable_global()
    }

    fn registers_local(&self, by: Means) -> bool {
        by != Means::Global
    }

    /// Costs what a registration costs, or a window.
    fn register_local(&self, by: Means, pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        let bytes = pieces.iter().map(|p| p.len()).sum::<usize>();
        match by {
            Means::Registration => self.charge(Charge::Register(bytes)),
            Means::Window => self.charge(Charge::Bind(bytes)),
            Means::Global => return None,
        }
        Some(self.local_key(by, bytes))
    }

    fn keep_local(&self, span: &SpanRef) -> Option<LocalKey> {
        let bytes = span.len();
        self.charge(Charge::Register(bytes));
        Some(self.local_key(Means::Registration, bytes))
    }

    fn deregister_local(&self, key: LocalKey) {
        self.charge(match key.0 & WINDOW {
            0 => Charge::Deregister((key.0 & LOCAL_BYTES) as usize),
            _ => Charge::Unbind(1),
        });
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        self.charge(Charge::Copy(to.len()));
        self.table.copy_out(id, to)
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        self.charge(Charge::Copy(from.len()));
        self.table.copy_in(id, from)
    }
}
