//! Writing files.

use std::path::PathBuf;

use millrace_client::AtomicFile;
use millrace_objects::{Bytes, Mode, Objects, publish};
use opendal_core::{Buffer, Metadata, Result, raw::oio};

use crate::{error, metadata};

/// Data is written when this number of bytes is complete, so that small pieces share calls.
const PENDING: usize = 8 << 20;

/// Writes a temporary file, which gets its name when the writer is closed.
#[derive(Debug)]
pub struct Writer {
    objects: Objects,
    path: PathBuf,
    mode: Mode,
    /// Created with the first data, or when the writer is closed.
    file: Option<AtomicFile>,
    /// The data that is not yet written.
    pending: Vec<Bytes>,
    pending_bytes: usize,
    /// The number of bytes that are written.
    written: u64,
}

impl Writer {
    pub(crate) fn new(objects: Objects, path: PathBuf, mode: Mode) -> Self {
        Self { objects, path, mode, file: None, pending: Vec::new(), pending_bytes: 0, written: 0 }
    }

    async fn flush(&mut self) -> Result<&mut AtomicFile, millrace_client::Error> {
        let file = match self.file.take() {
            Some(file) => file,
            None => AtomicFile::create(self.objects.client(), &self.path).await?,
        };
        let file = self.file.insert(file);
        if self.pending_bytes > 0 {
            // The pieces stay pending after an error, so that a retry writes them again at the same offset.
            self.objects.write(file.file(), self.written, self.pending.iter().cloned()).await?;
            self.written += self.pending_bytes as u64;
            self.pending.clear();
            self.pending_bytes = 0;
        }
        Ok(file)
    }
}

impl oio::Write for Writer {
    async fn write(&mut self, data: Buffer) -> Result<()> {
        if self.pending_bytes >= PENDING {
            self.flush().await.map_err(error::convert)?;
        }
        self.pending_bytes += data.len();
        self.pending.extend(data);
        Ok(())
    }

    async fn close(&mut self) -> Result<Metadata> {
        let mode = self.mode;
        let file = self.flush().await.map_err(error::convert)?;
        let version = publish(file, mode).await;
        let version =
            version.map_err(if mode == Mode::Create { error::if_not_exists } else { error::convert })?;
        Ok(metadata::of_version(&version))
    }

    async fn abort(&mut self) -> Result<()> {
        self.pending.clear();
        self.pending_bytes = 0;
        match self.file.take() {
            Some(file) => file.remove().await.map_err(error::convert),
            None => Ok(()),
        }
    }
}
