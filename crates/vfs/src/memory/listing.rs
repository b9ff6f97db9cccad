//! READDIR and READDIRPLUS.

use super::{
    MemoryFs,
    directory::{COOKIE_PARENT, COOKIE_SELF},
    inode::{Inode, InodeState},
    permission::{READ, check_dir},
};
use crate::{Attr, DirEntry, DirPage, FsError, FsResult, Handle, Identity, ReadDirLimits};

/// Cookies stay valid as long as their directory, for which RFC 1813 section 3.3.16 specifies this verifier.
const VERIFIER: [u8; 8] = [0; 8];

/// The entries of a reply.
struct Page {
    entries: Vec<DirEntry>,
    limits: ReadDirLimits,
    name_bytes: usize,
}

impl Page {
    /// Whether an entry with a name of `len` bytes fits. The first entry always does.
    fn fits(&self, len: usize) -> bool {
        self.entries.is_empty()
            || (self.entries.len() < self.limits.max_entries
                && self.name_bytes.saturating_add(len) <= self.limits.max_name_bytes)
    }

    fn push(&mut self, entry: DirEntry) {
        self.name_bytes += entry.name.len();
        self.entries.push(entry);
    }
}

impl MemoryFs {
    pub(super) fn readdir_now(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> FsResult<DirPage> {
        let dir = self.inode(dir)?;
        if !dir.is_dir() {
            return Err(FsError::NotDir);
        }
        // Get the parent's attributes first: parents are locked before children.
        let above = if cookie < COOKIE_PARENT { Some(self.parent(&dir)?) } else { None };
        let st = dir.read()?;
        let entries = st.directory()?;
        check_dir(&st, caller, READ)?;
        if cookie != 0 && (verifier != VERIFIER || !entries.is_issued(cookie)) {
            return Err(FsError::BadCookie);
        }
        let mut page = Page { entries: Vec::new(), limits, name_bytes: 0 };
        let mut eof = true;
        if cookie < COOKIE_SELF {
            let plus = limits.plus.then(|| (self.handle(&dir), self.attr(&dir, &st)));
            page.push(DirEntry { fileid: dir.id.fileid(), name: b".".to_vec(), cookie: COOKIE_SELF, plus });
        }
        if let Some((handle, attr)) = above {
            eof = page.fits(2);
            if eof {
                let plus = limits.plus.then_some((handle, attr));
                page.push(DirEntry {
                    fileid: attr.fileid,
                    name: b"..".to_vec(),
                    cookie: COOKIE_PARENT,
                    plus,
                });
            }
        }
        if eof {
            eof = self.list(&mut page, &st, cookie)?;
        }
        Ok(DirPage { entries: page.entries, eof, verifier: VERIFIER, attr: self.attr(&dir, &st) })
    }

    /// Adds the entries after `cookie`. Returns whether all fit.
    fn list(&self, page: &mut Page, dir: &InodeState, cookie: u64) -> FsResult<bool> {
        for (cookie, name, id) in dir.directory()?.after(cookie) {
            if !page.fits(name.len()) {
                return Ok(false);
            }
            let plus =
                if page.limits.plus { Some(self.handle_and_attr(&*self.table.get(id)?)?) } else { None };
            page.push(DirEntry { fileid: id.fileid(), name: name.to_vec(), cookie, plus });
        }
        Ok(true)
    }

    fn handle_and_attr(&self, inode: &Inode) -> FsResult<(Handle, Attr)> {
        let st = inode.read()?;
        Ok((self.handle(inode), self.attr(inode, &st)))
    }
}
