//! A mount with read delegations, and another client that changes the file.

mod names;

use std::{sync::Arc, time::Duration};

use millrace_client::{
    Proto, Strategy, Version,
    handles::{Client, File},
};
use millrace_crashtest::{
    Random,
    cluster::{self, Cluster, options},
};
use millrace_nfs::v4::Operation;
use millrace_rdma_sim::Profile;
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};
use rustix::fs::OFlags;

use super::{
    PID,
    linux::{Description, Io, KEEP_CACHE, Linux, errno},
    page_cache::Node,
    wire::{Body, Op, u32_at, u64_at},
};
use crate::MountOptions;

/// Longer than attributes are cached, and than the interval between requests for delegations.
const LONG: Duration = Duration::from_secs(70);
/// Bytes of a version.
const LEN: usize = 8;

struct Scene<'c> {
    rt: RuntimeRef,
    linux: Arc<Linux>,
    cluster: &'c Cluster,
    mounted: Client,
    other: File,
}

/// Runs a test with a mount, and a file that another client has created.
fn with_mount(seed: u64, test: impl AsyncFnOnce(Scene<'_>)) {
    let time = VirtualTime::new(seed);
    let rt = time.runtime();
    let mut cluster = Cluster::new(&time, Profile::named("sdr-opensolaris").unwrap());
    cluster.config.exports[0].delegations = millrace_server::Delegations::Read;
    cluster.start(&time);
    let run = async {
        let options = || options(Strategy::ALL[0]).vers(Some(Version::V4_2));
        let connect = |number| cluster::mount(&cluster.world, &rt, number, Proto::Tcp, options());
        let (mounted, other) = (connect(0).await.unwrap(), connect(1).await.unwrap());
        let other = other.create_file("file", 0o666).await.unwrap();
        write(&other, 0).await;
        let mount = MountOptions::default();
        let linux = Linux::mount(mounted.clone(), &mount, Io::WriteThrough, Random::new(seed)).await;
        test(Scene { rt: rt.clone(), linux, cluster: &cluster, mounted, other }).await;
    };
    time.block_on(run).unwrap();
}

/// Writes a version of the file.
async fn write(file: &File, version: u64) {
    file.write(0, &version.to_be_bytes()).await.unwrap();
    file.commit().await.unwrap();
}

impl Scene<'_> {
    /// Number of operations of opens and revalidation that the server has executed.
    fn operations(&self) -> u64 {
        let stats = self.cluster.stats();
        [Operation::Lookup, Operation::Getattr, Operation::Access, Operation::Open, Operation::Read]
            .map(|operation| stats.operations_of(operation))
            .iter()
            .sum()
    }

    /// open(2) for reading.
    async fn open(&self, node: &Arc<Node>) -> Description {
        let body = Body::default().u32(OFlags::RDONLY.bits()).u32(0);
        let opened = self.linux.call(Op::Open, node.number, PID, body).await.map_err(errno).unwrap();
        if u32_at(&opened, 8) & KEEP_CACHE == 0 {
            node.cache.lock().drop_clean();
        }
        Description { node: Arc::clone(node), handle: u64_at(&opened, 0), pid: PID }
    }

    /// The version that a program reads.
    async fn read(&self, node: &Arc<Node>) -> u64 {
        let file = self.open(node).await;
        let version = self.linux.read(&file, 0, LEN).await.unwrap();
        self.linux.close_with(file, || false).await.unwrap();
        u64::from_be_bytes(version.try_into().unwrap())
    }

    /// stat(2) without a cache in the kernel.
    async fn stat(&self, node: &Node) {
        let body = Body::default().u32(0).u32(0).u64(0);
        self.linux.call(Op::Getattr, node.number, PID, body).await.map_err(errno).unwrap();
    }

    /// Reads the file until it is delegated.
    async fn delegated(&self) -> Arc<Node> {
        let node = self.linux.lookup(PID, "file").await.unwrap();
        self.read(&node).await;
        assert_eq!(self.cluster.stats().nfs4_delegations, 0, "the file was opened once");
        self.read(&node).await;
        self.rt.sleep(LONG).await;
        assert_eq!(self.cluster.stats().nfs4_delegations, 1);
        node
    }
}

#[test]
fn a_delegated_file_is_used_without_requests() {
    with_mount(1, async |s| {
        let node = s.delegated().await;
        let before = s.operations();
        let open = s.open(&node).await;
        for _ in 0..5 {
            assert_eq!(s.read(&node).await, 0);
            s.stat(&node).await;
            s.rt.sleep(LONG).await;
        }
        assert_eq!(s.operations(), before);
        s.linux.close_with(open, || false).await.unwrap();
        s.mounted.shutdown().await;
        assert_eq!(s.cluster.stats().nfs4_delegations, 0);
    });
}

#[test]
fn after_a_recall_an_open_revalidates_the_file() {
    with_mount(1, async |s| {
        let node = s.delegated().await;
        write(&s.other, 1).await;
        let stats = s.cluster.stats();
        assert_eq!((stats.nfs4_delegations, stats.nfs4_delegations_recalled), (0, 1));
        assert_eq!(s.read(&node).await, 1);
        // The server grants no delegation of the file for a while.
        write(&s.other, 2).await;
        assert_eq!(s.read(&node).await, 2);
        s.rt.sleep(LONG).await;
        s.read(&node).await;
        s.rt.sleep(LONG).await;
        assert_eq!(s.cluster.stats().nfs4_delegations, 1);
        let before = s.operations();
        assert_eq!(s.read(&node).await, 2);
        assert_eq!(s.operations(), before);
        // A rename by the other client concerns the name.
        let root = s.mounted.root();
        s.other.client().rename(root, "file", root, "moved").await.unwrap();
        assert_eq!(s.cluster.stats().nfs4_delegations, 0);
        let body = Body::default().u32(OFlags::RDONLY.bits()).u32(0);
        let stale = s.linux.call(Op::Open, node.number, PID, body).await.map_err(errno);
        assert_eq!(stale.map(drop), Err(rustix::io::Errno::STALE));
    });
}

#[test]
fn the_delegation_of_a_removed_file_is_returned() {
    with_mount(1, async |s| {
        let node = s.delegated().await;
        let client = s.mounted.clone();
        s.linux.fs.unlink(&client, crate::dentries::ROOT, b"file").await.unwrap();
        let stats = s.cluster.stats();
        assert_eq!((stats.nfs4_delegations, stats.nfs4_delegations_recalled), (0, 0));
        drop(node);
    });
}

/// Random opens and changes: an open sees each change that was acknowledged before.
#[test]
fn an_open_sees_what_others_have_written() {
    let (mut recalls, mut cached) = (0, 0);
    for seed in 0..20 {
        with_mount(seed, async |s| {
            let (mut random, mut version) = (Random::new(seed), 0);
            let node = s.linux.lookup(PID, "file").await.unwrap();
            for step in 0..60 {
                let before = s.operations();
                match random.below(8) {
                    0 => {
                        version += 1;
                        write(&s.other, version).await;
                    }
                    1 => s.rt.sleep(Duration::from_secs(random.below(60))).await,
                    2 => {
                        // The change is concurrent with the open.
                        let (read, ()) = futures::join!(s.read(&node), write(&s.other, version + 1));
                        assert!(read == version || read == version + 1, "seed {seed}, step {step}");
                        version += 1;
                    }
                    _ => {
                        assert_eq!(s.read(&node).await, version, "seed {seed}, step {step}");
                        cached += u32::from(s.operations() == before);
                    }
                }
            }
            recalls += s.cluster.stats().nfs4_delegations_recalled;
        });
    }
    assert!(recalls > 20 && cached > 50, "{recalls} recalls, {cached} opens without requests");
}
