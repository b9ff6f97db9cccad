//! The locks of a mount when the kernel uses the owner of an earlier lock again: the owner is an address of the kernel.

use std::sync::Arc;

use futures::join;
use millrace_client::{
    LockKind, Proto, Strategy, Version,
    handles::{Client, File},
};
use millrace_crashtest::{
    Random,
    cluster::{self, Cluster, options},
};
use millrace_rdma_sim::Profile;
use millrace_runtime::virtual_time::VirtualTime;

use super::{
    PID,
    linux::{Description, Io, Linux, SysResult, errno},
    page_cache::Node,
    wire::{Body, Op},
};
use crate::MountOptions;

/// `FUSE_LK_FLOCK`.
const FLOCK: u32 = 1;
/// `FUSE_RELEASE_FLOCK_UNLOCK`.
const FLOCK_UNLOCK: u32 = 1 << 1;
/// `F_WRLCK` and `F_UNLCK`.
pub(super) const EXCLUSIVE: u32 = 1;
pub(super) const UNLOCKED: u32 = 2;
/// An owner of the kernel, which a later one equals.
const OWNER: u64 = 0x1234_5678_9abc_def0;

struct Scene {
    linux: Arc<Linux>,
    node: Arc<Node>,
    other: File,
}

/// Runs a test with a mount and a file, which another client has created.
fn with_mount(test: impl AsyncFn(Scene)) {
    for version in [Version::V4_1, Version::V4_2] {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let mut cluster = Cluster::new(&time, Profile::named("sdr-opensolaris").unwrap());
        cluster.start(&time);
        let run = async {
            let options = || options(Strategy::ALL[0]).vers(Some(version));
            let connect = |number| cluster::mount(&cluster.world, &rt, number, Proto::Tcp, options());
            let (mounted, other): (Client, Client) = (connect(0).await.unwrap(), connect(1).await.unwrap());
            let other = other.create_file("file", 0o666).await.unwrap();
            let mount = MountOptions::default();
            let linux = Linux::mount(mounted, &mount, Io::WriteThrough, Random::new(1)).await;
            let node = linux.lookup(PID, "file").await.unwrap();
            test(Scene { linux, node, other }).await;
        };
        time.block_on(run).unwrap();
    }
}

impl Linux {
    /// Locks or unlocks a whole file for `owner` through one of its descriptions; `op` says whether it waits.
    pub(super) async fn set_lock(
        &self,
        op: Op,
        file: &Description,
        (owner, kind, lk_flags): (u64, u32, u32),
    ) -> SysResult<()> {
        let body = Body::default().u64(file.handle).u64(owner).u64(0).u64(i64::MAX as u64);
        let body = body.u32(kind).u32(file.pid).u32(lk_flags).u32(0);
        self.call(op, file.node.number, file.pid, body).await.map(drop).map_err(errno)
    }
}

impl Scene {
    async fn open(&self) -> Description {
        self.linux.open_node(PID, &self.node).await.unwrap()
    }

    /// Locks or unlocks the file for [`OWNER`], without waiting.
    async fn set_lock(&self, file: &Description, kind: u32, lk_flags: u32) -> SysResult<()> {
        self.linux.set_lock(Op::Setlk, file, (OWNER, kind, lk_flags)).await
    }

    /// The last close of a description that has locked with flock(2) if `flags` say so.
    async fn release(&self, file: &Description, flags: u32) {
        let body = Body::default().u64(file.handle).u32(0).u32(flags).u64(OWNER);
        self.linux.call(Op::Release, self.node.number, 0, body).await.map(drop).map_err(errno).unwrap();
    }

    /// A process whose owner is [`OWNER`] closes a descriptor.
    async fn flush(&self, file: &Description) {
        let body = Body::default().u64(file.handle).u64(0).u64(OWNER);
        self.linux.call(Op::Flush, self.node.number, PID, body).await.map(drop).map_err(errno).unwrap();
    }

    /// Whether the file is locked, as another client sees it.
    async fn is_locked(&self) -> bool {
        self.other.test_lock(1, 0..u64::MAX, LockKind::Exclusive).await.unwrap().is_some()
    }
}

#[test]
fn a_release_ends_only_the_locks_of_its_description() {
    with_mount(async |s| {
        for (lk_flags, release_flags) in [(FLOCK, FLOCK_UNLOCK), (0, 0)] {
            let first = s.open().await;
            s.set_lock(&first, EXCLUSIVE, lk_flags).await.unwrap();
            s.set_lock(&first, UNLOCKED, lk_flags).await.unwrap();
            let second = s.open().await;
            s.set_lock(&second, EXCLUSIVE, lk_flags).await.unwrap();
            s.release(&first, release_flags).await;
            assert!(s.is_locked().await, "lock flags {lk_flags}");
            s.release(&second, release_flags).await;
            assert!(!s.is_locked().await, "lock flags {lk_flags}");
        }
    });
}

/// The earlier description still has its lock, and writes data before it releases it.
#[test]
fn a_lock_is_not_ended_by_a_release_in_progress() {
    with_mount(async |s| {
        for (lk_flags, release_flags) in [(FLOCK, FLOCK_UNLOCK), (0, 0)] {
            let first = s.open().await;
            s.set_lock(&first, EXCLUSIVE, lk_flags).await.unwrap();
            s.linux.write(&first, 0, b"data").await.unwrap();
            // The kernel does not wait for the release.
            let lock_again = async {
                let second = s.open().await;
                while s.set_lock(&second, EXCLUSIVE, lk_flags).await.is_err() {}
                second
            };
            let ((), second) = join!(s.release(&first, release_flags), lock_again);
            assert!(s.is_locked().await, "lock flags {lk_flags}");
            s.release(&second, release_flags).await;
            assert!(!s.is_locked().await, "lock flags {lk_flags}");
        }
    });
}

/// A killed process does not wait until its locks are released, and its owner becomes that of another process.
#[test]
fn a_lock_is_not_ended_by_a_flush_in_progress() {
    with_mount(async |s| {
        let (first, second) = (s.open().await, s.open().await);
        s.set_lock(&first, EXCLUSIVE, 0).await.unwrap();
        s.linux.write(&first, 0, b"data").await.unwrap();
        let lock_again = async { while s.set_lock(&second, EXCLUSIVE, 0).await.is_err() {} };
        join!(s.flush(&first), lock_again);
        assert!(s.is_locked().await);
        s.release(&first, 0).await;
        assert!(s.is_locked().await);
        s.flush(&second).await;
        assert!(!s.is_locked().await);
    });
}

/// POSIX: a close of any descriptor of the file ends the locks of the process.
#[test]
fn a_close_ends_the_locks_of_the_process_and_no_others() {
    with_mount(async |s| {
        let (first, second) = (s.open().await, s.open().await);
        s.set_lock(&first, EXCLUSIVE, 0).await.unwrap();
        s.flush(&second).await;
        assert!(!s.is_locked().await);
        s.set_lock(&first, EXCLUSIVE, FLOCK).await.unwrap();
        s.flush(&first).await;
        assert!(s.is_locked().await, "flock(2) locks belong to the description");
        s.release(&first, FLOCK_UNLOCK).await;
        assert!(!s.is_locked().await);
        // A description with its own locks (F_OFD_SETLK), while another is open: the kernel does not unlock it.
        let first = s.open().await;
        s.set_lock(&first, EXCLUSIVE, 0).await.unwrap();
        s.release(&first, 0).await;
        assert!(!s.is_locked().await);
    });
}
