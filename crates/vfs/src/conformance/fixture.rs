//! A file system under test, with short forms of its calls.

use std::{any::Any, collections::BTreeSet};

use millrace_runtime::sync::Mutex;
use millrace_runtime::tokio_rt::TokioRuntime;

use super::{Capability, Resources, Subject};
use crate::{
    Access, Arena, Attr, CreateHow, Created, DirEntry, FileSystemRef, FsError, FsResult, Handle, Identity,
    NewNode, Op, ReadDirLimits, SetAttr, Stability, Views, Wcc,
};

/// A new file system and its resources.
pub(crate) struct Fixture {
    pub(crate) fs: FileSystemRef,
    /// Number of calls per thread in stress cases.
    pub(crate) stress_calls: usize,
    /// Directory in which the cases work: mode 0777, owned by root. For a read-only file system, its root directory.
    pub(crate) dir: Handle,
    missing: BTreeSet<Capability>,
    /// The missing capabilities that the case has requested.
    skipped: Mutex<BTreeSet<Capability>>,
    arena: Arena,
    rt: tokio::runtime::Runtime,
    /// Must outlive the file system.
    _resource: Box<dyn Any + Send + Sync>,
}

/// An unprivileged user with uid and gid `n`.
pub(crate) fn user(n: u32) -> Identity {
    Identity { uid: n, gid: n, gids: Default::default() }
}

/// An unprivileged user with supplementary groups.
pub(crate) fn member(n: u32, groups: &[u32]) -> Identity {
    Identity { uid: n, gid: n, gids: groups.iter().copied().collect() }
}

/// The superuser.
pub(crate) fn root() -> Identity {
    Identity::root()
}

/// Attributes that set only the mode.
pub(crate) fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Attributes that set only the size.
pub(crate) fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

impl Fixture {
    /// Opens the file system, and creates the working directory if that is possible.
    pub(crate) fn new(open: impl FnOnce(&Resources) -> Subject) -> Self {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let arena = Arena::new(millrace_buffer::ArenaConfig { limit: 256 << 20, huge_pages: false });
        let runtime = TokioRuntime::from_handle(rt.handle().clone());
        let Subject { fs, missing, stress_calls, resource } = {
            let _inside = rt.enter();
            open(&Resources { arena: arena.clone(), runtime })
        };
        let (dir, skipped) = (fs.root(), Mutex::default());
        let mut out = Self { fs, stress_calls, dir, missing, skipped, arena, rt, _resource: resource };
        if out.is_writable() {
            out.dir = out.mkdir(&root(), &dir, b"work", 0o777).unwrap().handle;
        }
        out
    }

    /// Whether objects can be created and changed.
    pub(crate) fn is_writable(&self) -> bool {
        !self.missing.contains(&Capability::Changes)
    }

    /// Whether the file system supports `capability`. If not, it is reported as skipped.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        let missing = self.missing.contains(&capability);
        if missing {
            self.skipped.lock().insert(capability);
        }
        !missing
    }

    /// The missing capabilities that the case has requested.
    pub(crate) fn skipped(&self) -> Vec<Capability> {
        self.skipped.lock().iter().copied().collect()
    }

    /// Waits for an operation.
    pub(crate) fn op<T: Unpin>(&self, op: Op<T>) -> FsResult<T> {
        self.rt.block_on(op.into_future())
    }

    /// Data in the arena, in chunks of `piece` bytes, each in its own slot.
    pub(crate) fn pieces(&self, bytes: &[u8], piece: usize) -> Views {
        bytes.chunks(piece).map(|c| self.arena.copy_from(c).unwrap()).collect()
    }

    /// Creates a file as root in the working directory.
    pub(crate) fn file(&self, name: &str) -> Handle {
        self.create(&root(), &self.dir, name.as_bytes(), mode(0o644)).unwrap().handle
    }

    /// Creates a directory as root in the working directory, mode 0777.
    pub(crate) fn subdir(&self, name: &str) -> Handle {
        self.mkdir(&root(), &self.dir, name.as_bytes(), 0o777).unwrap().handle
    }

    pub(crate) fn create(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        set: SetAttr,
    ) -> FsResult<Created> {
        self.op(self.fs.create(caller, dir, name, &CreateHow::Guarded(set)))
    }

    /// Creates a directory with exactly this mode.
    pub(crate) fn mkdir(&self, caller: &Identity, dir: &Handle, name: &[u8], bits: u32) -> FsResult<Created> {
        let made = self.op(self.fs.create_node(caller, dir, name, &NewNode::Directory, &mode(bits)))?;
        self.op(self.fs.setattr(caller, &made.handle, &mode(bits), None))?;
        Ok(made)
    }

    /// Creates a symbolic link as root.
    pub(crate) fn symlink(&self, dir: &Handle, name: &str, target: &[u8]) -> FsResult<Created> {
        let node = NewNode::Symlink(target.to_vec());
        self.op(self.fs.create_node(&root(), dir, name.as_bytes(), &node, &SetAttr::default()))
    }

    pub(crate) fn lookup(&self, dir: &Handle, name: &str) -> FsResult<Handle> {
        self.op(self.fs.lookup(&root(), dir, name.as_bytes())).map(|(h, _)| h)
    }

    pub(crate) fn attr(&self, file: &Handle) -> Attr {
        self.op(self.fs.getattr(file)).unwrap()
    }

    pub(crate) fn set(&self, caller: &Identity, file: &Handle, set: SetAttr) -> FsResult<()> {
        self.op(self.fs.setattr(caller, file, &set, None)).map(drop)
    }

    pub(crate) fn write(&self, caller: &Identity, file: &Handle, offset: u64, data: &[u8]) -> FsResult<()> {
        let written =
            self.op(self.fs.write(caller, file, offset, self.pieces(data, 64 << 10), Stability::Unstable))?;
        assert_eq!(written.count as usize, data.len());
        Ok(())
    }

    /// Reads up to `count` bytes at `offset`; returns the data and `eof`.
    pub(crate) fn read(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> FsResult<(Vec<u8>, bool)> {
        let read = self.op(self.fs.read(caller, file, offset, count))?;
        Ok((read.data.to_vec(), read.eof))
    }

    /// Frees the storage of a range as root.
    pub(crate) fn deallocate(&self, file: &Handle, offset: u64, length: u64) -> FsResult<Wcc> {
        self.op(self.fs.deallocate(&root(), file, offset, length))
    }

    /// Allocates a range as root.
    pub(crate) fn allocate(&self, file: &Handle, offset: u64, length: u64) -> FsResult<Wcc> {
        self.op(self.fs.allocate(&root(), file, offset, length))
    }

    /// Zeroes a range as root.
    pub(crate) fn zero(&self, file: &Handle, offset: u64, length: u64) -> FsResult<Wcc> {
        self.op(self.fs.zero(&root(), file, offset, length))
    }

    /// Content of the whole file.
    pub(crate) fn content(&self, file: &Handle) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let (bytes, eof) = self.read(&root(), file, out.len() as u64, 1 << 20).unwrap();
            out.extend(bytes);
            if eof {
                return out;
            }
        }
    }

    pub(crate) fn remove(&self, dir: &Handle, name: &str) -> FsResult<()> {
        self.op(self.fs.remove(&root(), dir, name.as_bytes())).map(drop)
    }

    pub(crate) fn rmdir(&self, dir: &Handle, name: &str) -> FsResult<()> {
        self.op(self.fs.rmdir(&root(), dir, name.as_bytes())).map(drop)
    }

    pub(crate) fn rename(&self, from_dir: &Handle, from: &str, to_dir: &Handle, to: &str) -> FsResult<()> {
        self.op(self.fs.rename(&root(), from_dir, from.as_bytes(), to_dir, to.as_bytes())).map(drop)
    }

    pub(crate) fn link(&self, file: &Handle, dir: &Handle, name: &str) -> FsResult<()> {
        self.op(self.fs.link(&root(), file, dir, name.as_bytes())).map(drop)
    }

    /// Returns which of `wanted` are granted.
    pub(crate) fn access(&self, caller: &Identity, file: &Handle, wanted: u32) -> u32 {
        self.op(self.fs.access(caller, file, Access(wanted))).unwrap().0.0
    }

    /// All entries of `dir` except `.` and `..`, listed in pages of `per_page`.
    pub(crate) fn list(&self, dir: &Handle, per_page: usize) -> Vec<DirEntry> {
        let limits = ReadDirLimits { max_entries: per_page, max_name_bytes: 1 << 16, plus: false };
        let (mut out, mut cookie, mut verifier) = (Vec::<DirEntry>::new(), 0, [0; 8]);
        loop {
            let page = self.op(self.fs.readdir(&root(), dir, cookie, verifier, limits)).unwrap();
            assert!(page.eof || !page.entries.is_empty(), "an empty page without eof");
            assert!(page.entries.len() <= per_page);
            verifier = page.verifier;
            cookie = page.entries.last().map_or(cookie, |e| e.cookie);
            out.extend(page.entries);
            if page.eof {
                out.retain(|e| e.name != b"." && e.name != b"..");
                return out;
            }
        }
    }

    /// The names in `dir`, sorted.
    pub(crate) fn names(&self, dir: &Handle) -> Vec<String> {
        let mut out: Vec<_> =
            self.list(dir, 1000).into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
        out.sort();
        out
    }
}

/// Asserts that `result` failed with one of `errors`.
#[track_caller]
pub(crate) fn fails<T>(result: FsResult<T>, errors: &[FsError]) {
    match result {
        Ok(_) => panic!("succeeded, but should have failed with one of {errors:?}"),
        Err(e) => assert!(errors.contains(&e), "{e:?}, but expected one of {errors:?}"),
    }
}
