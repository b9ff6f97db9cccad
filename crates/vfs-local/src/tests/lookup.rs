//! LOOKUP on the caller's thread.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use millrace_vfs::{FileSystem, FsError};

use super::*;
use crate::LocalFs;

/// The IDs of this thread, and its capabilities.
fn credentials() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let kept = ["Uid:", "Gid:", "Groups:", "Cap"];
    status.lines().filter(|l| kept.iter().any(|k| l.starts_with(k))).map(str::to_owned).collect()
}

/// Creates `open/f` and `closed/f`, and returns the handles of both directories.
fn directories(fs: &LocalFs, root: &Path) -> [Handle; 2] {
    [("open", 0o755), ("closed", 0o700)].map(|(name, mode)| {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("f"), b"x").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        wait(fs.lookup(&me(), &fs.root(), name.as_bytes())).unwrap().0
    })
}

#[test]
fn cached_names_are_found_at_once_with_the_same_result() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    for config in configs(dir) {
        let fs = LocalFs::open(config).unwrap();
        let others = Identity { uid: 1234, gid: 1234, gids: [5, 6].into_iter().collect() };
        let before = credentials();
        let mut found = Vec::new();
        for parent in directories(&fs, dir) {
            for caller in [me(), others.clone()] {
                for name in [&b"f"[..], b"missing", b"..", b"", b"a/b", b"a\0b", &[b'n'; 300]] {
                    let waited = fs.export.lookup(&caller, &parent, name);
                    let now = fs.export.lookup_now(&caller, &parent, name);
                    assert!(now.is_none() || now == Some(waited), "{now:?} {waited:?} {name:?}");
                    if name == b"f" {
                        found.push(now.map(|result| result.map(drop)));
                    }
                }
            }
        }
        assert_eq!(credentials(), before, "the credentials of the thread are restored");
        if fs.export.lookup_now(&me(), &fs.root(), b"open").is_none() {
            println!("skipped: the kernel does not report which names are cached, or stat may block");
            continue;
        }
        let denied = found.pop().unwrap();
        assert_eq!(found, [Some(Ok(())), Some(Ok(())), Some(Ok(()))]);
        // Some kernels check permissions again where they may wait before they deny.
        assert!(me().uid != 0 || matches!(denied, None | Some(Err(FsError::Access))), "{denied:?}");
    }
}

#[test]
fn directories_that_are_not_open_are_left_to_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    for config in configs(dir.path()) {
        let fs = LocalFs::open(config).unwrap();
        let [open, _] = directories(&fs, dir.path());
        let file = wait(fs.lookup(&me(), &open, b"f")).unwrap().0;
        assert!(fs.export.lookup_now(&me(), &file, b"f").is_none(), "not a directory");
        fs.export.tree.cache.remove(&open);
        assert!(fs.export.lookup_now(&me(), &open, b"f").is_none());
        assert!(wait(fs.lookup(&me(), &open, b"f")).is_ok());
        // Making room may sync a file, so it is left to the pool too.
        fs.export.tree.cache.limit(fs.open_objects());
        assert!(fs.export.lookup_now(&me(), &open, b"f").is_none());
        assert!(wait(fs.lookup(&me(), &open, b"f")).is_ok());
    }
}
