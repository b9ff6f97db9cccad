//! A mounted directory as a subject of the workload.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_runtime::BoxFuture;
use parking_lot::{Mutex, RwLock};

use crate::Subject;

/// A directory, accessed by system calls: each writer has its own descriptors. Calls block, so each writer
/// needs its own thread.
pub struct Posix {
    paths: Vec<PathBuf>,
    open: Vec<Mutex<Arc<File>>>,
    truncate_alone: bool,
    /// A lock for each file: shared by writes, exclusive for truncations.
    changes: Vec<RwLock<()>>,
}

fn open(path: &Path, truncate: bool) -> io::Result<Arc<File>> {
    OpenOptions::new().read(true).write(true).create(true).truncate(truncate).open(path).map(Arc::new)
}

impl Posix {
    /// Creates the empty files `names` in `dir`, and opens each once for each writer.
    ///
    /// With `truncate_alone`, a file is truncated only when it has no unstable data: after an fsync, while no
    /// writer writes to it. Linux's NFS client needs that with a server that loses unstable data: another
    /// task may resend lost data during a truncation, and the server may execute the WRITE after the SETATTR.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn new(dir: &Path, names: &[String], writers: usize, truncate_alone: bool) -> io::Result<Self> {
        let paths: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
        let files = paths.iter().cycle().take(writers * paths.len());
        let open = files.map(|path| open(path, true).map(Mutex::new)).collect::<io::Result<_>>()?;
        let changes = names.iter().map(|_| RwLock::default()).collect();
        Ok(Self { paths, open, truncate_alone, changes })
    }

    fn write_now(&self, writer: usize, file: usize, offset: u64, data: &[u8]) -> io::Result<()> {
        let _shared = self.truncate_alone.then(|| self.changes[file].read());
        self.file(writer, file).write_all_at(data, offset)
    }

    fn truncate_now(&self, writer: usize, file: usize, size: u64) -> io::Result<()> {
        let (_alone, open) = (self.alone(file), self.file(writer, file));
        if self.truncate_alone {
            open.sync_all()?;
        }
        open.set_len(size)
    }

    fn alone(&self, file: usize) -> Option<impl Sized + '_> {
        self.truncate_alone.then(|| self.changes[file].write())
    }

    fn slot(&self, writer: usize, file: usize) -> &Mutex<Arc<File>> {
        &self.open[writer * self.paths.len() + file]
    }

    fn file(&self, writer: usize, file: usize) -> Arc<File> {
        self.slot(writer, file).lock().clone()
    }

    fn reopen_now(&self, writer: usize, file: usize, truncate: bool) -> io::Result<()> {
        let _alone = truncate.then(|| self.alone(file));
        let mut slot = self.slot(writer, file).lock();
        // The fsync reports the errors that close(2) would report.
        slot.sync_all()?;
        *slot = open(&self.paths[file], truncate)?;
        Ok(())
    }
}

/// Wraps the result of a blocking call.
fn done<T: Send + 'static>(call: &str, result: io::Result<T>) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(std::future::ready(result.map_err(|e| format!("{call}: {e}"))))
}

fn read_at(file: &File, mut offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let (mut data, mut n) = (vec![0; len], 0);
    while n < len {
        let more = file.read_at(&mut data[n..], offset)?;
        if more == 0 {
            break;
        }
        (n, offset) = (n + more, offset + more as u64);
    }
    data.truncate(n);
    Ok(data)
}

impl Subject for Posix {
    fn write(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        data: Vec<u8>,
    ) -> BoxFuture<'_, Result<bool, String>> {
        done("pwrite", self.write_now(writer, file, offset, &data).map(|()| true))
    }

    fn read(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        len: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        done("pread", read_at(&self.file(writer, file), offset, len))
    }

    fn truncate(&self, writer: usize, file: usize, size: u64) -> BoxFuture<'_, Result<(), String>> {
        done("ftruncate", self.truncate_now(writer, file, size))
    }

    fn sync(&self, writer: usize, file: usize) -> BoxFuture<'_, Result<(), String>> {
        done("fsync", self.file(writer, file).sync_all())
    }

    fn reopen(&self, writer: usize, file: usize, truncate: bool) -> BoxFuture<'_, Result<(), String>> {
        done("close and open", self.reopen_now(writer, file, truncate))
    }
}
