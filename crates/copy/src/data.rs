//! Transfer of the content of one file: pipelined records, checksum, retransmission of records that a server
//! has lost.

use std::{collections::VecDeque, ops, sync::Arc};

use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{FuturesOrdered, FuturesUnordered},
};
use millrace_buffer::Views;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{
    Error,
    control::{Control, Event},
    tree::{Metadata, Source, Target, WriteOutcome, whole},
};

/// Maximum number of rewrites of a file's lost records.
const MAX_REWRITES: usize = 16;
/// Size in bytes above which data is hashed on a blocking thread.
const MAX_INLINE_HASH: usize = 64 << 10;
/// Maximum number of bytes that a server copies at once: the interval of the events.
const WITHIN: usize = 64 << 20;

/// Limits and state that all files share.
pub(crate) struct Flow {
    /// Permits for records in flight, over all files.
    pub(crate) budget: Arc<Semaphore>,
    /// Maximum number of records in flight of one file.
    pub(crate) window: usize,
    /// Size of one record in bytes.
    pub(crate) record: usize,
    /// Events and the stop signal.
    pub(crate) control: Arc<Control>,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    offset: u64,
    len: usize,
}

fn records(extents: &[ops::Range<u64>], record: usize) -> impl Iterator<Item = Range> {
    let step = record.max(1) as u64;
    extents.iter().flat_map(move |extent| {
        let (start, len) = (extent.start, extent.end - extent.start);
        (0..len.div_ceil(step)).map(move |i| {
            let at = i * step;
            Range { offset: start + at, len: (len - at).min(step) as usize }
        })
    })
}

/// The content of a file to copy.
#[derive(Debug)]
pub(crate) struct Content {
    /// The size in bytes; 0 if it is only known at the end.
    pub(crate) size: u64,
    /// The parts with data, in order.
    pub(crate) extents: Vec<ops::Range<u64>>,
    /// Whether records of zeros are not written, because the file has holes at unknown offsets.
    pub(crate) skip_zeros: bool,
}

impl Content {
    /// The content of a file whose extents are all of it.
    pub(crate) fn whole(size: u64) -> Self {
        Self { size, extents: whole(size), skip_zeros: false }
    }

    /// The content of `file`, whose attributes are `meta`.
    pub(crate) async fn of<S: Source>(source: &S, file: &S::Reader, meta: &Metadata) -> Result<Self, Error> {
        let size = meta.size;
        if meta.used >= size {
            return Ok(Self::whole(size));
        }
        Ok(match source.extents(file, size).await? {
            Some(extents) => Self { size, extents, skip_zeros: false },
            None => Self { skip_zeros: true, ..Self::whole(size) },
        })
    }

    /// Whether all of it is written.
    pub(crate) fn is_whole(&self) -> bool {
        !self.skip_zeros && self.extents == whole(self.size)
    }

    /// The number of bytes in `extents`.
    fn bytes(&self) -> u64 {
        self.extents.iter().map(|e| e.end - e.start).sum()
    }

    /// The parts of `there`, which is in order, that are not in `extents`.
    fn outside(&self, there: &[ops::Range<u64>]) -> Vec<ops::Range<u64>> {
        let ends = self.extents.iter().map(|e| e.end);
        let starts = self.extents.iter().map(|e| e.start);
        let holes = std::iter::once(0).chain(ends).zip(starts.chain([self.size]));
        let mut there = there.iter().peekable();
        let mut out = Vec::new();
        for (start, end) in holes {
            while let Some(part) = there.peek() {
                let common = part.start.max(start)..part.end.min(end);
                if !common.is_empty() {
                    out.push(common);
                }
                if part.end > end {
                    break;
                }
                there.next();
            }
        }
        out
    }
}

/// An incremental SHA-256 checksum.
#[derive(Default, Clone)]
pub(crate) struct Checksum(Sha256);

impl Checksum {
    /// Adds `data`.
    pub(crate) async fn update(mut self, data: Views) -> Result<Self, Error> {
        let small = data.len() <= MAX_INLINE_HASH;
        let add = move || {
            data.iter().for_each(|v| self.0.update(&**v));
            self
        };
        if small {
            return Ok(add());
        }
        tokio::task::spawn_blocking(add).await.map_err(|_| Error::Task)
    }

    /// Returns the checksum.
    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Whether `file` has the data with the checksum `sent` in the extents of `content`, and zeros between them.
pub(crate) async fn is_equal<S: Source>(
    tree: &S,
    file: &S::Reader,
    (content, sent): (&Content, [u8; 32]),
    flow: &Flow,
) -> Result<bool, Error> {
    let mut sum = Checksum::default();
    let mut reads = Reads::new(tree, file, &content.extents, flow);
    while let Some(data) = reads.next().await? {
        sum = sum.update(data).await?;
    }
    if sum.finish() != sent {
        return Ok(false);
    }
    if content.is_whole() {
        return Ok(true);
    }
    if content.size > 0 && tree.read(file, content.size - 1, 1).await?.is_empty() {
        return Ok(false);
    }
    let there = tree.extents(file, content.size).await?.unwrap_or_else(|| whole(content.size));
    let mut reads = Reads::new(tree, file, &content.outside(&there), flow);
    while let Some(data) = reads.next().await? {
        if !is_zero(&data) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_zero(data: &Views) -> bool {
    data.iter().all(|view| view.iter().all(|byte| *byte == 0))
}

/// The records of a file, read in order with several in flight.
struct Reads<'a, S: Source> {
    tree: &'a S,
    file: &'a S::Reader,
    flow: &'a Flow,
    todo: std::vec::IntoIter<Range>,
    reads: FuturesOrdered<BoxFuture<'a, Result<Views, Error>>>,
}

impl<'a, S: Source> Reads<'a, S> {
    fn new(tree: &'a S, file: &'a S::Reader, extents: &[ops::Range<u64>], flow: &'a Flow) -> Self {
        let todo = records(extents, flow.record).collect::<Vec<_>>().into_iter();
        Self { tree, file, flow, todo, reads: FuturesOrdered::new() }
    }

    /// The next record; `None` after the last one.
    async fn next(&mut self) -> Result<Option<Views>, Error> {
        let (tree, file, flow) = (self.tree, self.file, self.flow);
        while self.reads.len() < flow.window
            && let Some(r) = self.todo.next()
        {
            self.reads.push_back(Box::pin(async move {
                let _permit = flow.permit().await?;
                tree.read(file, r.offset, r.len).await
            }));
        }
        let read = self.reads.next().await.transpose()?;
        flow.control.check()?;
        Ok(read)
    }
}

/// Number of bytes copied, and their checksum if requested.
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    pub(crate) checksum: Option<[u8; 32]>,
}

/// Copies `content` of `from` to `to` within the server, and makes it stable there. `None` if the server cannot do
/// so; [`transfer`] can.
pub(crate) async fn copy_within<S: Source, T: Target>(
    (source, from): (&S, &S::Reader),
    (target, to): (&T, &T::Writer),
    content: &Content,
    flow: &Flow,
) -> Result<Option<Copied>, Error> {
    let Some(from) = source.exported(from).filter(|_| content.size > 0 && !content.skip_zeros) else {
        return Ok(None);
    };
    for part in records(&content.extents, WITHIN) {
        let _permit = flow.permit().await?;
        let end = part.offset + part.len as u64;
        let Some(bytes) = target.copy(&from, to, part.offset..end).await? else { return Ok(None) };
        if bytes < part.len as u64 {
            return Err(Error::Shrunk);
        }
        flow.control.check()?;
        flow.control.report(Event::Written { bytes: part.len });
    }
    end_of(target, to, content, flow).await?;
    Ok(Some(Copied { bytes: content.size, checksum: None }))
}

/// Sets the size of a file whose last bytes were not written.
async fn end_of<T: Target>(target: &T, to: &T::Writer, content: &Content, flow: &Flow) -> Result<(), Error> {
    if !content.is_whole() {
        target.set_size(to, content.size).await?;
        flow.control.report(Event::Written { bytes: (content.size - content.bytes()) as usize });
    }
    Ok(())
}

/// Copies `content` of `from` to `to` and makes it stable there.
pub(crate) async fn transfer<S: Source, T: Target>(
    (source, from): (&S, &S::Reader),
    (target, to): (&T, &T::Writer),
    content: &Content,
    with_checksum: bool,
    flow: &Flow,
) -> Result<Copied, Error> {
    let mut pass = Pass {
        source,
        from,
        target,
        to,
        flow,
        // The data of a stream cannot be read again.
        stable: content.size <= flow.record as u64 && content.size > 0 || source.is_stream(from),
        skip_zeros: content.skip_zeros,
        in_order: target.is_written_in_order(to),
    };
    let mut sum = with_checksum.then(Checksum::default);
    let mut written = pass.run(records(&content.extents, flow.record), sum.as_mut()).await?;
    let mut bytes = content.size;
    if bytes == 0 {
        // Generated files, such as those in /proc, have size 0 and content; streams have no size.
        bytes = pass.tail(&mut written, sum.as_mut()).await?;
    } else {
        end_of(target, to, content, flow).await?;
    }
    pass.stable = false;
    for _ in 0..MAX_REWRITES {
        if written.iter().all(|(_, outcome)| outcome.stable) {
            return Ok(Copied { bytes, checksum: sum.map(Checksum::finish) });
        }
        let verifier = target.commit(to).await?;
        let lost: VecDeque<Range> = written
            .iter()
            .filter(|(_, s)| !s.stable && s.verifier != verifier)
            .map(|(range, _)| *range)
            .collect();
        if lost.is_empty() {
            return Ok(Copied { bytes, checksum: sum.map(Checksum::finish) });
        }
        // The server restarted and may have lost unstable data (RFC 1813 section 4.8).
        tracing::info!(records = lost.len(), "the server restarted: rewriting data that it may have lost");
        written.retain(|(_, s)| s.stable || s.verifier == verifier);
        written.extend(pass.run(lost.into_iter(), None).await?);
    }
    Err(Error::DataLost)
}

/// One pass over (a part of) a file.
struct Pass<'a, S: Source, T: Target> {
    source: &'a S,
    from: &'a S::Reader,
    target: &'a T,
    to: &'a T::Writer,
    flow: &'a Flow,
    /// Whether to request stable writes, which saves a round trip for a file of one record.
    stable: bool,
    /// Whether records of zeros are not written.
    skip_zeros: bool,
    /// Whether a write starts only when the previous one has completed.
    in_order: bool,
}

type Written = Vec<(Range, WriteOutcome)>;

impl<S: Source, T: Target> Pass<'_, S, T> {
    /// Copies `todo`. Reads complete in order (for the checksum); writes start immediately and complete in
    /// any order. A record holds its permit from its read to the end of its write.
    async fn run(
        &self,
        mut todo: impl Iterator<Item = Range>,
        mut sum: Option<&mut Checksum>,
    ) -> Result<Written, Error> {
        let mut reads = FuturesOrdered::new();
        let mut writes = FuturesUnordered::new();
        let mut written = Written::new();
        loop {
            while reads.len() + writes.len() < self.flow.window
                && let Some(range) = todo.next()
            {
                reads.push_back(async move {
                    let permit = self.flow.permit().await?;
                    let data = self.source.read(self.from, range.offset, range.len).await?;
                    if data.len() < range.len {
                        return Err(Error::Shrunk);
                    }
                    Ok((range, data, permit))
                });
            }
            tokio::select! {
                Some(read) = reads.next() => {
                    let (range, data, permit) = read?;
                    self.flow.control.check()?;
                    if let Some(sum) = sum.as_deref_mut() {
                        *sum = std::mem::take(sum).update(data.clone()).await?;
                    }
                    if self.skip_zeros && is_zero(&data) {
                        self.flow.control.report(Event::Written { bytes: range.len });
                        continue;
                    }
                    let write = async move {
                        let outcome = self.write(range, data).await;
                        drop(permit);
                        outcome
                    };
                    if self.in_order {
                        written.push(write.await?);
                    } else {
                        writes.push(write);
                    }
                }
                Some(done) = writes.next() => written.push(done?),
                else => return Ok(written),
            }
        }
    }

    async fn write(&self, range: Range, data: Views) -> Result<(Range, WriteOutcome), Error> {
        let outcome = self.target.write(self.to, range.offset, data, self.stable).await?;
        self.flow.control.report(Event::Written { bytes: range.len });
        Ok((range, outcome))
    }

    /// Reads record by record up to the end of the source. Returns the number of bytes.
    async fn tail(&self, written: &mut Written, mut sum: Option<&mut Checksum>) -> Result<u64, Error> {
        let mut writes = FuturesUnordered::new();
        let mut offset = 0;
        loop {
            let data = self.source.read(self.from, offset, self.flow.record).await?;
            let len = data.len();
            self.flow.control.check()?;
            if len == 0 {
                break;
            }
            if let Some(sum) = sum.as_deref_mut() {
                *sum = std::mem::take(sum).update(data.clone()).await?;
            }
            writes.push(self.write(Range { offset, len }, data));
            offset += len as u64;
            let limit = if self.in_order { 1 } else { self.flow.window };
            while writes.len() >= limit
                && let Some(done) = writes.next().await
            {
                written.push(done?);
            }
        }
        while let Some(done) = writes.next().await {
            written.push(done?);
        }
        Ok(offset)
    }
}

impl Flow {
    pub(crate) async fn permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit, Error> {
        Arc::clone(&self.budget).acquire_owned().await.map_err(|_| Error::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_cover_the_extents_once() {
        let of = |extents: &[ops::Range<u64>]| -> Vec<_> {
            records(extents, 4).map(|r| (r.offset, r.len)).collect()
        };
        assert_eq!(of(&whole(10)), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(of(&whole(0)), []);
        assert_eq!(of(&[1..9, 20..21]), [(1, 4), (5, 4), (20, 1)]);
    }

    #[test]
    fn the_parts_outside_of_extents_are_those_of_the_holes() {
        let content = Content { size: 100, extents: vec![10..20, 40..50], skip_zeros: false };
        assert_eq!(content.outside(&whole(100)), [0..10, 20..40, 50..100]);
        assert_eq!(content.outside(&[5..25, 30..35, 38..60]), [5..10, 20..25, 30..35, 38..40, 50..60]);
        assert_eq!(content.outside(&[12..20, 40..41]), [0..0; 0]);
        assert_eq!(Content::whole(7).outside(&whole(7)), [0..0; 0]);
    }
}
