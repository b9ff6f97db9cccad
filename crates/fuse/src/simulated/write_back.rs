//! Deterministic tests of a mount with write-back caching: replies with attributes that are older than the
//! last change of a forgotten inode, whose size the kernel keeps, and an interrupted COMMIT.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use millrace_client::{Proto, Strategy};
use millrace_crashtest::{
    Disk, DiskConfig, Random,
    cluster::{self, Cluster, options},
};
use millrace_rdma_sim::Profile;
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use super::{
    PID,
    linux::{Io, Linux},
    page_cache::Node,
};
use crate::MountOptions;

const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new and longer";
/// Time until the reply to the first LOOKUP.
const DELAY: Duration = Duration::from_secs(2);
/// Size of a READDIRPLUS buffer that has room for one entry with a short name.
const ONE_ENTRY: u32 = 200;

/// Data is committed within this time without fsync(2) or close(2).
const COMMITTED_AFTER: Duration = Duration::from_secs(40);

/// A kernel with a mounted export and the disk of its server.
struct Mounted {
    rt: RuntimeRef,
    disk: Arc<Disk>,
    linux: Arc<Linux>,
}

impl Mounted {
    /// Writes a file through a new inode, which the kernel then forgets.
    async fn write(&self, name: &str, data: &[u8]) {
        let file = self.linux.open(PID, name, false).await.unwrap();
        self.linux.write(&file, 0, data).await.unwrap();
        self.linux.close_with(file, || true).await.unwrap();
    }

    /// Opens a node and reads it.
    async fn read(&self, node: &Arc<Node>) -> Vec<u8> {
        let file = self.linux.open_node(PID, node).await.unwrap();
        self.linux.read(&file, 0, 2 * NEW.len()).await.unwrap()
    }
}

fn with_mount(test: impl AsyncFnOnce(Mounted)) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let mut cluster = Cluster::new(&time, Profile::named("sdr-opensolaris").unwrap());
    let config = DiskConfig { latency: Duration::from_millis(2), wcc_before: true, seed: 1 };
    let disk = Disk::new(rt.clone(), config);
    cluster.files = Some(disk.clone());
    cluster.start(&time);
    let run = async {
        let options = options(Strategy::ALL[0]);
        let client = cluster::mount(&cluster.world, &rt, 0, Proto::Tcp, options).await.unwrap();
        let mut mount = MountOptions::default();
        mount.writeback = true;
        let linux = Linux::mount(client, &mount, Io::WriteBack, Random::new(1)).await;
        test(Mounted { rt: rt.clone(), disk, linux }).await;
    };
    time.block_on(run).unwrap();
}

#[test]
fn lookup_overtaken_by_a_write_gives_the_new_size() {
    with_mount(async |m| {
        m.write("file", OLD).await;
        m.disk.delay_lookups(DELAY);
        let write = async {
            m.rt.sleep(DELAY / 2).await;
            m.disk.delay_lookups(Duration::ZERO);
            m.write("file", NEW).await;
        };
        let (node, ()) = futures::join!(m.linux.lookup(PID + 1, "file"), write);
        assert_eq!(m.read(&node.unwrap()).await, NEW);
    });
}

#[test]
fn listing_overtaken_by_a_write_gives_the_new_size() {
    with_mount(async |m| {
        m.write("first", OLD).await;
        m.write("second", OLD).await;
        // The mount requests both entries at once, and gives them to the kernel one by one.
        let dir = (PID, m.linux.open_root(PID).await.unwrap());
        let first = m.linux.list_root(dir, 0, ONE_ENTRY).await.unwrap();
        m.write("second", NEW).await;
        let second = m.linux.list_root(dir, first[0].1, ONE_ENTRY).await.unwrap();
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_eq!(m.read(&first[0].0).await, OLD);
        assert_eq!(m.read(&second[0].0).await, NEW);
    });
}

#[test]
fn interrupted_commit_is_repeated() {
    with_mount(async |m| {
        let file = m.linux.open(PID, "file", false).await.unwrap();
        m.linux.write(&file, 0, NEW).await.unwrap();
        m.linux.write_back(&file).await.unwrap();
        let inode = m.linux.fs.inode(file.node.number).unwrap();
        m.linux.fs.write_back(&inode).await;
        assert!(m.linux.fs.commit(&inode).now_or_never().is_none(), "COMMIT is in progress");
        assert_eq!(m.linux.fs.pending(), (1, NEW.len()));
        m.rt.sleep(COMMITTED_AFTER).await;
        assert_eq!(m.linux.fs.pending(), (0, 0));
        assert_eq!(m.disk.stable("file").as_deref(), Some(NEW));
    });
}
