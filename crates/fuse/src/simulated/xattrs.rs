//! Extended attributes: the replies to the kernel, with each version of NFS.

use std::sync::Arc;

use millrace_client::{Proto, Strategy, Version};
use millrace_crashtest::{
    Random,
    cluster::{self, Cluster, options},
};
use millrace_rdma_sim::Profile;
use millrace_runtime::virtual_time::VirtualTime;
use rustix::io::Errno;

use super::{
    PID,
    linux::{Io, Linux, SysResult, errno},
    wire::{Body, Op},
};
use crate::MountOptions;

/// `XATTR_CREATE` and `XATTR_REPLACE`.
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// A file of a mount.
struct File {
    linux: Arc<Linux>,
    node: u64,
}

/// Runs a test with a file of a mount.
fn with_file(version: Version, test: impl AsyncFnOnce(&File)) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let mut cluster = Cluster::new(&time, Profile::named("sdr-opensolaris").unwrap());
    cluster.start(&time);
    let run = async {
        let options = options(Strategy::ALL[0]).vers(Some(version));
        let client = cluster::mount(&cluster.world, &rt, 0, Proto::Tcp, options).await.unwrap();
        let linux = Linux::mount(client, &MountOptions::default(), Io::WriteThrough, Random::new(1)).await;
        let opened = linux.open(PID, "file", true).await.unwrap();
        test(&File { linux: Arc::clone(&linux), node: opened.node.number }).await;
        linux.close(opened).await.unwrap();
    };
    time.block_on(run).unwrap();
}

async fn call(file: &File, op: Op, body: Body) -> SysResult<Vec<u8>> {
    file.linux.call(op, file.node, PID, body).await.map_err(errno)
}

async fn set(file: &File, name: &str, value: &[u8], flags: u32) -> SysResult<()> {
    let body = Body::default().u32(value.len() as u32).u32(flags).name(name).bytes(value);
    call(file, Op::Setxattr, body).await.map(drop)
}

async fn get(file: &File, name: &str, size: u32) -> SysResult<Vec<u8>> {
    call(file, Op::Getxattr, Body::default().u32(size).u32(0).name(name)).await
}

async fn list(file: &File, size: u32) -> SysResult<Vec<u8>> {
    call(file, Op::Listxattr, Body::default().u32(size).u32(0)).await
}

async fn remove(file: &File, name: &str) -> SysResult<()> {
    call(file, Op::Removexattr, Body::default().name(name)).await.map(drop)
}

/// `fuse_getxattr_out`.
fn size(bytes: u32) -> SysResult<Vec<u8>> {
    Ok([bytes.to_ne_bytes(), [0; 4]].concat())
}

#[test]
fn attributes_of_users_are_those_of_the_server() {
    with_file(Version::V4_2, async |file| {
        assert_eq!(list(file, 0).await, size(0));
        assert_eq!(set(file, "user.k", b"no", REPLACE).await, Err(Errno::NODATA));
        assert_eq!(set(file, "user.k", b"a\0b", CREATE).await, Ok(()));
        assert_eq!(set(file, "user.k", b"no", CREATE).await, Err(Errno::EXIST));
        assert_eq!(get(file, "user.k", 0).await, size(3));
        assert_eq!(get(file, "user.k", 2).await, Err(Errno::RANGE));
        assert_eq!(get(file, "user.k", 3).await, Ok(b"a\0b".to_vec()));
        assert_eq!(list(file, 0).await, size(7));
        assert_eq!(list(file, 6).await, Err(Errno::RANGE));
        assert_eq!(list(file, 64).await, Ok(b"user.k\0".to_vec()));
        assert_eq!(remove(file, "user.k").await, Ok(()));
        assert_eq!(remove(file, "user.k").await, Err(Errno::NODATA));
        assert_eq!(get(file, "user.k", 64).await, Err(Errno::NODATA));
        assert_eq!(set(file, "user.k", b"", CREATE | REPLACE).await, Err(Errno::INVAL));
    });
}

#[test]
fn other_namespaces_have_none() {
    with_file(Version::V4_2, async |file| {
        for name in ["security.capability", "system.posix_acl_access", "trusted.overlay.opaque", "k"] {
            assert_eq!(get(file, name, 0).await, Err(Errno::OPNOTSUPP), "{name}");
            assert_eq!(set(file, name, b"v", 0).await, Err(Errno::OPNOTSUPP), "{name}");
            assert_eq!(remove(file, name).await, Err(Errno::OPNOTSUPP), "{name}");
        }
        assert_eq!(set(file, "user.", b"v", 0).await, Err(Errno::INVAL));
    });
}

/// After ENOSYS the kernel sends no further requests of the kind.
#[test]
fn earlier_versions_stop_the_requests() {
    for version in [Version::V3, Version::V4_1] {
        with_file(version, async |file| {
            for name in ["user.k", "security.capability"] {
                assert_eq!(get(file, name, 0).await, Err(Errno::NOSYS), "{name}");
                assert_eq!(set(file, name, b"v", 0).await, Err(Errno::NOSYS), "{name}");
                assert_eq!(remove(file, name).await, Err(Errno::NOSYS), "{name}");
            }
            assert_eq!(list(file, 0).await, Err(Errno::NOSYS));
        });
    }
}
