//! Attributes and ranges of many files, with many calls in flight.

use std::{os::unix::ffi::OsStrExt, path::PathBuf};

use futures::{StreamExt, stream};
use millrace_buffer::Views;
use millrace_client::{Client, Error, handles::File, ops::FileHandle};

use crate::{
    connection::Connected,
    errors::{Failure, at},
    memory::{NewBytes, make_huge_pages},
    metadata::{Stat, stat},
};

/// Maximum number of calls in flight for one operation.
pub(crate) const DEPTH: usize = 16;

/// Attributes of all paths, in their order.
pub(crate) async fn stat_all(client: &Client, paths: Vec<PathBuf>) -> Vec<Result<Stat, Failure>> {
    let calls = paths.into_iter().map(|path| async move {
        let found = client.by_handle().resolve(path.as_os_str().as_bytes()).await;
        let (handle, attributes) = found.map_err(at(&path))?;
        Ok(stat(Some(handle), &attributes))
    });
    stream::iter(calls).buffered(DEPTH).collect().await
}

/// A range of a file, and the object for its data.
pub(crate) struct Range {
    pub(crate) file: FileHandle,
    pub(crate) start: u64,
    pub(crate) data: NewBytes,
}

/// A range that has been read: its object, and the number of bytes up to the end of the file.
pub(crate) type Done = (NewBytes, Result<usize, Error>);

/// Reads all ranges, in READs of at most `rsize` bytes. The order of the results is that of the ranges.
pub(crate) async fn read(connected: &Connected, ranges: Vec<Range>) -> Vec<Done> {
    let nfs = connected.client.by_handle();
    let rsize = (nfs.rsize() as usize).max(1);
    make_huge_pages(ranges.iter().map(|range| &range.data));
    let mut pieces = Vec::new();
    let mut done: Vec<Done> = Vec::with_capacity(ranges.len());
    for (index, range) in ranges.into_iter().enumerate() {
        let len = range.data.len();
        let file = File::new(nfs.clone(), range.file);
        pieces.extend(
            (0..len).step_by(rsize).map(|at| (index, file.clone(), range.start, at, rsize.min(len - at))),
        );
        done.push((range.data, Ok(len)));
    }
    let calls = pieces.into_iter().map(|(index, file, start, at, len)| async move {
        let permit = connected.read().await;
        let data = match start.checked_add(at as u64) {
            Some(offset) => file.read_shared(offset, len).await,
            None => Ok(Views::new()),
        };
        (index, at, len, data, permit)
    });
    let mut calls = stream::iter(calls).buffer_unordered(DEPTH);
    while let Some((index, at, len, data, _permit)) = calls.next().await {
        let Some((memory, result)) = done.get_mut(index) else { continue };
        match (data, &result) {
            (Ok(data), Ok(end)) => {
                let end = if data.len() < len { (*end).min(at + data.len()) } else { *end };
                memory.put(at, &data);
                *result = Ok(end);
            }
            (Err(e), Ok(_)) => *result = Err(e),
            (_, Err(_)) => {}
        }
    }
    done
}
