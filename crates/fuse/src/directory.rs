//! Reads directories page by page, and looks up entries for which READDIRPLUS returned no attributes.

use std::sync::Arc;

use millrace_client::nfs3::DirEntry;
use millrace_nfs::v3::{Fattr, Status, Verifier};
use rustix::io::Errno;
use tokio::sync::MutexGuard;

use crate::{
    dir_stream::{CallTime, DirStream, Page},
    error::errno,
    fs::Fs,
};

/// A reader at its position.
pub(crate) struct DirReader<'s> {
    fs: &'s Arc<Fs>,
    stream: &'s DirStream,
    page: MutexGuard<'s, Page>,
}

impl<'s> DirReader<'s> {
    /// Returns a reader at `offset`: 0 or the cookie of an entry.
    pub(crate) async fn open(fs: &'s Arc<Fs>, stream: &'s DirStream, offset: u64) -> Self {
        Self { fs, stream, page: stream.seek(offset).await }
    }

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
