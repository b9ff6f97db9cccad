//! The locks of programs on mounts that they lose; see [`lost_locks`].

use std::{
    cell::{Cell, RefCell},
    sync::{Arc, LazyLock},
    time::Duration,
};

use millrace_client::handles::Client;
use millrace_crashtest::{
    lost_locks::{self, Counts, LockedFile, NAME},
    seeds::{Kind, RunStats},
    unstable::choice,
};
use millrace_rdma_sim::{Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use super::{
    PID,
    linux::{Description, Io, Linux, SysResult},
    locks::{EXCLUSIVE, UNLOCKED},
    text,
    wire::Op,
};
use crate::MountOptions;

pub(super) const LOST_LOCKS: Kind =
    Kind { name: "mount-lost-locks", run, command: "cargo test -p millrace-fuse --lib simulated::replay" };

/// What has happened in all runs.
static COUNTS: LazyLock<Counts> = LazyLock::new(Counts::default);

/// A process that has the file open.
struct Process {
    rt: RuntimeRef,
    linux: Arc<Linux>,
    pid: u32,
    file: RefCell<Option<Description>>,
}

impl Process {
    async fn new(rt: RuntimeRef, linux: Arc<Linux>, pid: u32) -> SysResult<Self> {
        let file = linux.open(pid, NAME, false).await?;
        Ok(Self { rt, linux, pid, file: RefCell::new(Some(file)) })
    }

    fn file(&self) -> Description {
        self.file.borrow().clone().expect("the file is open")
    }

    /// The mount drops the pages at a lock and at an unlock, and the kernel then writes the dirty ones, which other
    /// invalidations of this model leave. The model does that after the lock, and before the unlock.
    async fn drop_pages(&self) {
        if self.linux.io == Io::WriteBack {
            let file = self.file();
            let _ = self.linux.write_back(&file).await; // The mount has the error.
            file.node.cache.lock().drop_clean();
        }
    }

    async fn set_lock(&self, op: Op, kind: u32) -> Result<(), String> {
        self.linux.set_lock(op, &self.file(), (self.pid.into(), kind, 0)).await.map_err(text)
    }
}

impl LockedFile for Process {
    async fn lock(&self) -> Result<(), String> {
        self.set_lock(Op::Setlkw, EXCLUSIVE).await?;
        self.drop_pages().await;
        Ok(())
    }

    async fn unlock(&self) -> Result<(), String> {
        self.drop_pages().await;
        self.set_lock(Op::Setlk, UNLOCKED).await
    }

    async fn close(&self) -> Result<(), String> {
        let file = self.file.take().expect("the file is open");
        let closed = self.linux.close(file).await.map_err(text);
        let opened = loop {
            match self.linux.open(self.pid, NAME, false).await {
                Ok(file) => break file,
                Err(_) => self.rt.sleep(Duration::from_secs(1)).await,
            }
        };
        self.file.replace(Some(opened));
        closed
    }

    async fn read(&self, len: usize) -> Result<Vec<u8>, String> {
        self.linux.read(&self.file(), 0, len).await.map_err(text)
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        self.linux.write(&self.file(), offset, data).await.map_err(text)
    }

    /// With `writeback`, Linux keeps the size that it has (`fuse_change_attributes`).
    fn has_current_size(&self) -> bool {
        self.linux.io != Io::WriteBack
    }

    async fn sync(&self) -> Result<(), String> {
        self.linux.fsync(&self.file()).await.map_err(text)
    }
}

fn run(time: &VirtualTime, seed: Seed, trace: bool, shown: &Cell<Option<World>>) -> Result<RunStats, String> {
    lost_locks::run(time, (seed, trace, shown), &COUNTS, async |client: Client, owners, mut random| {
        let io = choice(&mut random, &[Io::Direct, Io::WriteThrough, Io::WriteBack]);
        let mut options = MountOptions::default();
        options.acregmin = choice(&mut random, &[0, 3]);
        options.writeback = io == Io::WriteBack;
        let linux = Linux::mount(client, &options, io, random).await;
        let mut processes = Vec::new();
        for n in 0..owners {
            let process = Process::new(time.runtime(), Arc::clone(&linux), PID + n as u32).await;
            processes.push(process.map_err(text)?);
        }
        Ok(processes)
    })
}

/// A process loses its lock while its data is in flight, and another one of the mount gets the lock.
#[test]
fn a_holder_has_the_size_of_the_server_while_lost_data_is_in_flight() {
    LOST_LOCKS.outcome(Seed(1486), false).unwrap();
}

/// Another process of the mount unlocks between the holder's GETATTR and its reply, which the kernel then ignores.
#[test]
fn a_holder_has_the_size_of_the_server_despite_the_unlock_of_another() {
    LOST_LOCKS.outcome(Seed(1158), false).unwrap();
}

#[test]
fn data_of_a_lost_lock_replaces_nothing() {
    let (seeds, [reconnects, crashes, _]) = LOST_LOCKS.run_seeds();
    println!("{:?}", *COUNTS);
    assert!(reconnects > seeds && crashes > seeds);
    COUNTS.assert_frequent(seeds);
}
