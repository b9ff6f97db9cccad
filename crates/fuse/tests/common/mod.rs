//! A server and mounts of it for tests.
//!
//! `Export` is a server with one export, `Mounted` a mount that is removed when it is dropped, also if the
//! test fails. With `MILLRACE_TEST_IO_URING` in the environment, all mounts have the option `io_uring`. `proxy` forwards calls to the server, and delays or drops those that a test selects.

#![allow(dead_code, unreachable_pub)] // Each test file uses only a part.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

#[path = "../../../fuse-session/tests/common/mounts.rs"]
mod mounts;
pub mod proxy;

use std::{fs, path::PathBuf, time::Duration};

use millrace_client::{Options, Url};
use millrace_fuse::{Mount, MountOptions};
use millrace_server::{Config, Running, Server};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

pub use mounts::{fuse_is_available, is_mounted};

/// Upper limit for waiting; only a hang takes longer.
pub const HANG: Duration = Duration::from_secs(60);

/// Whether the kernel offers FUSE over io_uring; prints the reason if it does not. Tests do not change settings of the
/// system.
pub fn io_uring_is_available() -> bool {
    const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
    let is_on = fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y");
    if !is_on {
        eprintln!("SKIPPED, NOTHING WAS TESTED: {PARAMETER} is not Y (root can set it; Linux 6.14)");
    }
    is_on && fuse_is_available()
}

/// The kind of export of a test, and the transport.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub local: bool,
    pub proto: &'static str,
}

pub const CASES: [Case; 4] = [
    Case { local: false, proto: "rdma" },
    Case { local: false, proto: "tcp" },
    Case { local: true, proto: "rdma" },
    Case { local: true, proto: "tcp" },
];

/// The cases with the options for the versions of NFS: each with NFSv3, and every kind of export and transport with
/// NFSv4.2, the transports with NFSv4.1.
pub fn cases_of_versions() -> Vec<(Case, &'static str)> {
    let v4 = [(CASES[0], "vers=4.2"), (CASES[3], "vers=4.2"), (CASES[2], "vers=4.1"), (CASES[1], "vers=4.1")];
    CASES.map(|case| (case, "vers=3")).into_iter().chain(v4).collect()
}

/// Runs `test` for all `cases` at the same time, as tests wait most of the time. Returns its results in their order.
pub fn for_each<C: Send, T: Send>(
    cases: impl IntoIterator<Item = C>,
    test: impl Fn(C) -> T + Sync,
) -> Vec<T> {
    let test = &test;
    std::thread::scope(|scope| {
        let running: Vec<_> = cases.into_iter().map(|case| scope.spawn(move || test(case))).collect();
        running.into_iter().map(|case| case.join().unwrap()).collect()
    })
}

/// A server with one export, and its directory if it is a local one.
pub struct Export {
    pub server: Running,
    pub dir: tempfile::TempDir,
}

impl Export {
    pub fn start(local: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = if local { format!("local:{}", dir.path().display()) } else { "memory:512MiB".into() };
        Self { server: Server::start(Self::config(&backend)).unwrap(), dir }
    }

    pub fn config(backend: &str) -> Config {
        Config {
            // The tests run as root and check root's privileges.
            exports: vec![format!("/data={backend},squash=none").parse().unwrap()],
            listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
            listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
            provider: millrace_rdma_providers::ProviderChoice::Iwarp,
            shards: Some(1),
            ..Config::default()
        }
    }

    pub fn url(&self, proto: &str) -> Url {
        let addr = if proto == "tcp" { self.server.tcp_addr() } else { self.server.rdma_addr() };
        format!("nfs://{}/data?proto={proto}&provider=iwarp", addr.unwrap()).parse().unwrap()
    }

    /// Mounts through a proxy that applies `rule` to its calls, with NFSv3 unless the options have `vers`.
    pub fn mount_through_proxy(&self, options: &str, rule: impl proxy::Rule) -> Mounted {
        let addr = proxy::start(self.server.tcp_addr().unwrap(), rule);
        Mounted::new(&format!("nfs://{addr}/data?proto=tcp&vers=3").parse().unwrap(), options)
    }

    pub fn mount(&self, proto: &str, options: &str) -> Mounted {
        Mounted::new(&self.url(proto), options)
    }
}

/// A mount, unmounted on drop. No reply to a WRITE may wait for pages until the time limit, unless a test permits it.
pub struct Mounted {
    mount: Option<Mount>,
    page_drop_timeouts: Option<u64>,
    pub at: PathBuf,
    _dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(url: &Url, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut o = MountOptions::default();
        o.read(options, false).unwrap();
        o.io_uring |= std::env::var_os("MILLRACE_TEST_IO_URING").is_some_and(|_| io_uring_is_available());
        let mount = Mount::new(url, dir.path(), &o, Options::default()).unwrap();
        Self { at: mount.path().to_owned(), mount: Some(mount), page_drop_timeouts: Some(0), _dir: dir }
    }

    /// Whether requests arrive over io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.mount.as_ref().unwrap().uses_io_uring()
    }

    /// Replies to WRITEs may wait until the time limit: programs write a page while others drop and read it.
    pub fn permit_page_drop_timeouts(&mut self) {
        self.page_drop_timeouts = None;
    }

    fn count_page_drop_timeouts(&mut self) {
        if let (Some(timeouts), Some(mount)) = (&mut self.page_drop_timeouts, &self.mount) {
            *timeouts = mount.page_drop_timeouts();
        }
    }

    /// Unmounts like the command; no data may be lost.
    pub fn unmount(self) {
        self.try_unmount(HANG).unwrap();
    }

    /// Unmounts like the command; the mount has ended afterwards in any case.
    pub fn try_unmount(mut self, write_timeout: Duration) -> Result<(), millrace_fuse::MountError> {
        self.count_page_drop_timeouts();
        let done = self.mount.take().unwrap().unmount(write_timeout);
        assert!(!is_mounted(&self.at));
        done
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.count_page_drop_timeouts();
        let timeouts = self.page_drop_timeouts.unwrap_or(0);
        drop(self.mount.take());
        if is_mounted(&self.at) {
            let _ = millrace_fuse::detach(&self.at);
        }
        let is_failed = std::thread::panicking();
        assert!(timeouts == 0 || is_failed, "{timeouts} WRITEs waited for pages until the time limit");
    }
}

/// Pseudo-random bytes, so that misplaced data is detected.
pub fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
