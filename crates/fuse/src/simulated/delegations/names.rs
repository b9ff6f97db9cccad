//! The names of delegated files, and replies about them that are delayed past a rename by another client.

use std::sync::Arc;

use millrace_client::{handles::Object, ops::FileHandle};
use rustix::io::Errno;

use super::*;
use crate::{clock::Epoch, dentries::ROOT};

/// The thread that looks names up; it opens no files.
const OTHER_PID: u32 = PID + 1;

/// A LOOKUP of the mount whose reply it has not used.
struct Delayed {
    name: &'static str,
    issued: Epoch,
    object: Object,
}

impl Scene<'_> {
    async fn delayed(&self, name: &'static str) -> Delayed {
        let issued = self.linux.fs.clock.tick();
        let object = self.mounted.lookup(self.mounted.root(), name).await.unwrap();
        Delayed { name, issued, object }
    }

    /// The mount uses a reply.
    async fn deliver(&self, Delayed { name, issued, object }: Delayed) {
        let (fs, root) = (&self.linux.fs, self.linux.fs.inode(ROOT).unwrap());
        drop(fs.make_entry(&self.mounted, (&root, name.as_bytes()), issued, object).await.unwrap());
    }

    /// The other client renames a file.
    async fn rename(&self, from: &str, to: &str) {
        let root = self.mounted.root();
        self.other.client().rename(root, from, root, to).await.unwrap();
    }

    /// open(2) for reading and close(2).
    async fn try_open(&self, node: &Arc<Node>) -> Result<(), Errno> {
        let body = Body::default().u32(OFlags::RDONLY.bits()).u32(0);
        let opened = self.linux.call(Op::Open, node.number, PID, body).await.map_err(errno)?;
        let file = Description { node: Arc::clone(node), handle: u64_at(&opened, 0), pid: PID };
        self.linux.close_with(file, || false).await.map(drop)
    }

    /// Number of operations of an open.
    async fn open_operations(&self, node: &Arc<Node>) -> u64 {
        let before = self.operations();
        self.try_open(node).await.unwrap();
        self.operations() - before
    }
}

#[test]
fn a_name_that_was_requested_before_the_grant_is_looked_up() {
    with_mount(1, async |s| {
        let root = s.mounted.root();
        s.other.client().link(s.other.handle(), root, "alias").await.unwrap();
        let alias = s.delayed("alias").await;
        s.rename("alias", "elsewhere").await;
        let node = s.delegated().await;
        assert_eq!(s.open_operations(&node).await, 0);
        s.deliver(alias).await;
        assert_eq!(s.try_open(&node).await, Err(Errno::STALE));
        // The kernel looks the path up again.
        assert_eq!(s.linux.lookup(PID, "alias").await.map(drop), Err(Errno::NOENT));
        // The open looks the other name up, so that the next one need not.
        assert!(s.open_operations(&node).await > 0);
        assert_eq!(s.open_operations(&node).await, 0);
        assert_eq!(s.cluster.stats().nfs4_delegations, 1);
    });
}

#[test]
fn lookups_under_an_earlier_delegation_count_for_no_later_one() {
    with_mount(1, async |s| {
        let node = s.delegated().await;
        let inode = s.linux.fs.inodes.get(node.number).unwrap();
        let first = inode.state.lock().delegation.names_version();
        write(&s.other, 1).await;
        for _ in 0..2 {
            s.read(&node).await;
            s.rt.sleep(LONG).await;
        }
        assert_eq!(s.cluster.stats().nfs4_delegations, 1);
        assert_eq!(s.open_operations(&node).await, 0);
        {
            let mut state = inode.state.lock();
            let second = state.delegation.names_version();
            state.delegation.forget_names();
            // Lookups that began before end now.
            state.delegation.include_names(first);
            state.delegation.include_names(second);
        }
        assert!(s.open_operations(&node).await > 0);
        assert_eq!(s.open_operations(&node).await, 0);
    });
}

/// Names that the other client moves between files.
const NAMES: [&str; 4] = ["file", "b", "c", "d"];

/// Two files under names that the other client changes.
struct Model<'s> {
    scene: Scene<'s>,
    random: Random,
    /// The name of each file, an index of [`NAMES`].
    names: [usize; 2],
    files: [FileHandle; 2],
    delayed: Vec<Delayed>,
    nodes: Vec<Arc<Node>>,
    /// Opens without requests after a name was delivered late.
    cached: u32,
}

impl Model<'_> {
    async fn step(&mut self) {
        match self.random.below(12) {
            0 | 1 => {
                let (file, to) = (self.random.below(2) as usize, self.random.below(4) as usize);
                if !self.names.contains(&to) {
                    self.scene.rename(NAMES[self.names[file]], NAMES[to]).await;
                    self.names[file] = to;
                }
            }
            2 => self.scene.rt.sleep(Duration::from_secs(self.random.below(60))).await,
            3 | 4 => {
                let file = self.random.below(2) as usize;
                self.delayed.push(self.scene.delayed(NAMES[self.names[file]]).await);
            }
            5 | 6 if !self.delayed.is_empty() => {
                let n = self.random.below(self.delayed.len() as u64) as usize;
                self.scene.deliver(self.delayed.swap_remove(n)).await;
            }
            7 => {
                let name = NAMES[self.names[self.random.below(2) as usize]];
                self.nodes.push(self.scene.linux.lookup(OTHER_PID, name).await.unwrap());
            }
            _ if !self.nodes.is_empty() => {
                let n = self.random.below(self.nodes.len() as u64) as usize;
                self.open(&self.nodes[n].clone()).await;
            }
            _ => {}
        }
    }

    /// An open that succeeds proves that the names of the file which the kernel has cached are right.
    async fn open(&mut self, node: &Arc<Node>) {
        let before = self.scene.operations();
        let opened = self.scene.try_open(node).await;
        if opened == Err(Errno::STALE) {
            // The kernel retries.
            return self.scene.try_open(node).await.unwrap();
        }
        opened.unwrap();
        self.cached += u32::from(self.scene.operations() == before);
        let inode = self.scene.linux.fs.inodes.get(node.number).unwrap();
        let file = self.files.iter().position(|handle| *handle == inode.handle).unwrap();
        for (_, (_, text, _)) in self.scene.linux.fs.inodes.cached_names(node.number) {
            assert_eq!(*text, *NAMES[self.names[file]].as_bytes(), "the file is opened by a name of another");
        }
    }
}

#[test]
fn an_open_succeeds_only_by_names_of_the_file() {
    let (mut cached, mut recalls) = (0, 0);
    for seed in 0..20 {
        with_mount(seed, async |scene| {
            let second = scene.other.client().create_file("b", 0o666).await.unwrap();
            let files = [scene.other.handle(), second.handle()];
            let (delayed, nodes) = Default::default();
            let random = Random::new(seed);
            let mut model = Model { scene, random, names: [0, 1], files, delayed, nodes, cached: 0 };
            for _ in 0..80 {
                model.step().await;
            }
            cached += model.cached;
            recalls += model.scene.cluster.stats().nfs4_delegations_recalled;
        });
    }
    assert!(recalls > 20 && cached > 50, "{recalls} recalls, {cached} opens without requests");
}
