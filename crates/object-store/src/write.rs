//! Writing objects.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use futures::FutureExt;
use millrace_client::{AtomicFile, Client, Metadata, Views, buffer::copied, nfs3};
use object_store::{
    Error, Extensions, MultipartUpload, PutMode, PutPayload, PutResult, Result, UploadPart, path::Path,
};

use crate::{
    error::{self, STORE},
    memory::Memory,
    meta,
};

/// Maximum number of WRITE calls in flight for one payload.
const DEPTH: usize = 8;
/// Maximum number of bytes of a payload between two COMMITs: the client retains them.
const BATCH: usize = 16 << 20;

/// Writes an object: to a temporary file, which then replaces the object, or is created under its name.
pub(crate) async fn put(
    (client, memory): (&Client, &Memory),
    path: PathBuf,
    location: &Path,
    payload: PutPayload,
    mode: PutMode,
) -> Result<PutResult> {
    let at = |e| error::at(location, e);
    let mut file = AtomicFile::create(client, path).await.map_err(at)?;
    write(file.file(), memory, 0, payload).await.map_err(at)?;
    let done = if mode == PutMode::Create { file.create_new().await } else { file.replace().await };
    Ok(result(file.file(), &done.map_err(at)?))
}

fn result(file: &nfs3::File, metadata: &Metadata) -> PutResult {
    let e_tag = Some(meta::e_tag(file.handle(), metadata.attributes()));
    PutResult { e_tag, version: None, extensions: Extensions::new() }
}

/// Writes a payload at `offset`, and commits it. The data is copied once, into memory of the client's arena.
async fn write(
    file: &nfs3::File,
    memory: &Memory,
    offset: u64,
    payload: PutPayload,
) -> Result<(), millrace_client::Error> {
    let mut left = payload.content_length();
    let (mut rest, mut next) = (payload.into_iter().collect(), offset);
    while left > 0 {
        let mut batch = left.min(BATCH);
        let _permit = memory.for_writing(batch).await;
        left -= batch;
        let pieces = |max: usize| {
            let len = batch.min(max);
            batch -= len;
            (len > 0).then(|| gather(file.client(), &mut rest, len)).transpose().map_err(Into::into)
        };
        next += file.write_stream(next, DEPTH, pieces).await?;
    }
    Ok(())
}

/// Copies the next `len` bytes of `rest`, which has at least that many.
fn gather(
    client: &nfs3::Client,
    rest: &mut VecDeque<Bytes>,
    len: usize,
) -> Result<Views, millrace_client::Error> {
    let mut memory = client.buffer(len)?;
    let mut out = &mut memory[..];
    while let Some(part) = rest.front_mut()
        && !out.is_empty()
    {
        let (filled, unfilled) = out.split_at_mut(part.len().min(out.len()));
        part.copy_to_slice(filled);
        out = unfilled;
        if part.is_empty() {
            rest.pop_front();
        }
    }
    copied::count(len);
    Ok(memory.freeze().into())
}

/// A multipart upload: the parts are written to a temporary file at the offsets that follow from the order of the calls
/// of [`MultipartUpload::put_part`].
#[derive(Debug)]
pub(crate) struct Upload {
    location: Path,
    memory: Memory,
    /// `None` after the end of the upload.
    file: Option<AtomicFile>,
    /// Size of all parts in bytes.
    size: u64,
    /// Size of the parts that are written, in bytes.
    written: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) async fn start(
        (client, memory): (&Client, &Memory),
        path: PathBuf,
        location: Path,
    ) -> Result<Self> {
        let file = AtomicFile::create(client, path).await.map_err(|e| error::at(&location, e))?;
        Ok(Self { location, memory: memory.clone(), file: Some(file), size: 0, written: Arc::default() })
    }

    fn ended(&self) -> Error {
        failed(format!("the upload of {} is already complete or aborted", self.location))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(file) = &self.file else {
            let ended = self.ended();
            return async move { Err(ended) }.boxed();
        };
        let (file, location, written) =
            (file.file().clone(), self.location.clone(), Arc::clone(&self.written));
        let memory = self.memory.clone();
        let (offset, len) = (self.size, data.content_length() as u64);
        self.size += len;
        async move {
            write(&file, &memory, offset, data).await.map_err(|e| error::at(&location, e))?;
            written.fetch_add(len, Ordering::Release);
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let Some(file) = &mut self.file else { return Err(self.ended()) };
        // Otherwise the object would have a part of zeros, and a later write would change it.
        let missing = self.size - self.written.load(Ordering::Acquire);
        if missing > 0 {
            let reason = format!(
                "{missing} of {} bytes of {} are not written: wait for all parts, or abort the upload",
                self.size, self.location
            );
            return Err(failed(reason));
        }
        let metadata = file.replace().await.map_err(|e| error::at(&self.location, e))?;
        let done = result(file.file(), &metadata);
        self.file = None;
        Ok(done)
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take().ok_or_else(|| self.ended())?;
        file.remove().await.map_err(|e| error::at(&self.location, e))
    }
}

fn failed(reason: String) -> Error {
    Error::Generic { store: STORE, source: reason.into() }
}
