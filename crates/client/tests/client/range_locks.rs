//! Byte-range locks between clients, and what a restart of the server leaves of them.

use std::{path::Path, time::Duration};

use millrace_client::{Client, Error, LockKind, OpenOptions, Proto, Version};
use millrace_nfs::v4::Operation;
use millrace_server::{Config, Nfs4Settings, Running, Server, Stats};
use tokio::io::AsyncWriteExt;

use crate::common::{self, run};

const EXCLUSIVE: LockKind = LockKind::Exclusive;
const SHARED: LockKind = LockKind::Shared;

async fn client(server: &Running, proto: Proto, version: Version) -> Client {
    Client::connect(format!("{}&vers={version}", common::url(server, proto, "data"))).await.unwrap()
}

async fn open(client: &Client, path: &str) -> millrace_client::File {
    OpenOptions::new().read(true).write(true).create(true).open(client, path).await.unwrap()
}

#[test]
fn clients_exclude_each_other() {
    let server = common::server();
    run(async {
        for proto in [Proto::Tcp, Proto::Rdma] {
            let (a, b) =
                (client(&server, proto, Version::V4_2).await, client(&server, proto, Version::V4_1).await);
            let (one, two) = (open(&a, "f").await, open(&b, "f").await);
            let also = a.open("f").await.unwrap();
            one.lock(0..100, EXCLUSIVE).await.unwrap();
            for other in [&two, &also] {
                assert!(!other.try_lock(99..200, SHARED).await.unwrap());
                assert!(other.try_lock(100..200, SHARED).await.unwrap());
            }
            let conflict = two.by_handle().test_lock(7, 50..60, SHARED).await.unwrap().unwrap();
            assert_eq!((conflict.range, conflict.kind), (0..100, EXCLUSIVE));
            // Owners can share a range with shared locks.
            assert!(!one.try_lock(150..160, EXCLUSIVE).await.unwrap());
            one.lock(0..100, SHARED).await.unwrap();
            assert!(two.try_lock(0..u64::MAX, SHARED).await.unwrap());
            two.unlock(0..u64::MAX).await.unwrap();
            also.unlock(0..u64::MAX).await.unwrap();
            one.unlock(10..20).await.unwrap();
            assert!(two.try_lock(10..20, EXCLUSIVE).await.unwrap());
            assert!(!two.try_lock(10..21, EXCLUSIVE).await.unwrap());
            let empty = one.lock(5..5, SHARED).await.unwrap_err();
            assert!(matches!(empty, Error::InvalidInput(_)), "{empty}");
            // A dropped file has no locks.
            drop(one);
            two.lock(0..u64::MAX, EXCLUSIVE).await.unwrap();
            two.unlock(0..u64::MAX).await.unwrap();
            assert_eq!(two.by_handle().test_lock(7, 0..u64::MAX, EXCLUSIVE).await.unwrap(), None);
        }
    });
}

#[test]
fn a_lock_waits_for_its_turn_and_shows_what_was_written() {
    let server = common::server();
    run(async {
        for proto in [Proto::Tcp, Proto::Rdma] {
            let clients =
                [client(&server, proto, Version::V4_2).await, client(&server, proto, Version::V4_2).await];
            clients[0].write("counter", "0").await.unwrap();
            let count = |client: Client| async move {
                for _ in 0..10 {
                    let mut file = open(&client, "counter").await;
                    file.lock(0..u64::MAX, EXCLUSIVE).await.unwrap();
                    let mut text = vec![0; 8];
                    let n = file.by_handle().read(0, &mut text).await.unwrap();
                    let number: u32 = std::str::from_utf8(&text[..n]).unwrap().parse().unwrap();
                    file.write_all((number + 1).to_string().as_bytes()).await.unwrap();
                    file.unlock(0..u64::MAX).await.unwrap();
                }
            };
            let tasks: Vec<_> = clients.iter().map(|c| tokio::spawn(count(c.clone()))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(clients[1].read_to_string("counter").await.unwrap(), "20");
        }
    });
}

/// Waits until the server's statistics satisfy `reached`.
async fn until(server: &Running, reached: impl Fn(&Stats) -> bool) {
    while !reached(&server.stats()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn the_server_notifies_a_client_that_waits() {
    let server = common::server();
    run(async {
        for (n, proto) in (1..).zip([Proto::Tcp, Proto::Rdma]) {
            let (a, b) =
                (client(&server, proto, Version::V4_2).await, client(&server, proto, Version::V4_1).await);
            let (one, two) = (open(&a, "f").await, open(&b, "f").await);
            one.lock(0..10, EXCLUSIVE).await.unwrap();
            let attempts = |stats: &Stats| stats.operations_of(Operation::Lock);
            let before = attempts(&server.stats());
            let waiting = tokio::spawn(async move { two.lock(5..20, EXCLUSIVE).await.map(|()| two) });
            until(&server, |stats| attempts(stats) > before).await;
            one.unlock(0..10).await.unwrap();
            drop(waiting.await.unwrap().unwrap());
            // The client has answered the callback.
            until(&server, |stats| stats.nfs4_locks_notified == n).await;
        }
    });
}

#[test]
fn a_lock_that_is_given_up_is_not_held() {
    let server = common::server();
    run(async {
        let (a, b) = (
            client(&server, Proto::Tcp, Version::V4_2).await,
            client(&server, Proto::Tcp, Version::V4_2).await,
        );
        let (one, two) = (open(&a, "f").await, open(&b, "f").await);
        one.lock(0..10, EXCLUSIVE).await.unwrap();
        for wait in [0, 1, 3, 30] {
            let waiting = tokio::time::timeout(Duration::from_millis(wait), two.lock(5..20, EXCLUSIVE)).await;
            assert!(waiting.is_err());
        }
        one.unlock(0..10).await.unwrap();
        // Attempts in progress end, and release the locks that they got.
        for _ in 0..1000 {
            if one.try_lock(0..100, EXCLUSIVE).await.unwrap() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the abandoned lock is held");
    });
}

#[test]
fn nfs3_has_no_locks() {
    let server = common::server();
    run(async {
        let file = open(&client(&server, Proto::Tcp, Version::V3).await, "f").await;
        let error = file.lock(0..1, SHARED).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
    });
}

/// A server with a local export that can restart.
struct Restartable {
    dir: tempfile::TempDir,
    config: Config,
    server: Option<Running>,
}

impl Restartable {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["files", "state"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let export = format!("/data=local:{},squash=none", dir.path().join("files").display());
        let mut config = Config {
            exports: vec![export.parse().unwrap()],
            // Not at 127.0.0.1, where another connection may get the free port as its local one.
            listen_rdma: vec!["127.0.0.2:0".parse().unwrap()],
            listen_tcp: vec!["127.0.0.2:0".parse().unwrap()],
            shards: Some(1),
            state_dir: Some(dir.path().join("state")),
            nfs4: Nfs4Settings { lease: 10, ..Nfs4Settings::default() },
            ..Config::default()
        };
        let server = Server::start(config.clone()).unwrap();
        config.listen_rdma = server.rdma_addrs().to_vec();
        config.listen_tcp = server.tcp_addrs().to_vec();
        Self { dir, config, server: Some(server) }
    }

    async fn client(&self, proto: Proto) -> Client {
        client(self.server.as_ref().unwrap(), proto, Version::V4_2).await
    }

    /// Ends the server without its cooperation, and starts it again; `between` receives its state directory.
    fn restart(&mut self, between: impl FnOnce(&Path)) {
        self.server = None;
        between(&self.dir.path().join("state"));
        self.server = Some(Server::start(self.config.clone()).unwrap());
    }
}

#[test]
fn locks_are_claimed_again_after_a_restart() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        let mut server = Restartable::new();
        run(async {
            let (a, b) = (server.client(proto).await, server.client(proto).await);
            let (one, two) = (open(&a, "f").await, open(&b, "f").await);
            one.lock(0..10, EXCLUSIVE).await.unwrap();
            one.lock(20..30, SHARED).await.unwrap();
            two.lock(40..50, EXCLUSIVE).await.unwrap();
            server.restart(|_| {});
            one.by_handle().write(0, b"x").await.unwrap();
            // Each call recovers its client.
            let (held, free) = tokio::join!(two.try_lock(5..6, SHARED), one.try_lock(10..20, EXCLUSIVE));
            assert_eq!((held.unwrap(), free.unwrap()), (false, true));
            assert!(!two.try_lock(25..26, EXCLUSIVE).await.unwrap());
            assert!(two.try_lock(25..26, SHARED).await.unwrap());
            assert!(!one.try_lock(40..41, SHARED).await.unwrap());
            one.unlock(0..20).await.unwrap();
            two.lock(0..20, EXCLUSIVE).await.unwrap();
        });
    }
}

#[test]
fn the_loss_of_locks_is_reported_until_they_are_unlocked() {
    for (proto, truncates) in [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let mut server = Restartable::new();
        run(async {
            let client = server.client(proto).await;
            let (locked, other) = (open(&client, "f").await, open(&client, "g").await);
            locked.lock(0..10, EXCLUSIVE).await.unwrap();
            // The server loses its records of clients: others may have had the lock.
            server.restart(|state| std::fs::remove_file(state.join("nfs4-clients")).unwrap());
            // The first call reports the loss: it must not change the file.
            let changed = match truncates {
                true => locked.set_len(7).await,
                false => locked.by_handle().write(0, b"x").await,
            };
            assert!(matches!(changed, Err(Error::LocksLost)), "{changed:?}");
            assert_eq!(client.metadata("f").await.unwrap().len(), 0);
            let mut buffer = [0; 4];
            assert!(matches!(locked.by_handle().read(0, &mut buffer).await, Err(Error::LocksLost)));
            assert!(matches!(locked.lock(0..5, SHARED).await, Err(Error::LocksLost)));
            other.by_handle().write(0, b"x").await.unwrap();
            locked.unlock(0..10).await.unwrap();
            locked.by_handle().write(0, b"x").await.unwrap();
            locked.lock(0..10, EXCLUSIVE).await.unwrap();
        });
    }
}

/// What a program does after it has lost its lock, before it uses the file again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Commit,
    CommitAndUnlock,
    Unlock,
    Read,
    Drop,
}

#[test]
fn data_of_a_lost_lock_does_not_replace_that_of_the_next_holder() {
    let steps = [After::Commit, After::CommitAndUnlock, After::Unlock, After::Read, After::Drop];
    for (proto, after) in [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| steps.map(|s| (p, s))) {
        let mut server = Restartable::new();
        run(async {
            let (a, b) = (server.client(proto).await, server.client(proto).await);
            let (one, two) = (open(&a, "f").await, open(&b, "f").await);
            one.lock(0..100, EXCLUSIVE).await.unwrap();
            // Protected by the lock, although not in its range: applications choose what a range means.
            one.by_handle().write(4096, b"older").await.unwrap();
            let also = one.by_handle().clone();
            server.restart(|state| std::fs::remove_file(state.join("nfs4-clients")).unwrap());
            two.lock(0..100, EXCLUSIVE).await.unwrap();
            two.by_handle().write(4096, b"newer").await.unwrap();
            two.unlock(0..100).await.unwrap();
            let read = async |file: &millrace_client::File| {
                let mut data = [0; 5];
                file.by_handle().read(4096, &mut data).await.map(|_| data)
            };
            match after {
                After::Commit => assert!(one.sync_all().await.is_err()),
                After::CommitAndUnlock => {
                    assert!(one.sync_all().await.is_err());
                    one.unlock(0..100).await.unwrap();
                }
                After::Unlock => {
                    assert!(one.unlock(0..100).await.is_err(), "the data is lost");
                    assert_eq!(read(&one).await.unwrap(), *b"newer");
                    assert!(one.sync_all().await.is_err(), "reported again");
                }
                After::Read => assert!(read(&one).await.is_err()),
                After::Drop => {}
            }
            if after == After::Drop {
                drop(one);
                // The drop unlocks in the background.
                two.lock(0..100, EXCLUSIVE).await.unwrap();
            } else {
                let _ = one.unlock(0..100).await;
                let _ = one.sync_all().await;
                one.sync_all().await.unwrap();
                assert_eq!(read(&one).await.unwrap(), *b"newer");
            }
            assert!(also.commit().await.is_err(), "each opener reports the loss");
            // A drop unlocks in the background.
            while let Err(Error::LocksLost) = also.commit().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            also.commit().await.unwrap();
            assert_eq!(read(&two).await.unwrap(), *b"newer", "{proto} {after:?}");
        });
    }
}

/// A later commit of the earlier holder must not write its data again, over that of the next holder.
#[test]
fn data_is_stable_before_the_unlock() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        let mut server = Restartable::new();
        run(async {
            let (a, b) = (server.client(proto).await, server.client(proto).await);
            let (one, two) = (open(&a, "f").await, open(&b, "f").await);
            one.lock(0..100, EXCLUSIVE).await.unwrap();
            one.by_handle().write(0, b"older").await.unwrap();
            one.unlock(0..100).await.unwrap();
            assert_eq!(one.by_handle().retained_bytes(), 0);
            two.lock(0..100, EXCLUSIVE).await.unwrap();
            two.by_handle().write(0, b"newer").await.unwrap();
            two.unlock(0..100).await.unwrap();
            server.restart(|_| {});
            one.sync_all().await.unwrap();
            // Data that was written before a lock does not hide what its earlier holders have written.
            one.by_handle().write(10, b"before").await.unwrap();
            one.lock(0..100, EXCLUSIVE).await.unwrap();
            assert_eq!(one.by_handle().retained_bytes(), 0);
            let mut data = [0; 5];
            one.by_handle().read(0, &mut data).await.unwrap();
            assert_eq!(data, *b"newer");
        });
    }
}
