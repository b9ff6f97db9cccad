//! Directory streams: one page of the server's answer at a time, wherever the reader is.

use std::sync::Arc;

use millrace_client::{Client, DirEntry};
use millrace_nfs::v3::{Fattr, Status, Verifier};
use millrace_runtime::Instant;
use rustix::io::Errno;
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    error::errno,
    fs::Fs,
    inode::{Epoch, Inode},
};

/// An open directory. The offsets that readers see are the server's cookies: they hold as long as the server keeps
/// them, whatever changes in the directory meanwhile.
pub(crate) struct DirStream {
    pub(crate) dir: Arc<Inode>,
    pub(crate) client: Client,
    page: Mutex<Page>,
}

#[derive(Default)]
struct Page {
    entries: Vec<DirEntry>,
    next: usize,
    /// Where `entries[0]` follows.
    start: u64,
    verifier: Verifier,
    eof: bool,
    /// When it was asked for.
    issued: Option<CallTime>,
}

/// When a page was asked for: in the order of changes, and by the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTime {
    pub(crate) epoch: Epoch,
    pub(crate) at: Instant,
}

impl Page {
    /// The cookie of the reader's place.
    fn position(&self) -> u64 {
        match self.next.checked_sub(1).and_then(|i| self.entries.get(i)) {
            Some(e) => e.cookie,
            None => self.start,
        }
    }
}

/// A reader at its place.
pub(crate) struct DirReader<'s> {
    fs: &'s Arc<Fs>,
    stream: &'s DirStream,
    page: MutexGuard<'s, Page>,
}

impl DirStream {
    pub(crate) fn new(dir: Arc<Inode>, client: Client) -> Self {
        Self { dir, client, page: Mutex::default() }
    }

    /// A reader at `offset`: 0, or what was said to follow an entry.
    pub(crate) async fn seek<'s>(&'s self, fs: &'s Arc<Fs>, offset: u64) -> DirReader<'s> {
        let mut page = self.page.lock().await;
        let is_fresh = page.entries.is_empty() && !page.eof;
        if offset == 0 || (page.position() != offset && !is_fresh) {
            let found = page.entries.iter().position(|e| e.cookie == offset).filter(|_| offset != 0);
            match found {
                Some(i) => page.next = i + 1,
                // From the start everything is new; elsewhere the verifier tells the server which state is meant.
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
    /// The next entry, if there is one; [`Self::advance`] goes behind it. With the time when it was asked for.
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
        let got = match client.readdir_page(handle, start, verifier).await {
            // Some servers forget old states, but not the cookies.
            Err(e) if e.status() == Some(Status::BadCookie) => {
                client.readdir_page(handle, start, Verifier::default()).await
            }
            other => other,
        };
        let got = got.map_err(|e| errno(&e))?;
        drop(self.fs.update_directory(&self.stream.dir, issued.epoch, got.dir));
        *self.page = Page {
            entries: got.entries,
            next: 0,
            start,
            verifier: got.verifier,
            eof: got.eof,
            issued: Some(issued),
        };
        Ok(())
    }

    /// Whether the entry is to be left out: a removed file that is still open here.
    pub(crate) fn is_silly_name(&self, name: &[u8]) -> bool {
        if !name.starts_with(b".nfs") {
            return false;
        }
        let silly = self.fs.silly_names.lock();
        !silly.is_empty() && silly.contains(&(self.stream.dir.number, name.to_vec()))
    }
}

/// Handle and attributes of an entry, asked for where the listing has none; `None`: it is gone.
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
