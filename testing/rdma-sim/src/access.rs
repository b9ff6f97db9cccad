//! Access of an adapter to memory of a protection domain, and the segments of exposures.

use millrace_buffer::{Buffer, Views};
use millrace_rdma::{
    Domain, Segment, Segments,
    stag::{AccessError, Source, StagDomain, StagTables},
};
use millrace_runtime::RuntimeRef;

/// The STag table of one end, and the size of the segments of its exposures.
pub(super) struct RemoteAccess {
    /// Memory that the peer can access.
    pub(super) table: StagDomain,
    /// Maximum segment size in bytes; 0 for no limit.
    segment_bytes: u64,
}

/// Splits `segment` into pieces of at most `most` bytes, as a requester does that registers page by page. The
/// physical addresses of pages are not consecutive, so the pieces are separated by gaps of one page.
fn split_segment(segment: &Segment, most: u64) -> impl Iterator<Item = Segment> + use<> {
    let s = *segment;
    let (mut at, end) = (s.offset, s.offset + u64::from(s.length));
    std::iter::from_fn(move || {
        let length = ((at / most + 1) * most).min(end).checked_sub(at).filter(|n| *n > 0)?;
        let offset = at / most * 2 * most + at % most;
        at += length;
        Some(Segment { handle: s.handle, length: length as u32, offset })
    })
}

/// The segment that [`split_segment`] split into pieces like `piece`, at the position of `piece`.
fn join_segment(piece: &Segment, most: u64) -> Result<Segment, AccessError> {
    let (page, at) = (piece.offset / most, piece.offset % most);
    if page % 2 == 1 || at + u64::from(piece.length) > most {
        return Err(AccessError::Bounds);
    }
    Ok(Segment { offset: page / 2 * most + at, ..*piece })
}

impl RemoteAccess {
    /// Creates a domain whose exposures have segments of at most `segment_bytes` bytes; 0 for no limit.
    pub(super) fn new(rt: RuntimeRef, segment_bytes: u64) -> Self {
        Self { table: StagTables::default().domain(rt), segment_bytes }
    }

    /// The segments to send to the peer for an exposure with the segments `exposed`.
    pub(super) fn segments(&self, exposed: Segments) -> Segments {
        if self.segment_bytes == 0 {
            return exposed;
        }
        exposed.iter().flat_map(|s| split_segment(s, self.segment_bytes)).collect()
    }

    /// Number of regions that the peer can access, and their bytes.
    pub(super) fn exposed(&self) -> (usize, usize) {
        self.table.exposed()
    }

    /// Ends all exposures with the connection.
    pub(super) fn close(&self) {
        self.table.close();
        let released = self.table.lock().clear();
        drop(released);
    }

    /// Translates a segment, or a part of one, as received from the peer.
    fn translate(&self, by_peer: &Segment) -> Result<Segment, AccessError> {
        if self.segment_bytes == 0 { Ok(*by_peer) } else { join_segment(by_peer, self.segment_bytes) }
    }

    /// Places data of an RDMA Write of the peer.
    pub(super) fn place(&self, to: &Segment, data: &Views) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        let to = self.translate(to)?;
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

    /// Checks that the peer may read.
    pub(super) fn check_read(&self, from: &Segment) -> Result<(), AccessError> {
        self.read(from, |_| ())
    }

    /// Fills `sink` from memory that the peer reads.
    pub(super) fn fill(&self, from: &Segment, sink: &mut [Buffer]) -> Result<(), AccessError> {
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
        let from = self.translate(from)?;
        let (offset, length) = (from.offset, from.length as usize);
        match self.table.lock().source(from.handle.0, offset, length)? {
            Source::Bytes(bytes) => f(bytes),
            Source::Views(views, at) => views.slice(at, length).iter().for_each(|v| f(v)),
        }
        Ok(())
    }

    /// Invalidates a tag for the peer. Returns whether it is permitted.
    pub(super) fn invalidate(&self, tag: u32) -> bool {
        self.table.lock().invalidate(tag).is_ok()
    }
}
