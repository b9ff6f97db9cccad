//! Results of the default methods of [`FileSystem`](crate::FileSystem).

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

use crate::{FsError, FsInfo, Op};

/// The result of an operation that a file system with these properties does not implement.
pub(crate) fn unsupported<T>(info: &FsInfo) -> Op<T> {
    Op::Ready(Err(if info.writable { FsError::NotSupp } else { FsError::RoFs }))
}

/// A write verifier that differs in each process, as unstable writes are lost when the process ends.
pub(crate) fn process_verifier() -> [u8; 8] {
    static VERIFIER: OnceLock<[u8; 8]> = OnceLock::new();
    // The keys of a `RandomState` are random in each process.
    *VERIFIER.get_or_init(|| RandomState::new().hash_one(std::process::id()).to_ne_bytes())
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::{
        Access, Attr, DirPage, FileKind, FileSystem, FsError, FsInfo, FsResult, Handle, Identity, Op, Read,
        ReadDirLimits, SeekTarget, Stability, Views,
    };

    /// A file system of one empty directory that implements the required methods only.
    pub(crate) struct Minimal {
        pub(crate) info: FsInfo,
    }

    impl FileSystem for Minimal {
        fn root(&self) -> Handle {
            Handle::from_array([1])
        }

        fn getattr(&self, _: &Handle) -> Op<Attr> {
            Op::Ready(Ok(Attr { uid: 7, gid: 7, ..Attr::new(FileKind::Directory, 0o755) }))
        }

        fn lookup(&self, _: &Identity, _: &Handle, _: &[u8]) -> Op<(Handle, Attr)> {
            Op::Ready(Err(FsError::NoEnt))
        }

        fn read(&self, _: &Identity, _: &Handle, _: u64, _: u32) -> Op<Read> {
            Op::Ready(Err(FsError::IsDir))
        }

        fn readdir(&self, _: &Identity, _: &Handle, _: u64, _: [u8; 8], _: ReadDirLimits) -> Op<DirPage> {
            Op::Ready(Err(FsError::Io))
        }

        fn info(&self) -> FsInfo {
            self.info
        }
    }

    fn now<T>(op: Op<T>) -> FsResult<T> {
        let Op::Ready(result) = op else { panic!("the result is not ready") };
        result
    }

    #[test]
    fn writes_and_commits_without_an_implementation_fail() {
        for (writable, error) in [(false, FsError::RoFs), (true, FsError::NotSupp)] {
            let fs = Minimal { info: FsInfo { writable, ..FsInfo::default() } };
            let (root, caller) = (fs.root(), Identity::root());
            let written = now(fs.write(&caller, &root, 0, Views::default(), Stability::Unstable));
            assert_eq!(written.map(|w| w.committed), Err(error));
            assert_eq!(now(fs.commit(&caller, &root, 0, 0)), Err(error));
            assert_eq!(now(fs.remove(&caller, &root, b"a")), Err(error));
            assert_eq!(now(fs.deallocate(&caller, &root, 0, 1)), Err(error));
            assert_eq!(now(fs.zero(&caller, &root, 0, 1)), Err(error));
            assert_eq!(now(fs.copy(&caller, &root, 0, &root, 1, 1)), Err(error));
            assert_eq!(now(fs.allocate(&caller, &root, 0, 1)), Err(error));
            assert_eq!(now(fs.seek(&caller, &root, 0..1, SeekTarget::Data)), Err(FsError::NotSupp));
            assert_eq!(fs.write_verifier(), fs.write_verifier());
        }
    }

    #[test]
    fn access_grants_changes_only_on_writable_file_systems() {
        let owner = Identity { uid: 7, gid: 7, gids: Default::default() };
        let granted = |writable| {
            let fs = Minimal { info: FsInfo { writable, ..FsInfo::default() } };
            now(fs.access(&owner, &fs.root(), Access(0x3f))).unwrap().0.0
        };
        let reads = Access::READ | Access::LOOKUP;
        assert_eq!(granted(false), reads);
        assert_eq!(granted(true), reads | Access::MODIFY | Access::EXTEND | Access::DELETE);
    }
}
