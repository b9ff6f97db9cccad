//! The conformance suite of `millrace-vfs` on local directories.

// Tests fail by panicking; the lints recognize tests only by their attribute.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../vfs/tests/suite/mod.rs"]
mod suite;

use std::sync::Arc;

use millrace_vfs::FileSystem;
use millrace_vfs_local::{HandleMode, IoMode, KeySource, LocalConfig, LocalFs};
use suite::fixture::{Abilities, Fixture};

/// A local directory, with the best features available.
fn local() -> Fixture {
    local_as(HandleMode::Auto, IoMode::Auto, None)
}

/// A local directory on tmpfs, if there is one: other handles and cookies.
fn local_tmpfs() -> Fixture {
    local_as(HandleMode::Auto, IoMode::Auto, Some("/dev/shm"))
}

/// A local directory, without kernel handles and io_uring.
fn local_plain() -> Fixture {
    local_as(HandleMode::Index, IoMode::Blocking, None)
}

fn local_as(handles: HandleMode, io: IoMode, within: Option<&str>) -> Fixture {
    let privileged = rustix::process::geteuid().is_root();
    let can =
        Abilities { identities: privileged, devices: privileged, coarse_times: true, stress_steps: 300 };
    Fixture::new(can, |arena, _| {
        let within = within.and_then(|w| tempfile::tempdir_in(w).ok());
        let dir = within.unwrap_or_else(|| tempfile::tempdir().unwrap());
        let config = LocalConfig {
            handles,
            io,
            key: KeySource::Bytes([5; 16]),
            sync_metadata: false, // Tested elsewhere; slow.
            ..LocalConfig::new(dir.path(), arena)
        };
        (LocalFs::open(config).unwrap() as Arc<dyn FileSystem>, Box::new(dir))
    })
}

suite::implementations! {
    local_fs: crate::local;
    local_fs_plain: crate::local_plain;
    local_fs_tmpfs: crate::local_tmpfs;
}
