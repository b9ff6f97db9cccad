//! Directory streams. Each holds one page of READDIRPLUS results.

use std::sync::Arc;

use millrace_client::nfs3::{Client, DirEntry};
use millrace_nfs::v3::{Fattr, Status, Verifier};
use millrace_runtime::Instant;
use rustix::io::Errno;
use tokio::sync::{Mutex, MutexGuard};

use crate::{clock::Epoch, error::errno, fs::Fs, inode::Inode};

/// An open directory. The offsets seen by readers are the server's cookies; they stay valid as long as the
/// server accepts them, even if the directory changes.
pub(crate) struct DirStream {
    pub(crate) dir: Arc<Inode>,
    pub(crate) client: Client,
    page: Mutex<Page>,
}

#[derive(Default)]
struct Page {
    entries: Vec<DirEntry>,
    next: usize,
    /// Cookie that precedes `entries[0]`.
    start: u64,
    verifier: Verifier,
    eof: bool,
    /// When the page was requested.
    issued: Option<CallTime>,
}

/// When a call was issued: logical and actual time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTime {
    pub(crate) epoch: Epoch,
    pub(crate) at: Instant,
}

impl Page {
    /// Cookie of the current position.
    fn position(&self) -> u64 {
        match self.next.checked_sub(1).and_then(|i| self.entries.get(i)) {
            Some(e) => e.cookie,
            None => self.start,
        }
    }
}

/// A reader at its position.
pub(crate) struct DirReader<'s> {
    fs: &'s Arc<Fs>,
    stream: &'s DirStream,
    page: MutexGuard<'s, Page>,
}

impl DirStream {
    pub(crate) fn new(dir: Arc<Inode>, client: Client) -> Self {
        Self { dir, client, page: Mutex::default() }
    }

    /// Returns a reader at `offset`: 0 or the cookie of an entry.
    pub(crate) async fn seek<'s>(&'s self, fs: &'s Arc<Fs>, offset: u64) -> DirReader<'s> {
        let mut page = self.page.lock().await;
        let is_fresh = page.entries.is_empty() && !page.eof;
        if offset == 0 || (page.position() != offset && !is_fresh) {
            let found = page.entries.iter().position(|e| e.cookie == offset).filter(|_| offset != 0);
            match found {
                Some(i) => page.next = i + 1,
                // The start of the directory needs no verifier; other cookies are valid only with the
                // verifier they came with.
                None => {
                    let verifier = if offset == 0 { Verifier::default() } else { page.verifier };
                    *page = Page { start: offset, verifier, ..Page::default() };
                }
            }
        } else if is_fresh {
            page.start = offset;
        }
        DirReader { fs, stream: self, page }
    }
}

impl DirReader<'_> {
    /// Returns the next entry without consuming it, and the time of its READDIRPLUS call.
    pub(crate) async fn peek(&mut self) -> Result<Option<(DirEntry, CallTime)>, Errno> {
        while self.page.next >= self.page.entries.len() {
            if self.page.eof {
                return Ok(None);
            }
            self.fetch().await?;
        }
        Ok(self.page.entries.get(self.page.next).cloned().zip(self.page.issued))
    }

    pub(crate) fn advance(&mut self) {
        self.page.next += 1;
    }

    async fn fetch(&mut self) -> Result<(), Errno> {
        let start = self.page.position();
        let issued = CallTime { epoch: self.fs.clock.tick(), at: self.fs.rt.now() };
        let verifier = if start == 0 { Verifier::default() } else { self.page.verifier };
        let (client, handle) = (&self.stream.client, self.stream.dir.handle);
        let reply = match client.readdir_page(handle, start, verifier).await {
            // Some servers reject an old verifier but still accept the cookies.
            Err(e) if e.status() == Some(Status::BadCookie) => {
                client.readdir_page(handle, start, Verifier::default()).await
            }
            other => other,
        };
        let reply = reply.map_err(|e| errno(&e))?;
        drop(self.fs.update_directory(&self.stream.dir, issued.epoch, reply.dir));
        *self.page = Page {
            entries: reply.entries,
            next: 0,
            start,
            verifier: reply.verifier,
            eof: reply.eof,
            issued: Some(issued),
        };
        Ok(())
    }

    /// Whether the entry is a silly-renamed file that is still open here, which is not listed.
    pub(crate) fn is_silly_name(&self, name: &[u8]) -> bool {
        if !name.starts_with(b".nfs") {
            return false;
        }
        let silly = self.fs.silly_names.lock();
        !silly.is_empty() && silly.contains(&(self.stream.dir.number, name.to_vec()))
    }
}

/// Handle and attributes of an entry, looked up if READDIRPLUS returned none. `None`: the entry no longer
/// exists.
pub(crate) async fn handle_and_attributes(
    stream: &DirStream,
    entry: &DirEntry,
) -> Result<Option<(millrace_nfs::v3::FileHandle, Fattr)>, Errno> {
    if let (Some(handle), Some(attributes)) = (entry.handle, entry.attributes) {
        return Ok(Some((handle, attributes)));
    }
    match stream.client.lookup(stream.dir.handle, &entry.name).await {
        Ok(o) => Ok(Some((o.handle, o.attributes))),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(errno(&e)),
    }
}
