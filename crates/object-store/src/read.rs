//! Reading objects.

use std::{ops::Range, os::unix::ffi::OsStrExt, path::Path as FilePath};

use bytes::{Bytes, BytesMut};
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use millrace_client::{Client, FileType, buffer::copied, nfs3};
use object_store::{
    Attributes, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result,
    path::Path,
};

use crate::{
    error::{self, STORE},
    memory::Memory,
    meta,
};

/// Maximum number of READ calls in flight for one range.
const DEPTH: usize = 8;
/// Maximum number of ranges that are read at the same time.
const RANGES: usize = 16;
/// Maximum number of attempts to read an object that is replaced meanwhile.
const MAX_ATTEMPTS: usize = 100;

/// Reads objects.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    client: Client,
    memory: Memory,
}

/// An object that was found.
struct Found {
    file: nfs3::File,
    meta: ObjectMeta,
}

/// The error of an attempt to read an object.
enum Failure {
    /// The object was replaced, removed or truncated.
    Changed,
    Other(Error),
}

impl Reader {
    pub(crate) fn new(client: Client, memory: Memory) -> Self {
        Self { client, memory }
    }

    pub(crate) async fn get(
        &self,
        path: &FilePath,
        location: &Path,
        options: &GetOptions,
    ) -> Result<GetResult> {
        if options.version.is_some() {
            let source = "an NFS export has no earlier versions of objects".into();
            return Err(Error::NotSupported { source });
        }
        repeat(location, || self.try_get(path, location, options)).await
    }

    pub(crate) async fn get_ranges(
        &self,
        path: &FilePath,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        repeat(location, || async {
            let found = self.find(path, location).await.map_err(Failure::Other)?;
            let (file, size) = (&found.file, found.meta.size);
            let reads = ranges.iter().cloned().map(|range| async move {
                let range = GetRange::Bounded(range).as_range(size);
                self.range(file, location, range.map_err(|e| Failure::Other(generic(e)))?).await
            });
            // All ranges are of one version, because the handle is that of one file.
            stream::iter(reads).buffered(RANGES).try_collect().await
        })
        .await
    }

    async fn find(&self, path: &FilePath, location: &Path) -> Result<Found> {
        let nfs = self.client.nfs3();
        let found = nfs.resolve(path.as_os_str().as_bytes()).await;
        let (handle, attributes) = found.map_err(|e| error::of_existing(location, e))?;
        if attributes.file_type != FileType::Regular {
            return Err(error::not_an_object(location, attributes.file_type));
        }
        let meta = meta::of(location.clone(), Some(handle), &attributes);
        Ok(Found { file: nfs3::File::new(nfs.clone(), handle), meta })
    }

    async fn try_get(
        &self,
        path: &FilePath,
        location: &Path,
        options: &GetOptions,
    ) -> Result<GetResult, Failure> {
        let Found { file, meta } = self.find(path, location).await.map_err(Failure::Other)?;
        options.check_preconditions(&meta).map_err(Failure::Other)?;
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).map_err(|e| Failure::Other(generic(e)))?,
            None => 0..meta.size,
        };
        let data = if options.head {
            stream::empty().boxed()
        } else {
            self.data(file, location, range.clone()).await?
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(data),
            meta,
            range,
            attributes: Attributes::new(),
            extensions: Extensions::new(),
        })
    }

    /// The data of a range. The first piece is read at once: a small object that is replaced meanwhile can be read
    /// again, and nothing of the earlier version has been passed on.
    async fn data(
        &self,
        file: nfs3::File,
        location: &Path,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes>>, Failure> {
        let mut pieces = pieces(range, self.client.nfs3().rsize());
        let Some(first) = pieces.next() else { return Ok(stream::empty().boxed()) };
        let first = self.piece(&file, location, first).await?;
        let (this, location) = (self.clone(), location.clone());
        let rest = stream::iter(pieces).map(move |piece| {
            let (this, file, location) = (this.clone(), file.clone(), location.clone());
            async move {
                let data = this.piece(&file, &location, piece).await.map_err(|e| e.into_error(&location))?;
                Ok::<_, Error>(stream::iter(data).map(Ok))
            }
        });
        Ok(stream::iter(first).map(Ok).chain(rest.buffered(DEPTH).try_flatten()).boxed())
    }

    /// Reads a range into contiguous memory: without a copy if one READ suffices.
    async fn range(&self, file: &nfs3::File, location: &Path, range: Range<u64>) -> Result<Bytes, Failure> {
        let len = (range.end - range.start) as usize;
        let reads = pieces(range, self.client.nfs3().rsize()).map(|piece| self.piece(file, location, piece));
        let mut reads = stream::iter(reads).buffered(DEPTH);
        let mut first = reads.try_next().await?.unwrap_or_default();
        if first.len() == 1
            && let Some(bytes) = first.pop_if(|bytes| bytes.len() == len)
        {
            return Ok(bytes);
        }
        let mut all = BytesMut::with_capacity(len);
        copied::count(len);
        first.iter().for_each(|bytes| all.extend_from_slice(bytes));
        while let Some(data) = reads.try_next().await? {
            data.iter().for_each(|bytes| all.extend_from_slice(bytes));
        }
        Ok(all.freeze())
    }

    /// Reads at most [`nfs3::Client::rsize`] bytes.
    async fn piece(
        &self,
        file: &nfs3::File,
        location: &Path,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, Failure> {
        let len = (range.end - range.start) as usize;
        let _permit = self.memory.for_reading(len).await;
        match file.read_shared(range.start, len).await {
            Ok(data) if data.len() == len => {
                Ok(data.iter().map(|view| self.memory.lend(view.clone())).collect())
            }
            Ok(_) => Err(Failure::Changed),
            Err(e) if error::is_stale(&e) => Err(Failure::Changed),
            Err(e) => Err(Failure::Other(error::of_existing(location, e))),
        }
    }
}

impl Failure {
    fn into_error(self, location: &Path) -> Error {
        match self {
            Self::Changed => error::changed(location),
            Self::Other(e) => e,
        }
    }
}

/// Repeats a read of an object that was replaced meanwhile.
async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
    location: &Path,
    read: impl Fn() -> F,
) -> Result<T> {
    for _ in 1..MAX_ATTEMPTS {
        match read().await {
            Err(Failure::Changed) => {}
            other => return other.map_err(|e| e.into_error(location)),
        }
    }
    read().await.map_err(|e| e.into_error(location))
}

/// The parts of `range` of at most `len` bytes.
fn pieces(range: Range<u64>, len: u32) -> impl Iterator<Item = Range<u64>> + Send {
    let len = u64::from(len.max(1));
    let count = (range.end - range.start).div_ceil(len);
    (0..count).map(move |n| {
        let start = range.start + n * len;
        start..range.end.min(start.saturating_add(len))
    })
}

fn generic(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: STORE, source: Box::new(e) }
}
