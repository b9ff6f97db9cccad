//! The server, its network, and the properties that are checked after an attack.

use std::{cell::RefCell, collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join;
use millrace_client::{Options, Proto, RetryPolicy, Version, handles::Client};
use millrace_rdma::Provider;
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, StreamProvider, virtual_time::VirtualTime};
use millrace_server::{Backend, ByteSize, Config, ExportConfig, Hosted, Limits, Resources};
use millrace_vfs::{FileSystem, Identity};

use super::{honest, iwarp_over::IwarpOver};
use crate::targets::{wait, xdr::view};

const SERVER: [u8; 4] = [10, 0, 0, 1];
pub(super) const TCP: u16 = 2049;
pub(super) const RDMA: u16 = 20049;
/// A file of `/data`, of 6000 bytes.
pub(super) const FULL: &[u8] = b"full";
const MIB: u64 = 1 << 20;
const STALL: u64 = 5;
const IDLE: u64 = 30;
/// An attack and the concurrent correct client end within this time.
const END: Duration = Duration::from_secs(24 * 3600);

/// The server and transport of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// Whether the export of the attacked client is read-only. The server's memory must then be the same as
    /// without the attack.
    pub(super) read_only: bool,
    /// The transport of the correct client.
    pub(super) proto: Proto,
}

impl Kind {
    pub(super) fn new(flags: u8, proto: Proto) -> Self {
        Self { read_only: flags & 1 == 0, proto }
    }
}

/// A server with the exports `/data` and `/honest`, on a simulated network.
pub(super) struct Scene {
    pub(super) time: VirtualTime,
    pub(super) rt: RuntimeRef,
    pub(super) net: Net,
    hosted: Hosted,
    kind: Kind,
}

/// The network.
#[derive(Clone)]
pub(super) struct Net {
    world: World,
}

pub(super) fn server(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

impl Net {
    /// The streams of client host `number`.
    pub(super) fn host(&self, number: u8) -> Arc<dyn StreamProvider> {
        self.world.tcp([10, 0, 1, number].into())
    }

    /// iWARP of that host.
    pub(super) fn iwarp(&self, number: u8) -> Arc<dyn Provider> {
        Arc::new(IwarpOver(self.host(number)))
    }

    /// Mounts `path` of the server from client host `number`.
    pub(super) async fn mount(
        &self,
        rt: &RuntimeRef,
        number: u8,
        proto: Proto,
        path: &str,
    ) -> Result<Client, millrace_client::Error> {
        self.mount_at(rt, number, proto, server(if proto == Proto::Tcp { TCP } else { RDMA }), path).await
    }

    pub(super) async fn mount_at(
        &self,
        rt: &RuntimeRef,
        number: u8,
        proto: Proto,
        to: SocketAddr,
        path: &str,
    ) -> Result<Client, millrace_client::Error> {
        let seconds = Duration::from_secs;
        let options = Options::default()
            .vers(Some(Version::V3))
            .credential(millrace_client::Identity {
                uid: 0,
                gid: 0,
                gids: Vec::new(),
                machine: "simulated".into(),
            })
            .timeout(seconds(5))
            .connect_timeout(seconds(5))
            .retry(RetryPolicy { max_elapsed: seconds(60), ..RetryPolicy::default() })
            .credits(8)
            .rsize(Some(4096))
            .wsize(Some(4096))
            .arena_limit(16 << 20);
        match proto {
            Proto::Rdma => Client::connect_over(rt.clone(), self.iwarp(number), to, path, options).await,
            Proto::Tcp => Client::connect_over_tcp(rt.clone(), self.host(number), to, path, options).await,
        }
    }
}

impl Scene {
    pub(super) fn new(kind: Kind) -> Self {
        let time = VirtualTime::new(7);
        let world = World::new(&time, Profile::named("gige-2003").expect("a profile"));
        let memory = || Backend::Memory { capacity: ByteSize(8 * MIB) };
        let data = ExportConfig { read_only: kind.read_only, ..ExportConfig::new("/data", memory()) };
        let config = Config {
            exports: vec![data, ExportConfig::new("/honest", memory())],
            limits: Limits {
                memory: ByteSize(64 * MIB),
                credits: 8,
                stall_timeout: STALL,
                idle_timeout: IDLE,
                ..Limits::default()
            },
            ..Config::default()
        };
        let rt = time.runtime();
        let open = |export: &ExportConfig, with: &Resources<'_>| {
            let fs = millrace_server::open(export, with)?;
            if export.name == "/data" {
                fill(&*fs);
            }
            Ok(fs)
        };
        let hosted = Hosted::start(config, rt.clone(), open).expect("a server");
        let streams = world.tcp(SERVER.into());
        hosted.serve_tcp(streams.listen(server(TCP)).expect("an address"));
        hosted.serve(IwarpOver(streams).listen(rt.clone(), server(RDMA)).expect("an address"));
        Self { net: Net { world }, rt, hosted, time, kind }
    }

    /// Executes `attack` concurrently with a correct client. Both end in time, the client gets correct
    /// answers, and the server closes the remaining connections and releases their memory.
    pub(super) fn run(&self, attack: impl Future<Output = ()>) {
        let memory = self.memory_after(attack);
        if self.kind.read_only {
            assert_eq!(memory, memory_without_attack(self.kind), "bytes of the server's memory in use");
        }
    }

    fn memory_after(&self, attack: impl Future<Output = ()>) -> u64 {
        let honest = honest::client(&self.net, &self.rt, self.kind.proto);
        let done = self.time.block_on(async {
            let ended = millrace_runtime::timeout(&*self.rt, END, join(attack, honest)).await;
            ended.expect("the attack and the client end");
            self.rt.sleep(Duration::from_secs(2 * (STALL + IDLE) + 60)).await;
        });
        if let Err(stuck) = done {
            panic!("{stuck}");
        }
        let stats = self.hosted.stats();
        assert_eq!((stats.tcp.open, stats.rdma.open), (0, 0), "open connections");
        stats.memory.in_use as u64 - stats.replies_kept_bytes - stats.nfs4_replies_kept_bytes
    }
}

/// Makes a file with data.
fn fill(fs: &dyn FileSystem) {
    let attributes = millrace_vfs::SetAttr { mode: Some(0o666), ..millrace_vfs::SetAttr::default() };
    let (who, how) = (Identity::root(), millrace_vfs::CreateHow::Guarded(attributes));
    let made = wait(fs.create(&who, &fs.root(), FULL, &how)).expect("a file is created");
    let data = view(&[b'f'; 6000]).into();
    wait(fs.write(&who, &made.handle, 0, data, millrace_vfs::Stability::FileSync))
        .expect("a file is written");
}

/// Bytes in use after the correct client alone.
fn memory_without_attack(kind: Kind) -> u64 {
    thread_local! {
        static KNOWN: RefCell<HashMap<Kind, u64>> = RefCell::default();
    }
    let known = KNOWN.with_borrow(|known| known.get(&kind).copied());
    known.unwrap_or_else(|| {
        let memory = Scene::new(kind).memory_after(async {});
        KNOWN.with_borrow_mut(|known| known.insert(kind, memory));
        memory
    })
}
