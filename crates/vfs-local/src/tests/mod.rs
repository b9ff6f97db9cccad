//! Tests that inspect open files or control the time, with the helpers that they share. `configs` lists the
//! engines and kinds of handles that the host supports.

mod covered;
mod depth;
mod descriptors;
mod disk;
mod index;
mod lost_writes;
mod mounts;
mod outside;
mod path_checked;
mod threads;

use std::path::Path;

use millrace_buffer::{Arena, ArenaConfig};
use millrace_vfs::{CreateHow, Handle, Identity, SetAttr, Views};

use super::{HandleMode, IoMode, KeySource, LocalConfig};

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

/// All engines and kinds of handles available on this host.
fn configs(root: &Path) -> impl Iterator<Item = LocalConfig> {
    let kernel = rustix::process::geteuid().is_root().then_some(HandleMode::Kernel);
    let root = root.to_owned();
    [Some(HandleMode::Index), kernel].into_iter().flatten().flat_map(move |handles| {
        let root = root.clone();
        [IoMode::Auto, IoMode::Blocking].into_iter().map(move |io| LocalConfig {
            handles,
            io,
            threads: 2,
            open_objects: 8,
            key: KeySource::Bytes([0x42; 16]),
            ..LocalConfig::new(&root, arena())
        })
    })
}

fn me() -> Identity {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Identity { uid, gid, gids: Default::default() }
}

fn wait<T>(f: impl IntoFuture<Output = T>) -> T {
    super::pool::block_on(f.into_future())
}

fn create(fs: &crate::LocalFs, dir: &Handle, name: &str) -> Handle {
    use millrace_vfs::FileSystem;
    let how = CreateHow::Guarded(SetAttr { mode: Some(0o644), ..SetAttr::default() });
    wait(fs.create(&me(), dir, name.as_bytes(), &how)).unwrap().handle
}

fn views(bytes: &[u8]) -> Views {
    arena().copy_from(bytes).unwrap().into()
}

/// Retries while the result is JUKEBOX.
fn retry_jukebox<T>(call: impl Fn() -> millrace_vfs::FsResult<T>) -> millrace_vfs::FsResult<T> {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match call() {
            Err(millrace_vfs::FsError::Jukebox) => {
                assert!(std::time::Instant::now() < limit, "JUKEBOX for a minute")
            }
            other => return other,
        }
    }
}

/// Reruns the test `name` in its own process, for tests that change process-wide state. Returns `true` in
/// that process, and `false` in the parent after checking the result.
fn in_own_process(name: &str) -> bool {
    const CHILD: &str = "MILLRACE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let message = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}: {}{}", out.status, message(&out.stdout), message(&out.stderr));
    assert!(message(&out.stdout).contains("1 passed"), "{name} is not the name of a test");
    false
}
