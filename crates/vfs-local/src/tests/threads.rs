//! Privileges of the threads.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use millrace_vfs::{FileSystem, FsError, Stability};

use super::{disk::FailingDisk, *};
use crate::{IdentityMode, LocalFs};

const CAP_FSETID: u32 = 4;
const CAP_SYS_RESOURCE: u32 = 24;

/// Names and effective capabilities of the threads of local file systems in this process.
fn threads() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = tasks.filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("status")).ok());
    status
        .filter_map(|s| {
            let value = |key| s.lines().find_map(|l| Some(l.strip_prefix(key)?.trim().to_owned()));
            Some((value("Name:")?, u64::from_str_radix(&value("CapEff:")?, 16).ok()?))
        })
        .filter(|(name, _)| name.starts_with("local-"))
        .collect()
}

#[test]
fn threads_lack_quota_and_fsetid_capabilities() {
    let dir = tempfile::tempdir().unwrap();
    for config in configs(dir.path()) {
        let fs = LocalFs::open(config).unwrap();
        // Threads that have executed a call are prepared; the others are soon.
        let _ = wait(fs.read(&me(), &fs.root(), 0, 1));
        let may = |(name, capabilities): &(String, u64)| {
            let names = name.starts_with("local-fs");
            capabilities & 1 << CAP_SYS_RESOURCE != 0 || (!names && capabilities & 1 << CAP_FSETID != 0)
        };
        let found = threads();
        assert!(found.iter().any(|(name, _)| name.starts_with("local-fs")), "{found:?}");
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while threads().iter().any(may) {
            assert!(std::time::Instant::now() < limit, "{:?}", threads());
            std::thread::yield_now();
        }
    }
}

/// A root server that cannot use its callers' credentials would act as root.
#[test]
fn root_without_setuid_capability_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    const CAP_SETGID: u32 = 6;
    const CAP_SETUID: u32 = 7;
    let dir = tempfile::tempdir().unwrap();
    for missing in [CAP_SETGID, CAP_SETUID] {
        let config = configs(dir.path()).next().unwrap();
        let opened = std::thread::spawn(move || {
            super::super::sys::drop_capabilities(&[missing]);
            let refused = LocalFs::open(config.clone()).map(drop).map_err(|e| e.to_string());
            let config = LocalConfig { identity: IdentityMode::ServerUser, ..config };
            (refused, LocalFs::open(config).map(|fs| fs.uses_caller_credentials()))
        });
        let (refused, uses_callers) = opened.join().unwrap();
        let refused = refused.unwrap_err();
        assert!(
            refused.contains("CAP_SETUID and CAP_SETGID") && refused.contains("check permissions itself"),
            "{refused}"
        );
        assert!(!uses_callers.unwrap());
    }
}

#[test]
fn callers_cannot_use_reserved_blocks() {
    let Some(disk) = FailingDisk::sized(16 << 20, 20) else { return };
    std::fs::set_permissions(disk.root(), Permissions::from_mode(0o777)).unwrap();
    for config in configs(&disk.root()) {
        let fs = LocalFs::open(config).unwrap();
        let caller = Identity { uid: 1000, gid: 1000, gids: Default::default() };
        let how = CreateHow::Guarded(SetAttr { mode: Some(0o644), ..SetAttr::default() });
        let file = wait(fs.create(&caller, &fs.root(), b"f", &how)).unwrap().handle;
        let mut offset = 0;
        let full = loop {
            match wait(fs.write(&caller, &file, offset, views(&[1; 64 << 10]), Stability::FileSync)) {
                Ok(w) => offset += u64::from(w.count),
                Err(e) => break e,
            }
        };
        let left = wait(fs.stat()).unwrap();
        assert_eq!(full, FsError::NoSpc);
        assert!(left.available_bytes < 64 << 10, "{} bytes are left", left.available_bytes);
        assert!(left.free_bytes >= 2 << 20, "{} bytes of 20 % are left", left.free_bytes);
        wait(fs.remove(&caller, &fs.root(), b"f")).unwrap();
    }
}

/// The limit applies to the whole process, so the test runs in its own.
#[test]
fn size_beyond_rlimit_fsize_is_rejected() {
    const NAME: &str = "tests::threads::size_beyond_rlimit_fsize_is_rejected";
    if !in_own_process(NAME) {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (i, config) in configs(dir.path()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let file = create(&fs, &fs.root(), &i.to_string());
        let size = SetAttr { size: Some(2 << 20), ..SetAttr::default() };
        assert_eq!(wait(fs.setattr(&me(), &file, &size, None)).unwrap_err(), FsError::FBig);
        let written = wait(fs.write(&me(), &file, 2 << 20, views(b"x"), Stability::Unstable));
        assert_eq!(written.unwrap_err(), FsError::FBig);
        let size = SetAttr { size: Some(1 << 20), ..SetAttr::default() };
        assert_eq!(wait(fs.setattr(&me(), &file, &size, None)).unwrap().after.unwrap().size, 1 << 20);
    }
}
