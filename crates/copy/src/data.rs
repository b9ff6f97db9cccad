//! Transfer of the content of one file: pipelined records, checksum, retransmission of records that a server
//! has lost.

use std::{collections::VecDeque, sync::Arc};

use futures::{
    StreamExt,
    stream::{FuturesOrdered, FuturesUnordered},
};
use millrace_buffer::Views;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{
    Error,
    control::{Control, Event},
    tree::{Source, Target, WriteOutcome},
};

/// Maximum number of rewrites of a file's lost records.
const MAX_REWRITES: usize = 16;
/// Size in bytes above which data is hashed on a blocking thread.
const MAX_INLINE_HASH: usize = 64 << 10;
/// Maximum number of bytes that a server copies at once: the interval of the events.
const WITHIN: u64 = 64 << 20;

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

fn ranges(size: u64, record: usize) -> impl Iterator<Item = Range> {
    let step = record.max(1) as u64;
    (0..size.div_ceil(step)).map(move |i| {
        let offset = i * step;
        Range { offset, len: (size - offset).min(step) as usize }
    })
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

/// Reads `size` bytes of `file` in order, with several records in flight, and returns their checksum.
pub(crate) async fn checksum<S: Source>(
    tree: &S,
    file: &S::Reader,
    size: u64,
    flow: &Flow,
) -> Result<[u8; 32], Error> {
    let mut todo = ranges(size, flow.record);
    let mut reads = FuturesOrdered::new();
    let mut sum = Checksum::default();
    loop {
        while reads.len() < flow.window
            && let Some(r) = todo.next()
        {
            reads.push_back(async move {
                let _permit = flow.permit().await?;
                tree.read(file, r.offset, r.len).await
            });
        }
        match reads.next().await {
            Some(data) => {
                flow.control.check()?;
                sum = sum.update(data?).await?;
            }
            None => return Ok(sum.finish()),
        }
    }
}

/// Number of bytes copied, and their checksum if requested.
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    pub(crate) checksum: Option<[u8; 32]>,
}

/// Copies the `size` bytes of `from` to `to` within the server, and makes them stable there. `None` if the server cannot do
/// so; [`transfer`] can.
pub(crate) async fn copy_within<S: Source, T: Target>(
    (source, from): (&S, &S::Reader),
    (target, to): (&T, &T::Writer),
    size: u64,
    flow: &Flow,
) -> Result<Option<Copied>, Error> {
    let Some(from) = source.exported(from).filter(|_| size > 0) else { return Ok(None) };
    let mut done = 0;
    while done < size {
        let _permit = flow.permit().await?;
        let end = size.min(done + WITHIN);
        let Some(bytes) = target.copy(&from, to, done..end).await? else { return Ok(None) };
        if bytes < end - done {
            return Err(Error::Shrunk);
        }
        flow.control.check()?;
        flow.control.report(Event::Written { bytes: bytes as usize });
        done = end;
    }
    Ok(Some(Copied { bytes: size, checksum: None }))
}

/// Copies the `size` bytes of `from` to `to` and makes them stable there.
pub(crate) async fn transfer<S: Source, T: Target>(
    (source, from): (&S, &S::Reader),
    (target, to): (&T, &T::Writer),
    size: u64,
    with_checksum: bool,
    flow: &Flow,
) -> Result<Copied, Error> {
    let mut pass = Pass { source, from, target, to, flow, stable: size <= flow.record as u64 };
    let mut sum = with_checksum.then(Checksum::default);
    let mut written = pass.run(ranges(size, flow.record), sum.as_mut()).await?;
    let mut bytes = size;
    if size == 0 {
        // Generated files, such as those in /proc, have size 0 and content.
        bytes = pass.tail(&mut written, sum.as_mut()).await?;
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
                    writes.push(async move {
                        let outcome = self.target.write(self.to, range.offset, data, self.stable).await?;
                        self.flow.control.report(Event::Written { bytes: range.len });
                        drop(permit);
                        Ok::<_, Error>((range, outcome))
                    });
                }
                Some(done) = writes.next() => written.push(done?),
                else => return Ok(written),
            }
        }
    }

    /// Copies record by record up to the end of the source. Returns the number of bytes.
    async fn tail(&self, written: &mut Written, mut sum: Option<&mut Checksum>) -> Result<u64, Error> {
        let mut offset = 0;
        loop {
            let data = self.source.read(self.from, offset, self.flow.record).await?;
            let len = data.len();
            if len == 0 {
                return Ok(offset);
            }
            self.flow.control.check()?;
            if let Some(sum) = sum.as_deref_mut() {
                *sum = std::mem::take(sum).update(data.clone()).await?;
            }
            let outcome = self.target.write(self.to, offset, data, false).await?;
            written.push((Range { offset, len }, outcome));
            offset += len as u64;
        }
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
    fn ranges_cover_a_file_once() {
        let all: Vec<_> = ranges(10, 4).map(|r| (r.offset, r.len)).collect();
        assert_eq!(all, [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(ranges(0, 4).count(), 0);
        assert_eq!(ranges(8, 4).count(), 2);
    }
}
