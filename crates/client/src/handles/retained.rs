//! UNSTABLE data that the server has acknowledged and may still lose.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_buffer::Views;
use smallvec::SmallVec;

use super::{Client, ReadInto};
use crate::ops::{LockEpoch, Verifier};

/// A contiguous piece of retained data.
#[derive(Clone)]
pub(crate) struct Piece {
    /// Range in the file.
    pub(crate) offset: u64,
    pub(crate) data: Views,
    /// Client with the credentials of the writer.
    pub(crate) caller: Client,
    /// Sequence number of the acknowledgement.
    number: u64,
    /// Write verifier of the WRITE.
    verifier: Verifier,
    /// Memory in bytes: at least the length of the data, more if this is the rest of a longer write.
    memory: usize,
}

impl Piece {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    /// Returns the part in `range`, which must overlap.
    fn part(&self, range: &Range<u64>) -> Self {
        let (start, end) = (range.start.max(self.offset), range.end.min(self.range().end));
        let data = self.data.slice((start - self.offset) as usize, (end - start) as usize);
        Self { offset: start, data, ..self.clone() }
    }
}

/// The data that a COMMIT covers.
pub(crate) struct ToCommit {
    /// Client with the credentials of the call.
    pub(crate) caller: Client,
    /// Sequence number of the first acknowledgement that the COMMIT does not cover.
    pub(crate) before: u64,
    /// Write verifier of the covered data. A different verifier in the reply means that data was lost, even
    /// if newer data has replaced it: the newer data must then be made stable.
    pub(crate) verifiers: SmallVec<[Verifier; 2]>,
}

/// The uncommitted UNSTABLE data of a file (RFC 1813 section 4.8): the newest acknowledged data of each byte,
/// so that a rewrite never replaces newer data.
pub(crate) struct Retained {
    /// Pieces by offset, without overlap.
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
    memory: usize,
    /// The memory of the retained data of all files of the client.
    total: Arc<AtomicUsize>,
    /// Sequence number of the next acknowledgement.
    next: u64,
    /// Number of acknowledged changes of the file's data.
    changes: u64,
    /// The epoch of the file's locks in which the data was accepted.
    epoch: LockEpoch,
    /// Number of times that data was discarded, and of those that an opener of the file has reported.
    discards: u64,
    reported: u64,
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.total.fetch_sub(self.memory, Ordering::Relaxed);
    }
}

impl Retained {
    /// Retains nothing yet, and will add the memory of the data to `total`.
    pub(crate) fn counted_in(total: &Arc<AtomicUsize>) -> Self {
        let total = Arc::clone(total);
        Self {
            pieces: BTreeMap::new(),
            bytes: 0,
            memory: 0,
            total,
            next: 0,
            changes: 0,
            epoch: LockEpoch::UNLOCKED,
            discards: 0,
            reported: 0,
        }
    }

    /// Begins an epoch of the file's locks. Data of an earlier one is discarded: other clients may have changed the file
    /// while the locks were lost. Data that was written before the first lock is kept.
    pub(crate) fn begin_epoch(&mut self, epoch: LockEpoch) {
        let before = std::mem::replace(&mut self.epoch, epoch);
        if before != epoch && before != LockEpoch::UNLOCKED {
            self.discard();
        }
    }

    /// Discards all data, which the server may lose. Each opener of the file reports that ([`Self::report`]).
    pub(crate) fn discard(&mut self) {
        self.changes += 1;
        if self.pieces.is_empty() {
            return;
        }
        self.discards += 1;
        while let Some(offset) = self.pieces.keys().next().copied() {
            self.take(offset);
        }
    }

    /// Number of discards that a new opener need not report.
    pub(crate) const fn reported(&self) -> u64 {
        self.reported
    }

    /// Whether an opener that has reported the discards up to `reported` must report another one.
    pub(crate) const fn has_unreported(&self, reported: u64) -> bool {
        self.discards > reported
    }

    /// Marks all discards as reported, and returns their number.
    pub(crate) fn report(&mut self) -> u64 {
        self.reported = self.discards;
        self.discards
    }

    /// Bytes of data.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that the data occupies.
    pub(crate) const fn memory(&self) -> usize {
        self.memory
    }

    /// Number of acknowledged changes of the file's data.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that another client may have changed the data.
    pub(crate) const fn note_change(&mut self) {
        self.changes += 1;
    }

    /// End offset of the last piece.
    pub(crate) fn end(&self) -> Option<u64> {
        self.pieces.values().next_back().map(|p| p.range().end)
    }

    fn insert(&mut self, piece: Piece) {
        self.bytes += piece.data.len();
        self.memory += piece.memory;
        self.total.fetch_add(piece.memory, Ordering::Relaxed);
        self.pieces.insert(piece.offset, piece);
    }

    fn take(&mut self, offset: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&offset)?;
        self.bytes -= piece.data.len();
        self.memory -= piece.memory;
        self.total.fetch_sub(piece.memory, Ordering::Relaxed);
        Some(piece)
    }

    /// The pieces that overlap `range`.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Piece> + use<'_> {
        let before = self.pieces.range(..range.start).next_back().map(|(_, p)| p);
        let (start, end) = (range.start, range.end);
        before.filter(move |p| p.range().end > start).into_iter().chain(
            // An empty or reversed range has no pieces.
            self.pieces.range(start..end.max(start)).map(|(_, p)| p),
        )
    }

    /// Discards the data in `range`, where the server has newer data or none.
    pub(crate) fn cut(&mut self, range: &Range<u64>) {
        self.changes += 1;
        let old: Vec<u64> = self.overlapping(range).map(|p| p.offset).collect();
        for offset in old {
            let Some(piece) = self.take(offset) else { continue };
            for rest in [piece.offset..range.start, range.end..piece.range().end] {
                if rest.start < rest.end {
                    self.insert(piece.part(&rest));
                }
            }
        }
    }

    /// Retains data that was acknowledged as UNSTABLE; replaces older data.
    pub(crate) fn replace(&mut self, caller: &Client, (offset, data): (u64, Views), verifier: Verifier) {
        let (memory, number) = (data.len(), self.next);
        self.next += 1;
        let piece = Piece { offset, data, caller: caller.clone(), number, verifier, memory };
        self.cut(&piece.range());
        self.insert(piece);
    }

    /// Returns the data that a COMMIT sent now covers; `None` without retained data.
    pub(crate) fn to_commit(&self) -> Option<ToCommit> {
        let caller = self.pieces.values().next()?.caller.clone();
        let mut verifiers = SmallVec::new();
        for piece in self.pieces.values() {
            if !verifiers.contains(&piece.verifier) {
                verifiers.push(piece.verifier);
            }
        }
        Some(ToCommit { caller, before: self.next, verifiers })
    }

    /// Handles the reply with `verifier` to a COMMIT that was sent before acknowledgement `before`: discards
    /// the data that it covers, and returns the earlier data that the server may have lost.
    pub(crate) fn committed(&mut self, before: u64, verifier: Verifier) -> Vec<Piece> {
        let covered = self.pieces.values().filter(|p| p.number < before && p.verifier == verifier);
        let covered: Vec<u64> = covered.map(|p| p.offset).collect();
        for offset in covered {
            self.take(offset);
        }
        self.pieces.values().filter(|p| p.number < before).cloned().collect()
    }

    /// Returns the remaining parts of a piece from [`Self::committed`].
    pub(crate) fn left_of(&self, piece: &Piece) -> Vec<Piece> {
        let range = piece.range();
        let left = self.overlapping(&range).filter(|p| p.number == piece.number);
        left.map(|p| p.part(&range)).collect()
    }

    /// Returns the retained data that a read of `len` bytes at `offset` must include; `None` without such
    /// data.
    pub(crate) fn overlay(&self, offset: u64, len: usize) -> Option<Overlay> {
        let range = offset..offset.saturating_add(len as u64);
        let end = self.end().filter(|end| *end > offset)?;
        let pieces = self.overlapping(&range).map(|p| p.part(&range)).collect();
        Some(Overlay { range, pieces, end })
    }
}

/// Retained data in the range of a read.
pub(crate) struct Overlay {
    range: Range<u64>,
    pieces: Vec<Piece>,
    /// Minimum end offset of the file.
    end: u64,
}

impl Overlay {
    /// Overlays the data on the server's data.
    pub(crate) fn put_into(&self, read: &mut ReadInto) {
        let Range { start, end } = self.range;
        let there = (self.end.min(end) - start) as usize;
        if read.eof && read.count < there {
            read.buffer.set_len(there);
            read.buffer[read.count..].fill(0);
            read.count = there;
        }
        for piece in &self.pieces {
            let at = (piece.offset - start) as usize;
            if at < read.count {
                let len = piece.data.len().min(read.count - at);
                piece.data.slice(0, len).copy_to(&mut read.buffer[at..]);
            }
        }
        read.eof &= self.end <= start + read.count as u64;
    }
}
