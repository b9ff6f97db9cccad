//! File handles of the memory file system and of the local one, and the server's sealed handles.

use std::{path::Path, sync::Arc};

use millrace_vfs::{
    FileSystem, FsError, Handle, Identity,
    memory::{MemoryConfig, MemoryFs},
};
use millrace_vfs_local::{LocalConfig, LocalFs};

use super::{connection::GetattrServer, wait, xdr::arena};
use crate::{bytes::Input, still::still};

/// A file system and the handles that it has returned, of its root and of one file.
struct Known {
    fs: Arc<dyn FileSystem>,
    handles: [Handle; 2],
}

impl Known {
    fn new(fs: Arc<dyn FileSystem>) -> Self {
        let root = fs.root();
        let how = millrace_vfs::CreateHow::Guarded(Default::default());
        let file = wait(fs.create(&Identity::root(), &root, b"file", &how)).expect("a file");
        Self { handles: [root, file.handle], fs }
    }

    fn memory() -> Self {
        Self::new(MemoryFs::new(MemoryConfig::new(arena(), still())))
    }

    fn local(root: &Path) -> Self {
        Self::new(LocalFs::open(LocalConfig::new(root, arena())).expect("a directory"))
    }

    /// Checks that only a returned handle identifies an object.
    fn check(&self, bytes: &[u8]) {
        let Some(handle) = Handle::new(bytes) else { return };
        let known = self.handles.contains(&handle);
        let found = wait(self.fs.getattr(&handle));
        assert_eq!(found.is_ok(), known, "{found:?}");
        let looked_up = wait(self.fs.lookup(&Identity::root(), &handle, b"file"));
        assert_eq!(looked_up.is_ok(), handle == self.handles[0], "{looked_up:?}");
        for error in [found.err(), looked_up.err()].into_iter().flatten() {
            let expected = matches!(error, FsError::BadHandle | FsError::Stale);
            assert!(expected || known && error == FsError::NotDir, "{error}");
        }
    }
}

struct All {
    memory: Known,
    local: Known,
    served: GetattrServer,
    _root: tempfile::TempDir,
}

thread_local! {
    static ALL: All = {
        let root = tempfile::tempdir().expect("a directory");
        All { memory: Known::memory(), local: Known::local(root.path()), served: GetattrServer::new(), _root: root }
    };
}

/// Kind and bytes of a handle.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (whose, handle) = (input.u8() % 3, input.rest());
    ALL.with(|all| match whose {
        0 => all.memory.check(handle),
        1 => all.local.check(handle),
        _ => all.served.check_handle(handle),
    });
}

/// The returned handles.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    ALL.with(|all| {
        let of = |whose: u8, known: &Known| known.handles.map(|h| [&[whose][..], h.as_bytes()].concat());
        let served = [2].into_iter().chain(all.served.root().iter().copied()).collect();
        [of(0, &all.memory), of(1, &all.local)].concat().into_iter().chain([served]).collect()
    })
}
