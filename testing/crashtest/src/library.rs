//! The client library as a subject of the workload.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_client::{
    Error, Version,
    handles::{Client, File},
    ops::SetAttributes,
};
use millrace_runtime::{BoxFuture, RuntimeExt};
use parking_lot::Mutex;

use crate::{Disk, Subject};

/// One write in N is cancelled, most of them while the call is in flight.
const CANCELS: u64 = 16;
/// One write in N is a copy within the server, from a file that has the data.
const COPIES: u64 = 8;
/// Size in bytes of that file, whose ranges are used in turn: a cancelled copy still reads an earlier one.
const SOURCE: u64 = 8 << 20;

/// The client library: each writer has its own open files of one client.
pub struct Library {
    client: Client,
    names: Vec<String>,
    open: Vec<Mutex<File>>,
    /// Maximum delay of a cancellation.
    cancel: Duration,
    disk: Option<Arc<Disk>>,
    /// The source of copies, with NFSv4.2.
    source: Option<File>,
    /// Where the next copy stores its data in the source.
    next: AtomicU64,
}

impl Library {
    /// Creates the empty files `names` in the root of the client's export, and opens each once for each
    /// writer. With NFSv4.2 some writes are copies within the server. Some writes are cancelled, at most `cancel` after their start.
    ///
    /// # Errors
    /// Those of the calls.
    pub async fn new(
        client: Client,
        names: Vec<String>,
        writers: usize,
        cancel: Duration,
    ) -> Result<Self, Error> {
        let mut open = Vec::new();
        for _ in 0..writers {
            for name in &names {
                open.push(Mutex::new(client.create_file(name, 0o600).await?));
            }
        }
        let source = match client.version() {
            Version::V4_2 => Some(client.create_file(format!("{}-source", names.concat()), 0o600).await?),
            _ => None,
        };
        Ok(Self { client, names, open, cancel, disk: None, source, next: AtomicU64::new(0) })
    }

    /// Writes `data`, or copies it within the server.
    async fn write_or_copy(&self, file: &File, offset: u64, data: &[u8]) -> Result<(), Error> {
        let source =
            self.source.as_ref().filter(|_| self.client.runtime().random_u64().is_multiple_of(COPIES));
        let Some(source) = source else { return file.write(offset, data).await };
        let len = data.len() as u64;
        let from = self.next.fetch_add(len, Ordering::Relaxed) % SOURCE;
        source.write(from, data).await?;
        match file.copy_range(&self.client, (source, from), offset, len).await {
            Ok(copied) if copied == len => Ok(()),
            Ok(copied) => Err(Error::InvalidInput(format!("{copied} of {len} bytes were copied"))),
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => file.write(offset, data).await,
            Err(e) => Err(e),
        }
    }

    /// Sets the disk of the server, so that stable data can be checked.
    #[must_use]
    pub fn on_disk(mut self, disk: &Arc<Disk>) -> Self {
        self.disk = Some(Arc::clone(disk));
        self
    }

    fn slot(&self, writer: usize, file: usize) -> &Mutex<File> {
        &self.open[writer * self.names.len() + file]
    }

    fn file(&self, writer: usize, file: usize) -> File {
        self.slot(writer, file).lock().clone()
    }
}

fn text(e: Error) -> String {
    e.to_string()
}

impl Subject for Library {
    fn write(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        data: Vec<u8>,
    ) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let file = self.file(writer, file);
            let rt = self.client.runtime();
            let write = self.write_or_copy(&file, offset, &data);
            let ended = if rt.random_u64().is_multiple_of(CANCELS) {
                let limit = self.cancel.mul_f64(f64::from(rt.random_u64() as u32) / f64::from(u32::MAX));
                millrace_runtime::timeout(&**rt, limit, write).await
            } else {
                Some(write.await)
            };
            ended.transpose().map(|ended| ended.is_some()).map_err(text)
        })
    }

    fn read(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        len: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let mut data = vec![0; len];
            let n = self.file(writer, file).read(offset, &mut data).await.map_err(text)?;
            data.truncate(n);
            Ok(data)
        })
    }

    fn truncate(&self, writer: usize, file: usize, size: u64) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
            let handle = self.file(writer, file).handle();
            self.client.setattr(handle, set, None).await.map(drop).map_err(text)
        })
    }

    fn sync(&self, writer: usize, file: usize) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.file(writer, file).commit().await.map_err(text) })
    }

    fn reopen(&self, writer: usize, file: usize, truncate: bool) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.file(writer, file).close().await.map_err(text)?;
            let name = &self.names[file];
            let new = match truncate {
                true => self.client.create_file(name, 0o600).await,
                false => self.client.open(name).await,
            };
            *self.slot(writer, file).lock() = new.map_err(text)?;
            Ok(())
        })
    }

    fn stable(&self, file: usize) -> Option<Vec<u8>> {
        self.disk.as_ref()?.stable(&self.names[file])
    }
}
