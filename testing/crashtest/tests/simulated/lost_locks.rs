//! The locks of [`File`]s that their holders lose.

use std::{cell::Cell, sync::LazyLock};

use futures::{FutureExt, StreamExt};
use millrace_client::{
    LockKind, Proto, Strategy, Version,
    handles::{Client, File},
};
use millrace_crashtest::{
    cluster::{Cluster, mount, options},
    lost_locks::{self, Counts, LockedFile, NAME},
    seeds::RunStats,
};
use millrace_rdma_sim::{Profile, Seed, World};
use millrace_runtime::virtual_time::VirtualTime;

/// What has happened in all runs.
pub(crate) static COUNTS: LazyLock<Counts> = LazyLock::new(Counts::default);

/// A file and its lock owner.
struct Locked {
    file: File,
    owner: u64,
}

fn text(e: millrace_client::Error) -> String {
    e.to_string()
}

impl LockedFile for Locked {
    async fn lock(&self) -> Result<(), String> {
        self.file.lock(self.owner, 0..u64::MAX, LockKind::Exclusive).await.map_err(text)
    }

    async fn unlock(&self) -> Result<(), String> {
        self.file.unlock(self.owner, 0..u64::MAX).await.map_err(text)
    }

    async fn close(&self) -> Result<(), String> {
        let committed = self.file.commit().await.map_err(text);
        self.unlock().await.and(committed)
    }

    async fn read(&self, len: usize) -> Result<Vec<u8>, String> {
        let mut content = vec![0; len];
        let n = self.file.read(0, &mut content).await.map_err(text)?;
        content.truncate(n);
        Ok(content)
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        self.file.write(offset, data).await.map_err(text)
    }

    async fn sync(&self) -> Result<(), String> {
        self.file.commit().await.map_err(text)
    }
}

/// The first call after the server has lost the lock is the unlock: the owner can use the file again.
#[test]
fn a_loss_that_the_unlock_finds_ends_with_it() {
    let time = VirtualTime::new(7);
    let mut cluster = Cluster::new(&time, Profile::named("gige-2003").unwrap());
    cluster.start(&time);
    let rt = time.runtime();
    let done = time.block_on(async {
        let options = options(Strategy::Cache).vers(Some(Version::V4_2));
        let client = mount(&cluster.world, &rt, 0, Proto::Tcp, options).await.unwrap();
        let file = Locked { file: client.create_file("f", 0o600).await.unwrap(), owner: 1 };
        let mut losses = Box::pin(file.file.locks_lost().unwrap());
        for _ in 0..2 {
            file.lock().await.unwrap();
            cluster.crash();
            cluster.start(&time);
            file.unlock().await.unwrap();
            file.write(0, b"x").await.unwrap();
        }
        assert_eq!(losses.next().now_or_never(), Some(Some(())), "both losses");
        assert_eq!(losses.next().now_or_never(), None);
        file.lock().await.unwrap();
        cluster.crash();
        cluster.start(&time);
        assert!(file.write(0, b"y").await.is_err());
        assert_eq!(losses.next().now_or_never(), Some(Some(())), "the third loss");
        drop(file);
        assert_eq!(losses.next().await, None);
    });
    done.expect("the run made no progress");
}

/// Runs `seed`; stores the world in `shown` as soon as it exists.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    lost_locks::run(time, (seed, trace, shown), &COUNTS, async |client: Client, owners, _| {
        let (handle, _) = client.resolve(NAME).await.map_err(text)?;
        Ok((0..owners).map(|owner| Locked { file: File::new(client.clone(), handle), owner }).collect())
    })
}
