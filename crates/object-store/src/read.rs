//! Reading objects.

use std::{ops::Range, path::Path as FilePath};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use millrace_objects::{Objects, Version, is_replaced};
use object_store::{
    Attributes, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, Result, path::Path,
};

use crate::{error, meta};

/// Maximum number of ranges that are read at the same time.
const RANGES: usize = 16;
/// Maximum number of attempts to read an object that is replaced meanwhile.
const MAX_ATTEMPTS: usize = 100;

/// The error of an attempt to read an object.
enum Failure {
    Read(millrace_client::Error),
    Other(Error),
}

pub(crate) async fn get(
    objects: &Objects,
    path: &FilePath,
    location: &Path,
    options: &GetOptions,
) -> Result<GetResult> {
    if options.version.is_some() {
        return Err(error::no_versions());
    }
    repeat(location, || try_get(objects, path, location, options)).await
}

pub(crate) async fn get_ranges(
    objects: &Objects,
    path: &FilePath,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    repeat(location, || async {
        // All ranges are of one version.
        let version = objects.find(path).await.map_err(Failure::Read)?;
        let reads = ranges.iter().cloned().map(|range| async move {
            let range = GetRange::Bounded(range).as_range(version.attributes.size);
            let range = range.map_err(|e| Failure::Other(error::generic(e)))?;
            objects.read(version.handle, range).await.map_err(Failure::Read)
        });
        stream::iter(reads).buffered(RANGES).try_collect().await
    })
    .await
}

async fn try_get(
    objects: &Objects,
    path: &FilePath,
    location: &Path,
    options: &GetOptions,
) -> Result<GetResult, Failure> {
    let version = objects.find(path).await.map_err(Failure::Read)?;
    let meta = meta::of(location.clone(), Some(&version), &version.attributes);
    options.check_preconditions(&meta).map_err(Failure::Other)?;
    let range = match &options.range {
        Some(range) => range.as_range(meta.size).map_err(|e| Failure::Other(error::generic(e)))?,
        None => 0..meta.size,
    };
    let data = if options.head {
        stream::empty().boxed()
    } else {
        data(objects, location, version, range.clone()).await?
    };
    Ok(GetResult {
        payload: GetResultPayload::Stream(data),
        meta,
        range,
        attributes: Attributes::new(),
        extensions: Extensions::new(),
    })
}

/// The data of a range. The first piece is read at once: a small object that is replaced meanwhile can be read again,
/// because no data of the earlier version has been passed on.
async fn data(
    objects: &Objects,
    location: &Path,
    version: Version,
    range: Range<u64>,
) -> Result<BoxStream<'static, Result<Bytes>>, Failure> {
    let mut data = objects.read_stream(version.handle, range);
    let first = data.try_next().await.map_err(Failure::Read)?;
    let location = location.clone();
    let rest = data.map_err(move |e| error::of_read(&location, e));
    Ok(stream::iter(first.map(Ok)).chain(rest).boxed())
}

/// Repeats a read of an object that was replaced meanwhile.
async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
    location: &Path,
    read: impl Fn() -> F,
) -> Result<T> {
    let mut attempts = 1;
    loop {
        match read().await {
            Ok(read) => return Ok(read),
            Err(Failure::Read(e)) if is_replaced(&e) && attempts < MAX_ATTEMPTS => attempts += 1,
            Err(Failure::Read(e)) => return Err(error::of_read(location, e)),
            Err(Failure::Other(e)) => return Err(e),
        }
    }
}
