//! Writing files.

use std::path::PathBuf;

use millrace_client::AtomicFile;
use millrace_objects::{Bytes, Mode, Objects, Publication, publish};
use opendal_core::{Buffer, Error, ErrorKind, Metadata, Result, raw::oio};

use crate::{error, metadata, of_mode};

/// Data is written when this number of bytes is complete, so that small pieces share calls.
const PENDING: usize = 8 << 20;

/// The condition of a write.
#[derive(Debug)]
pub(crate) enum Condition {
    Mode(Mode),
    /// The file has this ETag.
    Match(String),
}

/// A temporary file, and how it gets its name.
#[derive(Debug)]
struct Started {
    file: AtomicFile,
    publication: Publication,
}

/// Writes a temporary file, which gets its name when the writer is closed.
#[derive(Debug)]
pub struct Writer {
    objects: Objects,
    path: PathBuf,
    condition: Condition,
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
    pub(crate) fn new(objects: Objects, path: PathBuf, condition: Condition) -> Self {
        let (pending, pending_bytes, written) = (Vec::new(), 0, 0);
        Self { objects, path, condition, started: None, ended: false, pending, pending_bytes, written }
    }

    async fn start(&self) -> Result<Started> {
        if self.ended {
            let reason = "the conditional write has ended: write the file again";
            return Err(Error::new(ErrorKind::Unexpected, reason));
        }
        let publication = match &self.condition {
            Condition::Mode(mode) => Publication::Mode(*mode),
            Condition::Match(e_tag) => {
                let found = self.objects.find_match(&self.path, e_tag).await.map_err(error::convert)?;
                Publication::Update(found.ok_or_else(error::changed)?)
            }
        };
        let file = AtomicFile::create(self.objects.client(), &self.path).await.map_err(error::convert)?;
        Ok(Started { file, publication })
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
        let started = self.flush().await?;
        let version = match started.publication {
            Publication::Mode(mode) => publish(&mut started.file, mode).await.map_err(of_mode(mode))?,
            Publication::Update(version) => {
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
