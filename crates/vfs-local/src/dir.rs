//! READDIR and READDIRPLUS.
//!
//! A cookie is the file system's directory offset (`d_off`). It stays valid while the directory changes,
//! across restarts, and as long as the file system guarantees. The verifier is always zero.

use std::os::fd::AsFd;

use millrace_vfs::{Attr, DirEntry, DirPage, FsError, FsResult, Handle, Identity, ReadDirLimits};
use rustix::fs::{OFlags, RawDir, SeekFrom, Statx};

use super::{
    attr,
    cred::{R, X},
    node::{Node, reopen},
    setup::Export,
};

/// Buffer size for getdents, in bytes.
const BATCH: usize = 32 << 10;

impl Export {
    pub(super) fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> FsResult<DirPage> {
        let (node, st) = self.directory(dir)?;
        if verifier != [0; 8] || i64::try_from(cookie).is_err() {
            return Err(FsError::BadCookie);
        }
        self.creds.precheck(caller, &st, R)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.creds.as_caller(caller, || Ok(reopen(node.as_fd(), flags)?))?;
        if cookie != 0 {
            rustix::fs::seek(&fd, SeekFrom::Start(cookie)).map_err(|_| FsError::BadCookie)?;
        }
        let plus = limits.plus && self.creds.precheck(caller, &st, X).is_ok();
        let mut page =
            DirPage { entries: Vec::new(), eof: false, verifier: [0; 8], attr: attr::attr(&st, self.fsid)? };
        let mut bytes = 0usize;
        let mut buf = Vec::with_capacity(BATCH);
        let mut raw = RawDir::new(&fd, buf.spare_capacity_mut());
        loop {
            let Some(entry) = raw.next() else {
                page.eof = true;
                break;
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let full = page.entries.len() >= limits.max_entries
                || bytes.saturating_add(name.len()) > limits.max_name_bytes;
            if full && !page.entries.is_empty() {
                break;
            }
            bytes = bytes.saturating_add(name.len());
            page.entries.push(DirEntry {
                fileid: entry.ino(),
                name: name.to_vec(),
                cookie: entry.next_entry_cookie(),
                plus: None,
            });
        }
        for entry in &mut page.entries {
            self.complete(caller, &node, &st, entry, plus);
        }
        page.attr = attr::attr(&attr::live_stat(node.as_fd())?, self.fsid)?;
        Ok(page)
    }

    /// Corrects the inode number of the root's `..`, and adds handle and attributes if requested and
    /// available.
    fn complete(&self, caller: &Identity, dir: &Node, st: &Statx, entry: &mut DirEntry, plus: bool) {
        if entry.name == b".." && self.tree.is_root(st) {
            entry.fileid = self.tree.root_ino();
        }
        if !plus {
            return;
        }
        let found: FsResult<(Handle, Attr)> = match entry.name.as_slice() {
            // Listing has changed the atime.
            b"." => {
                attr::live_stat(dir.as_fd()).and_then(|st| Ok((dir.handle(), attr::attr(&st, self.fsid)?)))
            }
            b".." => {
                self.tree.open_parent(dir).and_then(|(up, st)| Ok((up.handle(), attr::attr(&st, self.fsid)?)))
            }
            name => self.creds.as_caller(caller, || self.tree.open_entry(dir.as_fd(), name)).and_then(
                |(fd, st)| {
                    let handle = self.tree.record_entry(&dir.handle(), name, fd.as_fd(), &st)?;
                    Ok((handle, attr::attr(&st, self.fsid)?))
                },
            ),
        };
        entry.plus = found.ok();
    }
}
