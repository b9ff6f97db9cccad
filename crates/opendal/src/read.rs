//! Reading files.

use std::{ops::Range, path::PathBuf};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use millrace_objects::{Bytes, Objects, Version};
use millrace_runtime::sync::Mutex;
use opendal_core::{
    Buffer, BytesRange, Error, ErrorKind, Result,
    raw::{RpRead, oio},
};
use tokio::sync::OnceCell;

use crate::{error, metadata};

/// Reads one version of a file: the one that exists at the first read.
#[derive(Debug)]
pub struct Reader {
    objects: Objects,
    path: PathBuf,
    version: OnceCell<Version>,
}

/// The data of a range. The mutex is accessed by `&mut self` only: the stream is not `Sync`.
struct Stream(Mutex<BoxStream<'static, Result<Bytes, millrace_client::Error>>>);

impl Reader {
    pub(crate) fn new(objects: Objects, path: PathBuf) -> Self {
        Self { objects, path, version: OnceCell::new() }
    }

    /// The version, and the range of its bytes.
    async fn locate(&self, range: BytesRange) -> Result<(&Version, Range<u64>)> {
        let version = self.version.get_or_try_init(|| self.objects.find(&self.path)).await;
        let version = version.map_err(error::of_existing)?;
        let size = version.attributes.size;
        let bytes = match (range.is_suffix(), range.size()) {
            (true, len) => size.saturating_sub(len.unwrap_or(size))..size,
            (false, Some(len)) => range.offset()..range.offset().saturating_add(len),
            (false, None) => range.offset()..size,
        };
        if bytes.start > bytes.end || bytes.end > size {
            let reason = format!("the range {range} is not inside the file of {size} bytes");
            return Err(Error::new(ErrorKind::RangeNotSatisfied, reason));
        }
        Ok((version, bytes))
    }
}

impl oio::Read for Reader {
    async fn open(&self, range: BytesRange) -> Result<(RpRead, Box<dyn oio::ReadStreamDyn>)> {
        let (version, bytes) = self.locate(range).await?;
        let stream = Stream(Mutex::new(self.objects.read_stream(version.handle, bytes)));
        Ok((RpRead::new(metadata::of_version(version)), Box::new(stream)))
    }

    async fn read(&self, range: BytesRange) -> Result<(RpRead, Buffer)> {
        let (version, bytes) = self.locate(range).await?;
        let data: Vec<Bytes> =
            self.objects.read_stream(version.handle, bytes).try_collect().await.map_err(error::convert)?;
        Ok((RpRead::new(metadata::of_version(version)), data.into()))
    }
}

impl oio::ReadStream for Stream {
    async fn read(&mut self) -> Result<Buffer> {
        let next = self.0.get_mut().next().await.transpose().map_err(error::convert)?;
        Ok(next.unwrap_or_default().into())
    }
}
