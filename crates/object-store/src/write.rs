//! Writing objects.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use futures::FutureExt;
use millrace_client::AtomicFile;
use millrace_objects::{Mode, Objects, Version, publish};
use object_store::{
    Error, Extensions, MultipartUpload, PutMode, PutPayload, PutResult, Result, UpdateVersion, UploadPart,
    path::Path,
};

use crate::error;

/// Writes an object: to a temporary file, which then replaces the object, or is created under its name, under the
/// condition of `mode`.
pub(crate) async fn put(
    objects: &Objects,
    path: PathBuf,
    location: &Path,
    payload: PutPayload,
    mode: PutMode,
) -> Result<PutResult> {
    let at = |e| error::at(location, e);
    let (mode, replaced) = match mode {
        PutMode::Overwrite => (Mode::Replace, None),
        PutMode::Create => (Mode::Create, None),
        PutMode::Update(version) => {
            // Before the data is sent.
            let found = objects.find_match(&path, expected(&version)?).await.map_err(at)?;
            (Mode::Replace, Some(found.ok_or_else(|| error::changed(location))?))
        }
    };
    let mut file = AtomicFile::create(objects.client(), path).await.map_err(at)?;
    objects.write(file.file(), 0, payload).await.map_err(at)?;
    let version = match replaced {
        None => publish(&mut file, mode).await.map_err(at)?,
        Some(version) => {
            objects.update(file, version).await.map_err(at)?.ok_or_else(|| error::changed(location))?
        }
    };
    Ok(result(&version))
}

/// The ETag of the version that an update replaces.
fn expected(version: &UpdateVersion) -> Result<&str> {
    match version {
        UpdateVersion { e_tag: Some(e_tag), version: None } => Ok(e_tag),
        UpdateVersion { version: Some(_), .. } => Err(error::no_versions()),
        _ => {
            Err(error::generic("`PutMode::Update` needs the ETag of the object, from `head`, `get` or `put`"))
        }
    }
}

fn result(version: &Version) -> PutResult {
    PutResult { e_tag: Some(version.e_tag()), version: None, extensions: Extensions::new() }
}

/// A multipart upload: the parts are written to a temporary file at the offsets that follow from the order of the calls
/// of [`MultipartUpload::put_part`].
#[derive(Debug)]
pub(crate) struct Upload {
    objects: Objects,
    location: Path,
    /// `None` after the end of the upload.
    file: Option<AtomicFile>,
    /// Size of all parts in bytes.
    size: u64,
    /// Size of the parts that are written, in bytes.
    written: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) async fn start(objects: &Objects, path: PathBuf, location: Path) -> Result<Self> {
        let file = AtomicFile::create(objects.client(), path).await;
        let file = Some(file.map_err(|e| error::at(&location, e))?);
        Ok(Self { objects: objects.clone(), location, file, size: 0, written: Arc::default() })
    }

    fn ended(&self) -> Error {
        error::generic(format!("the upload of {} is already complete or aborted", self.location))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(file) = &self.file else {
            let ended = self.ended();
            return async move { Err(ended) }.boxed();
        };
        let (objects, file) = (self.objects.clone(), file.file().clone());
        let (location, written) = (self.location.clone(), Arc::clone(&self.written));
        let (offset, len) = (self.size, data.content_length() as u64);
        self.size += len;
        async move {
            objects.write(&file, offset, data).await.map_err(|e| error::at(&location, e))?;
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
            return Err(error::generic(format!(
                "{missing} of {} bytes of {} are not written: wait for all parts, or abort the upload",
                self.size, self.location
            )));
        }
        let version = publish(file, Mode::Replace).await.map_err(|e| error::at(&self.location, e))?;
        self.file = None;
        Ok(result(&version))
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take().ok_or_else(|| self.ended())?;
        file.remove().await.map_err(|e| error::at(&self.location, e))
    }
}
