//! Deterministic tests of open(2) and link(2) on files that another client renames: ESTALE reaches a program
//! only if the server returns it.

use std::{process::Command, time::Duration};

use millrace_client::{
    Proto, Strategy,
    handles::Client,
    ops::{CreateHow, FileHandle, SetAttributes},
};
use millrace_crashtest::{
    Random,
    cluster::{self, Cluster, options},
};
use millrace_rdma_sim::Profile;
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};
use rustix::io::Errno;

use super::{
    PID,
    linux::{Io, Linux, SysResult, errno},
    page_cache::Node,
    wire::{Body, Op},
};
use crate::{MountOptions, dentries::ROOT};

/// Longer than the time within which a LOOKUP and an OPEN count as one system call.
const PAUSE: Duration = Duration::from_millis(50);

/// A kernel with a mounted export, and another client of the server.
struct Mounted {
    rt: RuntimeRef,
    linux: std::sync::Arc<Linux>,
    other: Client,
    root: FileHandle,
}

impl Mounted {
    /// The other client creates a file.
    async fn create(&self, name: &str) {
        let set = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
        self.other.create(self.root, name, CreateHow::Unchecked(set)).await.unwrap();
    }

    /// The other client renames a file, which may replace another one.
    async fn rename(&self, from: &str, to: &str) {
        self.other.rename(self.root, from, self.root, to).await.unwrap();
    }

    /// The other client renames "file" to `to` and creates a new "file".
    async fn move_and_create(&self, to: &str) {
        self.rename("file", to).await;
        self.create("file").await;
    }

    /// The other client replaces "file" by a new file; the old one no longer exists.
    async fn replace(&self) {
        self.create("new").await;
        self.rename("new", "file").await;
    }

    async fn lookup(&self, pid: u32) -> std::sync::Arc<Node> {
        self.linux.lookup(pid, "file").await.unwrap()
    }

    async fn open(&self, pid: u32, node: &std::sync::Arc<Node>) -> SysResult<()> {
        self.linux.open_node(pid, node).await.map(drop)
    }

    async fn link(&self, pid: u32, node: &Node, name: &str) -> SysResult<()> {
        let body = Body::default().u64(node.number).name(name);
        self.linux.call(Op::Link, ROOT, pid, body).await.map(drop).map_err(errno)
    }

    async fn getattr(&self, pid: u32, node: &Node) -> SysResult<()> {
        let body = Body::default().u32(0).u32(0).u64(0);
        self.linux.call(Op::Getattr, node.number, pid, body).await.map(drop).map_err(errno)
    }
}

/// Runs a test with a mount and "file", which the other client has created.
fn with_mount(mount_options: &str, test: impl AsyncFnOnce(Mounted)) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let mut cluster = Cluster::new(&time, Profile::named("sdr-opensolaris").unwrap());
    cluster.start(&time);
    let run = async {
        let options = options(Strategy::ALL[0]);
        let client = cluster::mount(&cluster.world, &rt, 0, Proto::Tcp, options).await.unwrap();
        let (other, root) = (client.clone(), client.resolve("").await.unwrap().0);
        let mut mount = MountOptions::default();
        mount.read(mount_options, false).unwrap();
        let linux = Linux::mount(client, &mount, Io::WriteThrough, Random::new(1)).await;
        let mounted = Mounted { rt: rt.clone(), linux, other, root };
        mounted.create("file").await;
        test(mounted).await;
    };
    time.block_on(run).unwrap();
}

/// A process without memory, as kernel threads are: it has exited, and its parent has not waited for it.
fn thread_without_memory() -> std::process::Child {
    let ended = Command::new("true").spawn().unwrap();
    let has_memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", ended.id())).unwrap();
        status.contains("VmSize:")
    };
    while has_memory() {
        std::thread::sleep(Duration::from_millis(1));
    }
    ended
}

#[test]
fn moved_file_is_looked_up_again_and_the_retry_succeeds() {
    with_mount("", async |m| {
        let file = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.rename("file", "moved").await;
        assert_eq!(m.open(PID, &file).await, Err(Errno::STALE));
        assert_eq!(m.open(PID, &file).await, Ok(()), "by descriptor or handle");
    });
}

#[test]
fn kernel_thread_opens_a_moved_file() {
    with_mount("", async |m| {
        let mut nfsd = thread_without_memory();
        let file = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.move_and_create("moved").await;
        assert_eq!(m.open(nfsd.id(), &file).await, Ok(()));
        assert_eq!(m.link(nfsd.id(), &file, "link").await, Ok(()));
        assert_eq!(m.open(0, &file).await, Ok(()), "a thread in another PID namespace");
        assert_eq!(m.open(PID, &file).await, Err(Errno::STALE), "a program retries");
        m.other.remove(m.root, "moved").await.unwrap();
        m.other.remove(m.root, "link").await.unwrap();
        assert_eq!(m.open(nfsd.id(), &file).await, Err(Errno::STALE), "from the server");
        nfsd.wait().unwrap();
    });
}

#[test]
fn kernel_thread_opens_a_file_with_new_permissions() {
    with_mount("allow_other", async |m| {
        let mut nfsd = thread_without_memory();
        for thread in [PID, nfsd.id()] {
            let file = m.lookup(PID).await;
            m.rt.sleep(PAUSE).await;
            let (handle, attributes) = m.other.resolve("file").await.unwrap();
            let set = SetAttributes { mode: Some(attributes.mode ^ 0o11), ..SetAttributes::default() };
            m.other.setattr(handle, set, None).await.unwrap();
            // The kernel of a program must check the new permissions.
            let expected = if thread == PID { Err(Errno::STALE) } else { Ok(()) };
            assert_eq!(m.open(thread, &file).await, expected);
        }
        nfsd.wait().unwrap();
    });
}

#[test]
fn retry_succeeds_after_another_thread_opened_the_file() {
    with_mount("", async |m| {
        let old = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.move_and_create("first").await;
        assert_eq!(m.open(PID, &old).await, Err(Errno::STALE));
        let new = m.lookup(PID).await;
        let same = m.lookup(PID + 1).await;
        assert_eq!(m.open(PID + 1, &same).await, Ok(()));
        m.rt.sleep(PAUSE).await;
        m.move_and_create("second").await;
        assert_eq!(m.open(PID, &new).await, Ok(()));
        assert_eq!(m.open(PID, &new).await, Err(Errno::STALE), "another system call");
    });
}

#[test]
fn retry_succeeds_after_the_server_returned_estale_to_open() {
    with_mount("", async |m| {
        let old = m.lookup(PID).await;
        m.replace().await;
        assert_eq!(m.open(PID, &old).await, Err(Errno::STALE));
        let new = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.move_and_create("moved").await;
        assert_eq!(m.open(PID, &new).await, Ok(()));
    });
}

#[test]
fn retry_succeeds_after_the_server_returned_estale_to_getattr() {
    with_mount("actimeo=0", async |m| {
        let old = m.lookup(PID).await;
        m.replace().await;
        // The GETATTR before the open, by which the kernel checks permissions.
        assert_eq!(m.getattr(PID, &old).await, Err(Errno::STALE));
        let new = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.move_and_create("moved").await;
        assert_eq!(m.open(PID, &new).await, Ok(()));
    });
}

#[test]
fn link_to_a_moved_file_succeeds_by_descriptor() {
    with_mount("", async |m| {
        let file = m.lookup(PID).await;
        assert_eq!(m.open(PID, &file).await, Ok(()));
        m.rename("file", "moved").await;
        assert_eq!(m.link(PID, &file, "link").await, Err(Errno::STALE));
        // The retry looks up the new name first.
        assert_eq!(m.linux.lookup(PID, "link").await.map(drop), Err(Errno::NOENT));
        assert_eq!(m.link(PID, &file, "link").await, Ok(()));
    });
}

#[test]
fn retries_of_many_threads_succeed() {
    const THREADS: u32 = 3000;
    with_mount("", async |m| {
        let file = m.lookup(PID).await;
        m.rt.sleep(PAUSE).await;
        m.rename("file", "moved").await;
        let mut retries = Vec::new();
        for pid in PID..PID + THREADS {
            match m.open(pid, &file).await {
                Err(Errno::STALE) => retries.push(pid),
                opened => opened.unwrap(),
            }
        }
        assert!(retries.len() > 500, "{}", retries.len());
        for pid in retries {
            assert_eq!(m.open(pid, &file).await, Ok(()));
        }
    });
}
