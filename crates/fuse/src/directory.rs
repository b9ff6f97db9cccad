//! Reads directories page by page, and looks up entries for which READDIRPLUS returned no attributes.

use std::sync::Arc;

use millrace_client::{
    Version,
    ops::{Attributes, DirEntry, Status, Verifier},
};
use rustix::io::Errno;
use tokio::sync::MutexGuard;

use crate::{
    dentries::ROOT,
    dir_stream::{CallTime, DirStream, Page},
    error::errno,
    fs::Fs,
};

/// The entries that READDIR of NFSv4 does not return, with cookies that no entry of a server has (RFC 8881 section 18.23.3).
const DOTS: [(u64, &[u8]); 2] = [(1, b"."), (LAST_DOT, b"..")];
const LAST_DOT: u64 = 2;

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
        let (client, handle) = (&self.stream.client, self.stream.dir.handle);
        let adds_dots = client.version() != Version::V3 && start <= LAST_DOT;
        let cookie = if adds_dots { 0 } else { start };
        let verifier = if cookie == 0 { Verifier::default() } else { self.page.verifier };
        let reply = match client.readdir_page(handle, cookie, verifier).await {
            // Some servers reject an old verifier but still accept the cookies.
            Err(e) if e.status() == Some(Status::BadCookie) => {
                client.readdir_page(handle, cookie, Verifier::default()).await
            }
            other => other,
        };
        let mut reply = reply.map_err(|e| errno(&e))?;
        drop(self.fs.update_directory(&self.stream.dir, issued.epoch, reply.dir));
        if adds_dots {
            let dots = DOTS.into_iter().filter(|(cookie, _)| *cookie > start);
            let dots = dots.map(|(cookie, name)| DirEntry {
                fileid: 0,
                name: name.to_vec(),
                cookie,
                attributes: None,
                handle: None,
            });
            reply.entries.splice(0..0, dots);
        }
        for dot in reply.entries.iter_mut().filter(|e| e.is_dot()) {
            // The kernel uses only number and type.
            dot.fileid = self.dot_number(&dot.name).await;
            (dot.handle, dot.attributes) = (Some(handle), Some(self.stream.dir.attributes()));
        }
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

    /// The inode number of `.` or `..`. As in other file systems, the root of the mount is its own parent.
    async fn dot_number(&self, name: &[u8]) -> u64 {
        let DirStream { dir, client, .. } = self.stream;
        if name == b"." || dir.number == ROOT {
            return dir.number;
        }
        if let Some(parent) = self.fs.inodes.parent(dir.number) {
            return parent;
        }
        let Ok(parent) = client.lookup(dir.handle, "..").await else { return dir.number };
        let known = self.fs.inodes.find_by_handle(&parent.handle);
        known.map_or(parent.attributes.fileid, |inode| inode.number)
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
) -> Result<Option<(millrace_client::ops::FileHandle, Attributes)>, Errno> {
    if let (Some(handle), Some(attributes)) = (entry.handle, entry.attributes) {
        return Ok(Some((handle, attributes)));
    }
    match stream.client.lookup(stream.dir.handle, &entry.name).await {
        Ok(o) => Ok(Some((o.handle, o.attributes))),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(errno(&e)),
    }
}
