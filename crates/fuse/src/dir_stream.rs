//! Directory streams. Each holds one page of READDIRPLUS results, which `directory.rs` requests.

use std::sync::Arc;

use millrace_client::{
    handles::Client,
    ops::{DirEntry, Verifier},
};
use millrace_runtime::Instant;
use tokio::sync::{Mutex, MutexGuard};

use crate::{clock::Epoch, inode::Inode};

/// An open directory. The offsets seen by readers are the server's cookies; they stay valid as long as the
/// server accepts them, even if the directory changes.
pub(crate) struct DirStream {
    pub(crate) dir: Arc<Inode>,
    pub(crate) client: Client,
    page: Mutex<Page>,
}

/// One page of READDIRPLUS results, and the position in it.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<DirEntry>,
    pub(crate) next: usize,
    /// Cookie that precedes `entries[0]`.
    pub(crate) start: u64,
    pub(crate) verifier: Verifier,
    pub(crate) eof: bool,
    /// When the page was requested.
    pub(crate) issued: Option<CallTime>,
}

/// When a call was issued: logical and actual time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTime {
    pub(crate) epoch: Epoch,
    pub(crate) at: Instant,
}

impl Page {
    /// Cookie of the current position.
    pub(crate) fn position(&self) -> u64 {
        match self.next.checked_sub(1).and_then(|i| self.entries.get(i)) {
            Some(e) => e.cookie,
            None => self.start,
        }
    }
}

impl DirStream {
    pub(crate) fn new(dir: Arc<Inode>, client: Client) -> Self {
        Self { dir, client, page: Mutex::default() }
    }

    /// Returns the page at `offset`: 0 or the cookie of an entry.
    pub(crate) async fn seek(&self, offset: u64) -> MutexGuard<'_, Page> {
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
        page
    }
}
