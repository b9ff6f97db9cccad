//! A server and its clients on simulated hosts in virtual time. For tests: failures to start panic.
#![allow(clippy::expect_used)]

use std::{cell::Cell, net::SocketAddr, sync::Arc, time::Duration};

use millrace_client::{Error, Identity, Options, Proto, RetryPolicy, Strategy, Version, handles::Client};
use millrace_rdma_sim::{Profile, Seed, World};
use millrace_runtime::{
    RuntimeRef,
    virtual_time::{TaskGroup, VirtualTime},
};
use millrace_server::{Backend, ByteSize, Config, ExportConfig, Hosted, Limits, Stats};
use millrace_vfs::FileSystemRef;

use crate::{Disk, DiskConfig, seeds::RunStats};

const SERVER: [u8; 4] = [10, 0, 0, 1];
const PORT: u16 = 20049;
/// 1 MiB.
pub const MIB: u64 = 1 << 20;

/// The process of the server.
struct Process {
    tasks: TaskGroup,
    hosted: Hosted,
}

/// A server on a network of simulated hosts.
pub struct Cluster {
    /// The network.
    pub world: World,
    /// Configuration of the server, used at its next start.
    pub config: Config,
    /// File system of the export, which persists across crashes; by default an in-memory one that the first
    /// start creates.
    pub files: Option<FileSystemRef>,
    process: Option<Process>,
}

impl Cluster {
    /// Creates a network of hosts with `profile`; the server is not yet started.
    pub fn new(time: &VirtualTime, profile: Profile) -> Self {
        let memory = Backend::Memory { capacity: ByteSize(64 * MIB) };
        let config = Config {
            exports: vec![ExportConfig::new("/data", memory)],
            limits: Limits { memory: ByteSize(64 * MIB), credits: 16, ..Limits::default() },
            ..Config::default()
        };
        Self { world: World::new(time, profile), config, files: None, process: None }
    }

    /// Creates the network of the run of a seed, with a trace if the flag is set; the server is not yet started. Stores
    /// the world in the cell.
    ///
    /// # Errors
    /// The profile is unknown.
    pub fn of_seed(
        time: &VirtualTime,
        (seed, trace, shown): (Seed, bool, &Cell<Option<World>>),
    ) -> Result<Self, String> {
        let profile = Profile::named("sdr-opensolaris").map_err(|e| e.to_string())?;
        let new = Self::new(time, profile);
        shown.set(Some(new.world.clone()));
        if trace {
            new.world.begin_trace(seed);
        }
        Ok(new)
    }

    /// Exports a disk, which may lose UNSTABLE data. `wcc_before`: as in [`DiskConfig`].
    pub fn use_disk(&mut self, time: &VirtualTime, seed: Seed, wcc_before: bool) -> Arc<Disk> {
        let config = DiskConfig { latency: Duration::from_millis(2), wcc_before, seed: seed.0 };
        let disk = Disk::new(time.runtime(), config);
        self.files = Some(disk.clone());
        disk
    }

    /// Starts the server.
    ///
    /// # Panics
    /// If the server cannot be started.
    pub fn start(&mut self, time: &VirtualTime) {
        let (tasks, files) = (time.group(), &mut self.files);
        let hosted = Hosted::start(self.config.clone(), tasks.runtime(), |export, with| match files {
            Some(fs) => Ok(fs.clone()),
            None => Ok(files.insert(millrace_server::open(export, with)?).clone()),
        });
        let hosted = hosted.expect("cannot create a server");
        let provider = self.world.add_host(SERVER.into());
        hosted.serve(
            provider.listen(tasks.runtime(), SocketAddr::from((SERVER, PORT))).expect("cannot listen"),
        );
        hosted.serve_tcp(self.world.tcp(SERVER.into()).listen((SERVER, PORT).into()).expect("cannot listen"));
        self.process = Some(Process { tasks, hosted });
    }

    /// Crashes the server's host; only the file system persists.
    pub fn crash(&mut self) {
        self.world.crash(SERVER.into());
        if let Some(Process { tasks, hosted }) = self.process.take() {
            tasks.end();
            drop(hosted);
        }
    }

    /// The server's counters since its start.
    pub fn stats(&self) -> Stats {
        self.process.as_ref().map(|p| p.hosted.stats()).unwrap_or_default()
    }
}

/// Runs a story to its end, which it must reach within `limit` of virtual time.
///
/// # Errors
/// The reason of the failure.
pub fn finish(
    time: &VirtualTime,
    limit: Duration,
    story: impl Future<Output = Result<RunStats, String>>,
) -> Result<RunStats, String> {
    let rt = time.runtime();
    let ended =
        time.block_on(millrace_runtime::timeout(&*rt, limit, story)).map_err(|stuck| stuck.to_string())?;
    ended.ok_or_else(|| format!("the run exceeded {limit:?}"))?
}

/// Client options with NFSv3, and with this strategy.
pub fn options(registration: Strategy) -> Options {
    let seconds = Duration::from_secs;
    Options::default()
        .vers(Some(Version::V3))
        // Fixed, because the credentials of this process depend on the machine.
        .credential(Identity { uid: 0, gid: 0, gids: Vec::new(), machine: "simulated".into() })
        .registration(registration)
        .trust_server(true)
        .timeout(seconds(5))
        .retry(RetryPolicy { max_elapsed: seconds(3000), ..RetryPolicy::default() })
        .credits(8)
        .rsize(Some(64 << 10))
        .wsize(Some(64 << 10))
        .arena_limit(64 << 20)
}

/// Mounts the export from the client host `number`.
///
/// # Errors
/// Those of [`Client::connect`].
pub async fn mount(
    world: &World,
    rt: &RuntimeRef,
    number: u8,
    proto: Proto,
    options: Options,
) -> Result<Client, Error> {
    let (host, server) = ([10, 0, 1, number].into(), SocketAddr::from((SERVER, PORT)));
    match proto {
        Proto::Rdma => Client::connect_over(rt.clone(), world.add_host(host), server, "/data", options).await,
        Proto::Tcp => Client::connect_over_tcp(rt.clone(), world.tcp(host), server, "/data", options).await,
    }
}
