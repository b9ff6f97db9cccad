//! Paths in few calls: with NFSv4 one COMPOUND looks up several components, and reads a small file.

use std::time::SystemTime;

use millrace_client::{Client, Error, OpenOptions, Proto, Version, ops::Status};
use millrace_server::{Config, Server};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use crate::common::{self, run};

async fn client(server: &millrace_server::Running, proto: Proto, version: Version) -> Client {
    Client::connect(format!("{}&vers={version}", common::url(server, proto, "data"))).await.unwrap()
}

/// The number of calls of `work`.
async fn calls<T>(client: &Client, work: impl Future<Output = T>) -> (T, u64) {
    let before = client.stats().calls;
    let result = work.await;
    (result, client.stats().calls - before)
}

#[test]
fn a_small_file_is_looked_up_and_read_in_one_call() {
    let server = common::server();
    run(async {
        for proto in [Proto::Tcp, Proto::Rdma] {
            let c = client(&server, proto, Version::V4_2).await;
            c.create_dir_all("a/b/c/d/e/f").await.unwrap();
            for len in [0, 1, 5000, 65_536] {
                let content: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                c.write("a/b/c/file", &content).await.unwrap();
                let (read, calls) = calls(&c, c.read("/a//b/./c/file")).await;
                assert!(read.unwrap() == content, "{len}");
                // The READ of exactly the whole file may not state its end.
                assert!(calls == 1 || (len == 65_536 && calls <= 3), "{len}: {calls} calls");
            }
            let content: Vec<u8> = (0..300_000_u32).map(|i| (i >> 3) as u8).collect();
            c.write("a/large", &content).await.unwrap();
            assert!(c.read("a/large").await.unwrap() == content);
            // Four components in one call.
            let (found, calls) = calls(&c, c.metadata("a/b/c/d/e/f")).await;
            assert!(found.unwrap().is_dir() && calls == 2, "{calls} calls");
        }
    });
}

/// A pseudo-random number below `n`.
fn next(random: &mut SplitMix64, n: usize) -> usize {
    (random.next_u64() % n as u64) as usize
}

/// Random paths with links, `..`, files as directories and missing names have the same outcome with each version.
#[test]
fn both_versions_resolve_paths_alike() {
    let server = common::server();
    let seed = 0x5eed_0001_u64;
    println!("seed {seed:#x}");
    run(async {
        let (v3, v4) = (
            client(&server, Proto::Tcp, Version::V3).await,
            client(&server, Proto::Tcp, Version::V4_2).await,
        );
        v3.create_dir_all("d/e/d/e").await.unwrap();
        for (path, content) in [("f", "one"), ("d/f", "two"), ("d/e/f", "three"), ("d/e/d/e/f", "four")] {
            v3.write(path, content).await.unwrap();
        }
        let links = [
            ("l", "d"),
            ("d/l", "e"),
            ("d/e/l", "../e/d"),
            ("d/e/d/l", "/data/d"),
            ("d/e/d/e/l", "l"),
            ("m", "d/e/f"),
            ("d/m", "/elsewhere"),
            ("d/e/m", "missing"),
        ];
        for (path, target) in links {
            v3.symlink(target, path).await.unwrap();
        }
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut found = 0;
        for _ in 0..600 {
            let names: Vec<_> = (0..1 + next(&mut random, 7))
                .map(|_| ["d", "e", "f", "l", "m", "..", ".", "x"][next(&mut random, 8)])
                .collect();
            let path = names.join("/");
            let outcome = |r: Result<_, Error>| r.map_err(|e| e.kind());
            let (a, b) = (v3.by_handle().resolve(&path).await, v4.by_handle().resolve(&path).await);
            found += u32::from(a.is_ok());
            assert_eq!(
                outcome(a.map(|(h, a)| (h, a.fileid))),
                outcome(b.map(|(h, a)| (h, a.fileid))),
                "{path}"
            );
            let (a, b) = (v3.by_handle().resolve_link(&path).await, v4.by_handle().resolve_link(&path).await);
            assert_eq!(
                outcome(a.map(|(h, a)| (h, a.fileid))),
                outcome(b.map(|(h, a)| (h, a.fileid))),
                "{path}"
            );
            let read = |r: Result<Vec<u8>, Error>| r.map_err(|e| e.kind());
            assert_eq!(read(v3.read(&path).await), read(v4.read(&path).await), "{path}");
        }
        assert!(found > 50, "only {found} of the paths exist");
    });
}

/// A server that stores verifiers in the times of files needs a second call, which sets them.
#[test]
fn a_new_file_is_created_exclusively_in_one_call_if_that_suffices() {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/local=local:{},squash=none", dir.path().display());
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap(), local.parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    run(async {
        for (export, expected) in [("data", [2, 1, 1]), ("local", [2, 2, 2])] {
            for (version, expected) in [Version::V3, Version::V4_1, Version::V4_2].into_iter().zip(expected) {
                let url = format!("{}&vers={version}", common::url(&server, Proto::Tcp, export));
                let c = Client::connect(url).await.unwrap();
                let (nfs, name) = (c.by_handle(), format!("new-{version}"));
                let (made, calls) = calls(&c, nfs.create_new(nfs.root(), &name, 0o604)).await;
                let made = made.unwrap();
                assert_eq!(calls, expected, "{export} {version}");
                let now = nfs.getattr(made.handle).await.unwrap();
                assert_eq!(made.attributes, now, "{export} {version}");
                assert_eq!(now.mode, 0o604, "{export} {version}");
                for time in [now.atime, now.mtime] {
                    // The file system's clock may be a tick behind.
                    let age = time.seconds.unsigned_abs().saturating_sub(started.saturating_sub(1));
                    assert!(
                        time.seconds.unsigned_abs() + 1 >= started && age < 600,
                        "{export} {version}: {time:?}"
                    );
                }
                let again = nfs.create_new(nfs.root(), &name, 0o600).await.unwrap_err();
                assert_eq!(again.status(), Some(Status::Exist), "{export} {version}");
                let options = OpenOptions::new().write(true).create_new(true).mode(0o444).clone();
                let opened = options.open(&c, "read-only").await.unwrap();
                assert_eq!(opened.metadata().await.unwrap().mode(), 0o444);
                c.remove_file("read-only").await.unwrap();
            }
        }
    });
}
