//! Reading directories.

use std::sync::atomic::Ordering;

use millrace_nfs::v3::{
    self, Fattr, FileHandle, Procedure, ReaddirOk, ReaddirplusOk, Status, Verifier, readdir_reply_head,
};
use millrace_xdr::{Decode, Decoder, XdrError};

use super::{
    Client,
    client::{Answer, nfs_error},
};
use crate::Error;

/// Maximum number of entries that [`Client::readdir`] returns; larger directories must be read page by page.
const MAX_ENTRIES: usize = 16 << 20;
/// Maximum number of restarts because the directory changed.
const MAX_RESTARTS: u32 = 4;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The file ID.
    pub fileid: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Cookie of the position after this entry.
    pub cookie: u64,
    /// The attributes, if the server sent them.
    pub attributes: Option<Fattr>,
    /// The file handle, if the server sent it.
    pub handle: Option<FileHandle>,
}

impl DirEntry {
    /// The name as text; invalid UTF-8 is replaced.
    pub fn name_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// Whether it is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

/// One page of the entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirPage {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// The cookie verifier, to be sent with the cookie of the last entry.
    pub verifier: Verifier,
    /// Whether this is the last page.
    pub eof: bool,
    /// The attributes of the directory, if the server sent them.
    pub dir: Option<Fattr>,
}

struct Plain(DirPage);
struct Plus(DirPage);

impl<'a> Decode<'a> for Plain {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let ok: ReaddirOk<'_> = d.get()?;
        let own = |e: v3::Entry<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: None,
            handle: None,
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(Self(DirPage { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes }))
    }
}

impl<'a> Decode<'a> for Plus {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let ok: ReaddirplusOk<'_> = d.get()?;
        let own = |e: v3::EntryPlus<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: e.attributes,
            handle: e.handle,
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(Self(DirPage { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes }))
    }
}

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
        let count = self.shared.readdir_size;
        let head = readdir_reply_head(count);
        if self.plus() {
            let args = v3::ReaddirplusArgs { dir, cookie, verifier, dircount: count, maxcount: count };
            let answer: Answer<Plus> = self.call_sized(Procedure::Readdirplus, &args, head, None).await?;
            match answer.result {
                Err(Status::NotSupp) => self.shared.plus.store(false, Ordering::Relaxed),
                other => {
                    let page = other.map_err(|s| nfs_error(Procedure::Readdirplus, dir, s))?.0;
                    return self.advancing(page, cookie);
                }
            }
        }
        let args = v3::ReaddirArgs { dir, cookie, verifier, count };
        let answer: Answer<Plain> = self.call_sized(Procedure::Readdir, &args, head, None).await?;
        let page = answer.result.map_err(|s| nfs_error(Procedure::Readdir, dir, s))?.0;
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
