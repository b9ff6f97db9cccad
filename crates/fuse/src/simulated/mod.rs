//! Simulation of a mount in virtual time: programs, a kernel, the mount, the client library, a network with
//! faults, and a server whose disk loses uncommitted data. Reads must return what the model of `crashtest`
//! allows.
//!
//! All but the kernel is production code: requests pass through a session (`fuse-session`) as bytes, and its thread never runs
//! concurrently with the tasks in virtual time (`wire.rs`). The kernel (`linux.rs`, `page_cache.rs`) uses
//! direct I/O, write-through or write-back caching.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod channel;
mod delegations;
mod hooked_runtime;
mod linux;
mod locks;
mod lost_locks;
mod opening;
mod page_cache;
pub(crate) mod wire;
mod write_back;
mod xattrs;

use std::{cell::Cell, sync::Arc};

use millrace_client::handles::Client;
use millrace_crashtest::{
    Disk, Subject,
    seeds::{self, Kind, RunStats},
    unstable::{self, Files, WRITERS, choice},
};
use millrace_rdma_sim::{Seed, World};
use millrace_runtime::{BoxFuture, virtual_time::VirtualTime};
use parking_lot::Mutex;
use rustix::io::Errno;

use self::{
    linux::{Description, Io, Linux},
    lost_locks::LOST_LOCKS,
};
use crate::MountOptions;

/// Larger than any process ID, so that no process of this host is checked.
const PID: u32 = 1 << 30;
/// One step in this many is followed by a write-back of dirty pages.
const WRITE_BACK_ONE_IN: u64 = 8;

const MOUNT: Kind =
    Kind { name: "mount", run, command: "cargo test -p millrace-fuse --lib simulated::replay" };

/// The mount as subject of the workload: each writer is a thread with its own descriptors.
struct MountedSubject {
    linux: Arc<Linux>,
    names: Vec<String>,
    open: Vec<Mutex<Option<Description>>>,
    disk: Arc<Disk>,
}

fn text(e: Errno) -> String {
    e.to_string()
}

impl MountedSubject {
    async fn new(client: Client, mut files: Files) -> Result<Self, String> {
        let io = choice(&mut files.random, &[Io::Direct, Io::WriteThrough, Io::WriteBack]);
        // `acregmin=0`: attributes are not cached. `sync`: each WRITE is stable when it returns.
        let mut options = MountOptions::default();
        options.acregmin = choice(&mut files.random, &[0, 3]);
        options.sync = files.random.below(8) == 0;
        options.writeback = io == Io::WriteBack;
        let linux = Linux::mount(client, &options, io, files.random).await;
        let mut open = Vec::new();
        for writer in 0..WRITERS {
            for name in &files.names {
                open.push(Mutex::new(Some(linux.open(pid(writer), name, true).await.map_err(text)?)));
            }
        }
        Ok(Self { linux, names: files.names, open, disk: files.disk })
    }

    fn slot(&self, writer: usize, file: usize) -> &Mutex<Option<Description>> {
        &self.open[writer * self.names.len() + file]
    }

    fn file(&self, writer: usize, file: usize) -> Result<Description, String> {
        self.slot(writer, file).lock().clone().ok_or_else(|| "the file is closed".into())
    }

    async fn write_back(&self, file: &Description) -> Result<(), String> {
        let is_due = self.linux.random.lock().below(WRITE_BACK_ONE_IN) == 0;
        if is_due { self.linux.write_back(file).await.map_err(text) } else { Ok(()) }
    }
}

fn pid(writer: usize) -> u32 {
    PID + writer as u32
}

impl Subject for MountedSubject {
    fn write(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        data: Vec<u8>,
    ) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let file = self.file(writer, file)?;
            self.linux.write(&file, offset, &data).await.map_err(text)?;
            self.write_back(&file).await?;
            Ok(true)
        })
    }

    fn read(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        len: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let file = self.file(writer, file)?;
            self.linux.read(&file, offset, len).await.map_err(text)
        })
    }

    fn truncate(&self, writer: usize, file: usize, size: u64) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let file = self.file(writer, file)?;
            self.linux.set_size(&file, size, true).await.map_err(text)
        })
    }

    fn sync(&self, writer: usize, file: usize) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.linux.fsync(&self.file(writer, file)?).await.map_err(text) })
    }

    fn reopen(&self, writer: usize, file: usize, truncate: bool) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let old = self.slot(writer, file).lock().take();
            self.linux.close(old.ok_or("the file is closed")?).await.map_err(text)?;
            let new = self.linux.open(pid(writer), &self.names[file], truncate).await.map_err(text)?;
            *self.slot(writer, file).lock() = Some(new);
            Ok(())
        })
    }

    fn stable(&self, file: usize) -> Option<Vec<u8>> {
        self.disk.stable(&self.names[file])
    }
}

fn run(time: &VirtualTime, seed: Seed, trace: bool, shown: &Cell<Option<World>>) -> Result<RunStats, String> {
    unstable::run(time, seed, trace, shown, async |client: Client, files: Files| {
        MountedSubject::new(client, files).await
    })
}

#[test]
fn reads_are_consistent_after_faults_and_lost_data() {
    let (seeds, [reconnects, crashes, _]) = MOUNT.run_seeds();
    assert!(reconnects > seeds && crashes > seeds / 4, "too few reconnections or crashes");
}

#[test]
fn replay() {
    seeds::replay(&[MOUNT, LOST_LOCKS]);
}

#[test]
fn runs_are_reproducible_from_the_seed() {
    MOUNT.assert_repeatable();
    LOST_LOCKS.assert_repeatable();
}
