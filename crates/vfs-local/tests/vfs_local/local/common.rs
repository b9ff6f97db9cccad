//! Helpers of the local file system tests.

use std::{path::Path, sync::Arc};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_vfs::{
    CreateHow, FileSystem, FsResult, Handle, Identity, ReadDirLimits, SetAttr, Stability, Views,
};
use millrace_vfs_local::{HandleMode, IoMode, KeySource, LocalConfig, LocalFs};

/// All kinds of handles and I/O available on this host.
pub(crate) fn modes() -> Vec<(HandleMode, IoMode)> {
    let mut out = vec![(HandleMode::Index, IoMode::Blocking), (HandleMode::Index, IoMode::Auto)];
    if rustix::process::geteuid().is_root() {
        out.extend([(HandleMode::Kernel, IoMode::Blocking), (HandleMode::Kernel, IoMode::Auto)]);
    } else {
        println!("not root: kernel handles are not tested");
    }
    out
}

pub(crate) fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false })
}

pub(crate) fn config(root: &Path, (handles, io): (HandleMode, IoMode)) -> LocalConfig {
    LocalConfig {
        handles,
        io,
        threads: 4,
        key: KeySource::Bytes([0x42; 16]),
        ..LocalConfig::new(root, arena())
    }
}

pub(crate) fn open(root: &Path, mode: (HandleMode, IoMode)) -> Arc<LocalFs> {
    LocalFs::open(config(root, mode)).unwrap()
}

/// Waits for a call to complete.
pub(crate) fn wait<T>(f: impl IntoFuture<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f.into_future())
}

/// The user running this process; root if the kernel applies credentials.
pub(crate) fn me() -> Identity {
    Identity {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        gids: Default::default(),
    }
}

pub(crate) fn user(uid: u32) -> Identity {
    Identity { uid, gid: uid, gids: Default::default() }
}

pub(crate) fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

pub(crate) fn views(bytes: &[u8]) -> Views {
    let arena = arena();
    bytes.chunks(1 << 20).map(|c| arena.copy_from(c).unwrap()).collect()
}

pub(crate) fn create(fs: &LocalFs, dir: &Handle, name: &str) -> Handle {
    wait(fs.create(&me(), dir, name.as_bytes(), &CreateHow::Guarded(mode(0o644)))).unwrap().handle
}

pub(crate) fn mkdir(fs: &LocalFs, dir: &Handle, name: &str) -> Handle {
    wait(fs.create_node(&me(), dir, name.as_bytes(), &millrace_vfs::NewNode::Directory, &mode(0o755)))
        .unwrap()
        .handle
}

pub(crate) fn lookup(fs: &LocalFs, dir: &Handle, name: &str) -> FsResult<Handle> {
    wait(fs.lookup(&me(), dir, name.as_bytes())).map(|(h, _)| h)
}

pub(crate) fn write(fs: &LocalFs, file: &Handle, offset: u64, bytes: &[u8]) -> FsResult<u32> {
    wait(fs.write(&me(), file, offset, views(bytes), Stability::Unstable)).map(|w| w.count)
}

pub(crate) fn read(fs: &LocalFs, file: &Handle, offset: u64, count: u32) -> FsResult<Vec<u8>> {
    wait(fs.read(&me(), file, offset, count)).map(|r| r.data.to_vec())
}

/// All names in a directory, listed in pages of `page` entries.
pub(crate) fn list(fs: &LocalFs, dir: &Handle, page: usize) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let limits = ReadDirLimits { max_entries: page, max_name_bytes: 1 << 20, plus: false };
        let got = wait(fs.readdir(&me(), dir, cookie, [0; 8], limits)).unwrap();
        names.extend(got.entries.iter().map(|e| e.name.clone()));
        match got.entries.last() {
            Some(e) if !got.eof => cookie = e.cookie,
            _ => return names,
        }
    }
}
