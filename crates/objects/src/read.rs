//! Reading versions of objects.

use std::{io::ErrorKind, ops::Range};

use bytes::{Bytes, BytesMut};
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use millrace_client::{Error, buffer::copied, handles, ops::FileHandle};

use crate::Objects;

/// Maximum number of READ calls in flight for one range.
const DEPTH: usize = 8;

impl Objects {
    /// The data of a range of a version, in order, with up to 8 READs in flight.
    ///
    /// # Errors
    /// Kind [`ErrorKind::StaleNetworkFileHandle`] if the version has been replaced, or is shorter than the range; the
    /// errors of [`handles::Client::read_into`]. The stream ends after an error.
    pub fn read_stream(
        &self,
        version: FileHandle,
        range: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes, Error>> {
        let file = handles::File::new(self.client().by_handle().clone(), version);
        let this = self.clone();
        let pieces = pieces(range, self.client().by_handle().rsize());
        let reads = stream::iter(pieces).map(move |piece| {
            let (this, file) = (this.clone(), file.clone());
            async move { Ok::<_, Error>(stream::iter(this.read_piece(&file, piece).await?).map(Ok)) }
        });
        reads.buffered(DEPTH).try_flatten().boxed()
    }

    /// Reads a range of a version into contiguous memory: without a copy if one READ suffices.
    ///
    /// # Errors
    /// As [`Self::read_stream`].
    pub async fn read(&self, version: FileHandle, range: Range<u64>) -> Result<Bytes, Error> {
        let len = range.end.saturating_sub(range.start) as usize;
        let mut data = self.read_stream(version, range);
        let first = data.try_next().await?.unwrap_or_default();
        if first.len() == len {
            return Ok(first);
        }
        let mut all = BytesMut::with_capacity(len);
        copied::count(len);
        all.extend_from_slice(&first);
        while let Some(next) = data.try_next().await? {
            all.extend_from_slice(&next);
        }
        Ok(all.freeze())
    }

    /// Reads at most [`handles::Client::rsize`] bytes.
    async fn read_piece(&self, file: &handles::File, range: Range<u64>) -> Result<Vec<Bytes>, Error> {
        let len = (range.end - range.start) as usize;
        let _permit = self.memory.for_reading(len).await;
        let data = file.read_shared(range.start, len).await?;
        if data.len() < len {
            return Err(Error::Path {
                path: file.handle().to_string(),
                reason: format!("the file ends before offset {}", range.end),
                kind: ErrorKind::StaleNetworkFileHandle,
            });
        }
        Ok(data.iter().map(|view| self.memory.lend(view.clone())).collect())
    }
}

/// The parts of `range` of at most `len` bytes.
fn pieces(range: Range<u64>, len: u32) -> impl Iterator<Item = Range<u64>> + Send {
    let len = u64::from(len.max(1));
    let count = range.end.saturating_sub(range.start).div_ceil(len);
    (0..count).map(move |n| {
        let start = range.start + n * len;
        start..range.end.min(start.saturating_add(len))
    })
}
