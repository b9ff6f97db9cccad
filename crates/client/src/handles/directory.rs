//! Reading directories.

use std::sync::atomic::Ordering;

use super::Client;
use crate::{
    Error,
    error::nfs_error,
    ops::{DirEntry, DirPage, FileHandle, Procedure, Readdir, Readdirplus, Status, Verifier},
};

/// Maximum number of entries that [`Client::readdir`] returns; larger directories must be read page by page.
const MAX_ENTRIES: usize = 16 << 20;
/// Maximum number of restarts because the directory changed.
const MAX_RESTARTS: u32 = 4;

impl Client {
    /// Reads one page of entries after `cookie` (0 with verifier 0: from the start) with READDIRPLUS, or with
    /// READDIR if the server does not support it.
    ///
    /// # Errors
    /// [`Error::Nfs`] ([`Status::BadCookie`]: the directory changed, restart) and the errors of a call; a
    /// page without progress is [`Error::BadReply`].
    pub async fn readdir_page(
        &self,
        dir: FileHandle,
        cookie: u64,
        verifier: Verifier,
    ) -> Result<DirPage, Error> {
        let page = || Readdir { dir, cookie, verifier, count: self.shared.readdir_size };
        if self.plus() {
            let mut args = Readdirplus(page());
            let answer = self.call(&mut args, None).await?;
            match answer.result {
                Err(Status::NotSupp) => self.shared.plus.store(false, Ordering::Relaxed),
                other => {
                    let page = other.map_err(|s| nfs_error(Procedure::Readdirplus, dir, s))?;
                    return self.advancing(page, cookie);
                }
            }
        }
        let answer = self.call(&mut page(), None).await?;
        let page = answer.result.map_err(|s| nfs_error(Procedure::Readdir, dir, s))?;
        self.advancing(page, cookie)
    }

    /// Checks that the page after `cookie` makes progress, so that reading a directory terminates.
    fn advancing(&self, page: DirPage, cookie: u64) -> Result<DirPage, Error> {
        let bad = |what| Err(self.shared.pool.bad_reply("READDIR", what));
        match page.entries.last() {
            _ if page.eof => Ok(page),
            Some(last) if last.cookie == cookie => bad("a cookie that does not advance"),
            Some(_) => Ok(page),
            None => bad("neither entries nor the end of the directory"),
        }
    }

    /// Returns all entries of a directory, with attributes and handles if the server sends them, including
    /// `.` and `..` if the server lists them. Restarts if the directory changes such that the server cannot
    /// continue.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn readdir(&self, dir: FileHandle) -> Result<Vec<DirEntry>, Error> {
        let mut restarts = 0;
        loop {
            match self.readdir_once(dir).await {
                Err(e) if e.status() == Some(Status::BadCookie) && restarts < MAX_RESTARTS => restarts += 1,
                other => return other,
            }
        }
    }

    async fn readdir_once(&self, dir: FileHandle) -> Result<Vec<DirEntry>, Error> {
        let mut all: Vec<DirEntry> = Vec::new();
        let (mut cookie, mut verifier) = (0, [0; 8]);
        loop {
            let page = self.readdir_page(dir, cookie, verifier).await?;
            cookie = page.entries.last().map_or(cookie, |last| last.cookie);
            verifier = page.verifier;
            all.extend(page.entries);
            if page.eof {
                return Ok(all);
            }
            if all.len() > MAX_ENTRIES {
                return Err(Error::Local(format!(
                    "the directory has more than {MAX_ENTRIES} entries: read it page by page"
                )));
            }
        }
    }
}
