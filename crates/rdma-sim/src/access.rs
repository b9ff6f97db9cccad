//! Protection domains as adapters use them: what a peer may access, and its segments.

use millrace_buffer::{Buffer, Views};
use millrace_rdma::{
    Domain, Segment, Segments,
    stag::{AccessError, Source, StagDomain, StagTables},
};
use millrace_runtime::RuntimeRef;

/// The STag table of one end, and how its exposures are cut into segments.
pub(super) struct RemoteAccess {
    /// The memory that the peer can reach.
    pub(super) table: StagDomain,
    /// The largest segment in bytes; 0 for no limit.
    segment_bytes: u64,
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

impl RemoteAccess {
    /// A domain whose exposures have segments of at most `segment_bytes` bytes; 0 for no limit.
    pub(super) fn new(rt: RuntimeRef, segment_bytes: u64) -> Self {
        Self { table: StagTables::default().domain(rt), segment_bytes }
    }

    /// The segments that the peer is told for an exposure that has the segments `exposed`.
    pub(super) fn segments(&self, exposed: Segments) -> Segments {
        if self.segment_bytes == 0 {
            return exposed;
        }
        exposed.iter().flat_map(|s| cut(s, self.segment_bytes)).collect()
    }

    /// Regions that the peer can reach, and their bytes.
    pub(super) fn exposed(&self) -> (usize, usize) {
        self.table.exposed()
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
