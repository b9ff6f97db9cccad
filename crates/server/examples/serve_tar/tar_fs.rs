//! A tar archive as a read-only file system.

use std::{collections::BTreeMap, fs::File, io, io::Read as _, os::unix::fs::MetadataExt, path::Path};

use millrace_buffer::{BLOCK_BYTES, Quota};
use millrace_vfs::*;
use tar::{Archive, EntryType};

/// An object of the archive. A handle is the position of an object in [`TarFs`].
struct Node {
    attr: Attr,
    body: Body,
}

enum Body {
    /// Positions by name, `.` and `..` included.
    Directory(BTreeMap<Vec<u8>, usize>),
    File(Views),
    Symlink(Vec<u8>),
}

/// A tar archive without its hard links and devices. It is in memory, so all calls are ready at once.
pub(crate) struct TarFs(Vec<Node>);

impl TarFs {
    /// Reads the archive at `path` into memory of `arena`.
    pub(crate) fn open(path: &Path, arena: &Arena) -> io::Result<Self> {
        let file = File::open(path)?;
        let (size, fsid) = (file.metadata()?.len(), file.metadata()?.ino());
        let quota = arena.quota(4 * size); // A file of one byte takes 1 KiB of the archive and 4 KiB of memory.
        let mut fs = Self(Vec::new());
        fs.add_directory(0, fsid);
        for entry in Archive::new(file).entries()? {
            fs.add(&mut entry?, &quota)?;
        }
        Ok(fs)
    }

    fn add(&mut self, entry: &mut tar::Entry<'_, File>, quota: &Quota) -> io::Result<()> {
        let (size, target) = (entry.size(), entry.link_name_bytes().unwrap_or_default().into_owned());
        let content = match entry.header().entry_type() {
            EntryType::Directory => None,
            EntryType::Symlink => Some((FileKind::Symlink, target.len() as u64, Body::Symlink(target))),
            EntryType::Regular => Some((FileKind::Regular, size, Body::File(content(entry, quota)?))),
            _ => return Ok(()),
        };
        let at = self.make_path(&entry.path_bytes())?;
        let (node, header) = (&mut self.0[at], entry.header());
        let time = Time { seconds: header.mtime()? as i64, nanos: 0 };
        let (mode, uid, gid) = (header.mode()? & 0o7777, header.uid()? as u32, header.gid()? as u32);
        node.attr = Attr {
            mode,
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
            change: time.change(),
            ..node.attr
        };
        if let Some((kind, size, body)) = content {
            (node.attr, node.body) = (Attr { kind, size, used: size, ..node.attr }, body);
        }
        Ok(())
    }

    /// The object at `path`. Parts that are not in the archive yet become directories.
    fn make_path(&mut self, path: &[u8]) -> io::Result<usize> {
        let mut at = 0;
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            let (new, fsid) = (self.0.len(), self.0[0].attr.fsid);
            let Body::Directory(entries) = &mut self.0[at].body else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            let found = *entries.entry(name.to_vec()).or_insert(new);
            if found == new {
                self.add_directory(at, fsid);
            }
            at = found;
        }
        Ok(at)
    }

    fn add_directory(&mut self, parent: usize, fsid: u64) {
        let at = self.0.len();
        let attr = Attr { fsid, fileid: at as u64 + 1, ..Attr::new(FileKind::Directory, 0o755) };
        let entries = BTreeMap::from([(b".".to_vec(), at), (b"..".to_vec(), parent)]);
        self.0.push(Node { attr, body: Body::Directory(entries) });
    }

    fn node(&self, handle: &Handle) -> FsResult<&Node> {
        let at = handle.as_bytes().try_into().map(usize::from_be_bytes).map_err(|_| FsError::BadHandle)?;
        self.0.get(at).ok_or(FsError::BadHandle)
    }

    fn found(&self, at: usize) -> (Handle, Attr) {
        (Handle::from_array(at.to_be_bytes()), self.0[at].attr)
    }
}

/// Reads a file of the archive in blocks, the largest units that a quota allocates.
fn content(file: &mut tar::Entry<'_, File>, quota: &Quota) -> io::Result<Views> {
    let mut data = Views::new();
    while (data.len() as u64) < file.size() {
        let rest = file.size() - data.len() as u64;
        let mut block = quota.alloc(rest.min(BLOCK_BYTES as u64) as usize).map_err(io::Error::other)?;
        file.read_exact(&mut block)?;
        data.push(block.freeze());
    }
    Ok(data)
}

impl FileSystem for TarFs {
    fn root(&self) -> Handle {
        self.found(0).0
    }

    fn info(&self) -> FsInfo {
        FsInfo { symlinks: true, ..FsInfo::default() }
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        Op::Ready(self.node(file).map(|node| node.attr))
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        Op::Ready(self.node(dir).and_then(|dir| {
            let Body::Directory(entries) = &dir.body else { return Err(FsError::NotDir) };
            dir.attr.check(caller, Access::LOOKUP)?;
            self.info().check_name(name)?;
            entries.get(name).map(|at| self.found(*at)).ok_or(FsError::NoEnt)
        }))
    }

    fn readlink(&self, _: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        Op::Ready(self.node(link).and_then(|node| match &node.body {
            Body::Symlink(target) => Ok((target.clone(), node.attr)),
            _ => Err(FsError::Inval),
        }))
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        Op::Ready(self.node(file).and_then(|node| {
            let Body::File(data) = &node.body else { return Err(FsError::Inval) };
            node.attr.check(caller, Access::READ | Access::EXECUTE)?; // A client reads what it executes.
            let start = offset.min(node.attr.size) as usize;
            let end = (start + count as usize).min(data.len());
            Ok(Read { data: data.slice(start, end - start), eof: end == data.len(), attr: node.attr })
        }))
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        _: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        Op::Ready(self.node(dir).and_then(|dir| {
            let Body::Directory(entries) = &dir.body else { return Err(FsError::NotDir) };
            dir.attr.check(caller, Access::READ)?;
            let all = entries.iter().map(|(name, at)| (name.as_slice(), self.found(*at)));
            Ok(DirPage::of_constant(dir.attr, all, cookie, limits))
        }))
    }
}
