//! COMMIT never succeeds with an unchanged verifier for lost data. The failures are real ([`FailingDisk`]).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_vfs::{FileSystem, FsResult, NewNode, Stability};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::{
    super::{data, node},
    disk::FailingDisk,
    *,
};
use crate::LocalFs;

const BLOCK: usize = 4096;

/// Simulates that `idle` has passed: idle files are closed, or synced and then closed.
fn simulate_idle(fs: &LocalFs, idle: Duration) {
    let now = Instant::now() + idle + Duration::from_secs(1);
    let unsynced = fs.export.tree.cache.close_idle(now);
    fs.export.engine.sync_in_background(unsynced.clone());
    for file in unsynced {
        drop(wait(file.start_sync()));
        // The cache's reference and this one; the engine has released the file.
        while Arc::strong_count(&file) > 2 {
            std::thread::yield_now();
        }
    }
    fs.export.tree.cache.close_idle(now);
}

fn write(fs: &LocalFs, file: &Handle, block: usize, fill: u8, stable: Stability) -> FsResult<()> {
    let offset = (block * BLOCK) as u64;
    wait(fs.write(&me(), file, offset, views(&[fill; BLOCK]), stable)).map(|w| {
        assert_eq!(w.count as usize, BLOCK);
    })
}

fn commit(fs: &LocalFs, file: &Handle) -> FsResult<[u8; 8]> {
    wait(fs.commit(&me(), file, 0, 0)).map(|_| fs.write_verifier())
}

/// A failure that a local process reports, after the descriptor would otherwise have been closed.
#[test]
fn write_back_error_seen_by_others_changes_the_verifier() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let name = format!("f{i}");
        let file = create(&fs, &fs.root(), &name);
        let before = fs.write_verifier();
        write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
        simulate_idle(&fs, node::IDLE_TIMEOUT);
        disk.fail();
        disk.local_sync(&name);
        disk.heal();
        let committed = commit(&fs, &file);
        assert!(committed.is_err() || committed != Ok(before), "lost, and COMMIT says {committed:?}");
        assert_ne!(fs.write_verifier(), before, "a failed COMMIT changes the verifier too");
    }
}

/// The sync before a file with unstable writes is closed.
#[test]
fn failed_sync_before_close_changes_the_verifier() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let dir = fs.root();
        let others: Vec<_> = (0..20).map(|n| format!("{i}-other{n}")).collect();
        for n in &others {
            create(&fs, &dir, n);
        }
        for by_time in [true, false] {
            let file = create(&fs, &dir, &format!("{i}-{by_time}"));
            let before = fs.write_verifier();
            write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
            disk.fail();
            if by_time {
                simulate_idle(&fs, node::UNSYNCED_IDLE_TIMEOUT);
            } else {
                for n in &others {
                    let found = wait(fs.lookup(&me(), &dir, n.as_bytes())).unwrap().0;
                    let _ = write(&fs, &found, 0, 1, Stability::Unstable);
                }
            }
            disk.heal();
            assert_ne!(fs.write_verifier(), before, "configuration {i}, by time: {by_time}");
            simulate_idle(&fs, node::UNSYNCED_IDLE_TIMEOUT);
            assert_eq!(fs.open_objects(), 0, "idle files were not closed");
        }
    }
}

/// Of concurrent syncs of one descriptor, the kernel reports the error to one.
#[test]
fn concurrent_commits_of_lost_data_change_the_verifier() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        for round in 0..20 {
            let file = create(&fs, &fs.root(), &format!("{i}-{round}"));
            let before = fs.write_verifier();
            write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
            disk.fail();
            disk.write_back();
            let answers: Vec<_> = std::thread::scope(|s| {
                let commits: Vec<_> = (0..6).map(|_| s.spawn(|| commit(&fs, &file))).collect();
                commits.into_iter().map(|c| c.join().unwrap()).collect()
            });
            disk.heal();
            assert!(!answers.contains(&Ok(before)), "configuration {i}, round {round}: {answers:?}");
        }
    }
}

/// A stable write syncs the file, and may get the error of earlier data.
#[test]
fn stable_write_does_not_consume_the_error_of_earlier_data() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let file = create(&fs, &fs.root(), &format!("f{i}"));
        for block in [1, 2] {
            write(&fs, &file, block, 1, Stability::FileSync).unwrap();
        }
        write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
        disk.fail();
        disk.write_back();
        for block in [1, 2] {
            let _ = write(&fs, &file, block, 2, Stability::DataSync);
        }
        let committed = commit(&fs, &file);
        disk.heal();
        assert!(committed.is_err(), "configuration {i}: {committed:?}");
    }
}

#[test]
fn concurrent_stable_writes_use_separate_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    for (i, config) in configs(dir.path()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let file = create(&fs, &fs.root(), &i.to_string());
        write(&fs, &file, 0, 1, Stability::Unstable).unwrap();
        let shared = fs.export.tree.cached(&file).unwrap().data_fd(true).unwrap();
        let writer = || wait(data::writer(&fs.export, &shared, Stability::FileSync)).unwrap();
        let (one, other) = (writer(), writer());
        assert!(!Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &shared) && !Arc::ptr_eq(&other, &shared));
        let in_progress = Arc::clone(&one);
        shared.keep_spare(one);
        assert!(shared.take_spare().is_none(), "in use by a write");
        shared.keep_spare(other);
        shared.keep_spare(in_progress);
        assert!(shared.take_spare().is_some());
        assert!(shared.take_spare().is_none(), "only one spare is kept");
    }
}

#[test]
fn commit_during_stable_writes_does_not_hide_lost_data() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        for round in 0..25 {
            let file = create(&fs, &fs.root(), &format!("{i}-{round}"));
            write(&fs, &file, 1, 1, Stability::FileSync).unwrap();
            let before = fs.write_verifier();
            write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
            disk.fail();
            disk.write_back();
            let answers: Vec<_> = std::thread::scope(|s| {
                let write = s.spawn(|| write(&fs, &file, 1, 2, Stability::DataSync));
                let commits: Vec<_> = (0..3).map(|_| s.spawn(|| commit(&fs, &file))).collect();
                let _ = write.join().unwrap();
                commits.into_iter().map(|c| c.join().unwrap()).collect()
            });
            disk.heal();
            assert!(!answers.contains(&Ok(before)), "configuration {i}, round {round}: {answers:?}");
        }
    }
}

#[test]
fn committed_idle_file_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    for (i, config) in configs(dir.path()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let file = create(&fs, &fs.root(), &i.to_string());
        write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
        simulate_idle(&fs, node::IDLE_TIMEOUT);
        assert_eq!(fs.open_objects(), 1, "closing it could lose data without an error");
        commit(&fs, &file).unwrap();
        simulate_idle(&fs, node::IDLE_TIMEOUT);
        assert_eq!(fs.open_objects(), 0);
    }
}

/// SYMLINK and MKNOD make their entry durable without writing back other files.
#[test]
fn creating_a_link_or_special_file_syncs_only_its_entry() {
    let Some(disk) = FailingDisk::new() else { return };
    for (i, config) in configs(&disk.root()).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let root = fs.root();
        let (name, before) = (format!("f{i}"), fs.write_verifier());
        let file = create(&fs, &root, &name);
        write(&fs, &file, 0, 7, Stability::Unstable).unwrap();
        disk.fail();
        for (kind, new) in [("l", NewNode::Symlink(b"t".to_vec())), ("p", NewNode::Fifo)] {
            let name = format!("{kind}{i}");
            let made = wait(fs.create_node(&me(), &root, name.as_bytes(), &new, &SetAttr::default()));
            if let Ok(made) = made {
                let _ = wait(fs.link(&me(), &made.handle, &root, format!("{name}-too").as_bytes()));
            }
        }
        disk.heal();
        assert_eq!(commit(&fs, &file), Ok(before), "configuration {i}");
        assert_eq!(disk.content(&name), [7; BLOCK]);
    }
}

/// A completed write that the client retains until it is committed.
struct Acknowledged {
    block: usize,
    fill: u8,
    verifier: [u8; 8],
}

/// A client that writes and commits, on a disk that fails at times, with idle periods and other users of the
/// files.
struct Scenario<'a> {
    disk: &'a FailingDisk,
    fs: Arc<LocalFs>,
    names: Vec<String>,
    files: Vec<Handle>,
    next_block: Vec<usize>,
    retained: HashMap<usize, Vec<Acknowledged>>,
    random: SplitMix64,
}

impl Scenario<'_> {
    fn random(&mut self, below: usize) -> usize {
        (self.random.next_u64() % below as u64) as usize
    }

    fn step(&mut self) -> String {
        let i = self.random(self.files.len());
        match self.random(12) {
            0..=3 => self.write(i),
            4 | 5 => self.commit(i),
            6 => {
                simulate_idle(&self.fs, node::IDLE_TIMEOUT);
                "idle".into()
            }
            7 => {
                simulate_idle(&self.fs, node::UNSYNCED_IDLE_TIMEOUT);
                "long idle".into()
            }
            8 => {
                self.disk.fail();
                "fail".into()
            }
            9 => {
                self.disk.heal();
                "heal".into()
            }
            10 => {
                self.disk.write_back();
                "write back".into()
            }
            _ => {
                self.disk.local_sync(&self.names[i]);
                format!("local sync {i}")
            }
        }
    }

    fn write(&mut self, i: usize) -> String {
        let stable = [Stability::Unstable, Stability::Unstable, Stability::Unstable, Stability::DataSync]
            [self.random(4)];
        let (block, fill) = (self.next_block[i], 1 + self.random(255) as u8);
        self.next_block[i] += 1;
        let verifier = self.fs.write_verifier();
        let written = write(&self.fs, &self.files[i], block, fill, stable);
        if written.is_ok() && stable == Stability::Unstable {
            self.retained.entry(i).or_default().push(Acknowledged { block, fill, verifier });
        } else if written.is_ok() {
            self.check(i, block, fill, "by a stable write");
        }
        format!("write {i} {stable:?}: {written:?}")
    }

    fn commit(&mut self, i: usize) -> String {
        let committed = commit(&self.fs, &self.files[i]);
        if let Ok(now) = committed {
            // Data with an older verifier is resent by the client.
            for a in self.retained.remove(&i).unwrap_or_default() {
                if a.verifier == now {
                    self.check(i, a.block, a.fill, "by an unstable write");
                }
            }
        }
        format!("commit {i}: {committed:?}")
    }

    fn check(&self, i: usize, block: usize, fill: u8, how: &str) {
        let content = self.disk.content(&self.names[i]);
        let there = content.get(block * BLOCK..(block + 1) * BLOCK).unwrap_or_default();
        assert!(there == [fill; BLOCK], "block {block} of file {i}, written {how}, is lost");
    }
}

#[test]
fn random_failures_do_not_lose_committed_data() {
    let Some(mut disk) = FailingDisk::new() else { return };
    let first: u64 = std::env::var("MILLRACE_SEED").map_or(1, |s| s.parse().unwrap());
    let scenarios: u64 = std::env::var("MILLRACE_STORIES").map_or(20, |s| s.parse().unwrap());
    for seed in first..first + scenarios {
        for c in 0..configs(&disk.root()).count() {
            // The kernel may have written back metadata while the disk failed; then no file can be created.
            if std::fs::File::create(disk.root().join("probe")).is_err() {
                disk = FailingDisk::new().unwrap();
            }
            let fs = LocalFs::open(configs(&disk.root()).nth(c).unwrap()).unwrap();
            let names: Vec<String> = (0..3).map(|n| format!("{seed}-{c}-{n}")).collect();
            let files: Vec<Handle> = names.iter().map(|n| create(&fs, &fs.root(), n)).collect();
            let next_block = vec![0; files.len()];
            let random = SplitMix64::seed_from_u64(seed);
            let mut scenario =
                Scenario { disk: &disk, fs, names, files, next_block, retained: HashMap::new(), random };
            println!("MILLRACE_SEED={seed} MILLRACE_STORIES=1, configuration {c}");
            for _ in 0..40 {
                let step = scenario.step();
                println!("  {step}");
            }
            disk.heal();
        }
    }
}
