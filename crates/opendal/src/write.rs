//! Writing files.

use std::path::PathBuf;

use millrace_client::AtomicFile;
use millrace_objects::{Bytes, Mode, Objects, Version, publish};
use opendal_core::{Buffer, Error, ErrorKind, Metadata, Result, raw::oio};

use crate::{error, metadata, of_mode};

/// Data is written when this number of bytes is complete, so that small pieces share calls.
const PENDING: usize = 8 << 20;

/// A temporary file.
#[derive(Debug)]
struct Started {
    file: AtomicFile,
    /// The version that it replaces, if there is a condition.
    replaced: Option<Version>,
}

/// Writes a temporary file, which gets its name when the writer is closed.
#[derive(Debug)]
pub struct Writer {
    objects: Objects,
    path: PathBuf,
    mode: Mode,
    /// The ETag of the file that is replaced, if it is a condition.
    if_match: Option<String>,
    /// Created with the first data, or when the writer is closed.
    started: Option<Started>,
    /// Whether the file has got its name on the condition of an ETag, or has not.
    ended: bool,
    /// The data that is not yet written.
    pending: Vec<Bytes>,
    pending_bytes: usize,
    /// The number of bytes that are written.
    written: u64,
}

impl Writer {
    pub(crate) fn new(objects: Objects, path: PathBuf, mode: Mode, if_match: Option<String>) -> Self {
        let (pending, pending_bytes, written) = (Vec::new(), 0, 0);
        Self { objects, path, mode, if_match, started: None, ended: false, pending, pending_bytes, written }
    }

    async fn start(&self) -> Result<Started> {
        if self.ended {
            let reason = "the conditional write has ended: write the file again";
            return Err(Error::new(ErrorKind::Unexpected, reason));
        }
        let replaced = match &self.if_match {
            None => None,
            Some(e_tag) => {
                let found = self.objects.find_match(&self.path, e_tag).await.map_err(error::convert)?;
                Some(found.ok_or_else(error::changed)?)
            }
        };
        let file = AtomicFile::create(self.objects.client(), &self.path).await.map_err(error::convert)?;
        Ok(Started { file, replaced })
    }

    async fn flush(&mut self) -> Result<&mut Started> {
        let started = match self.started.take() {
            Some(started) => started,
            None => self.start().await?,
        };
        let started = self.started.insert(started);
        if self.pending_bytes > 0 {
            // The pieces stay pending after an error, so that a retry writes them again at the same offset.
            let pieces = self.pending.iter().cloned();
            let written = self.objects.write(started.file.file(), self.written, pieces).await;
            written.map_err(error::convert)?;
            self.written += self.pending_bytes as u64;
            self.pending.clear();
            self.pending_bytes = 0;
        }
        Ok(started)
    }
}

impl oio::Write for Writer {
    async fn write(&mut self, data: Buffer) -> Result<()> {
        if self.pending_bytes >= PENDING {
            self.flush().await?;
        }
        self.pending_bytes += data.len();
        self.pending.extend(data);
        Ok(())
    }

    async fn close(&mut self) -> Result<Metadata> {
        let mode = self.mode;
        let started = self.flush().await?;
        let version = match started.replaced {
            None => publish(&mut started.file, mode).await.map_err(of_mode(mode))?,
            Some(version) => {
                // The update owns the file, and may have given it its name although it fails: a retry has no effect.
                self.ended = true;
                let Some(Started { file, .. }) = self.started.take() else { return Err(error::changed()) };
                let updated = self.objects.update(file, version).await.map_err(error::convert)?;
                updated.ok_or_else(error::changed)?
            }
        };
        Ok(metadata::of_version(&version))
    }

    async fn abort(&mut self) -> Result<()> {
        self.pending.clear();
        self.pending_bytes = 0;
        match self.started.take() {
            Some(started) => started.file.remove().await.map_err(error::convert),
            None => Ok(()),
        }
    }
}
