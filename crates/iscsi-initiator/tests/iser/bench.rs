//! A target, and connections to it.

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Deref,
    sync::Arc,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::{
    login::InitiatorConfig as LoginConfig,
    negotiation::Settings,
    pdu::{Isid, TaskAttribute},
    session::{Command, Direction, InitiatorEvent, Outcome},
};
use millrace_iscsi_initiator::iser::{Error, Event, InitiatorConnection, LoggedIn, connect_params, log_in};
use millrace_iscsi_target::{ConnectionLimits, iser::IserTarget};
use millrace_rdma::{
    ConnectParams, DomainRef, Memory, Provider, QueuePair,
    registration::{Registration, Settings as RegistrationSettings, Strategy},
};
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::{memory_stream, virtual_time::VirtualTime};

pub(crate) use crate::support::*;

/// Address of both ends on the simulated fabric.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A target on one fabric.
pub(crate) struct Bench {
    pub(crate) fixture: Fixture,
    /// The simulated fabric; `None`: iWARP in software.
    sim: Option<Arc<dyn Provider>>,
    world: World,
    /// Memory of initiators.
    pub(crate) arena: Arena,
}

impl Deref for Bench {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

/// Runs `test` on both fabrics.
pub(crate) fn run(test: impl AsyncFn(Bench)) {
    for simulated in [true, false] {
        let time = VirtualTime::new(7);
        let world = World::new(&time, Profile::named("gige-2003").unwrap());
        let sim = simulated.then(|| world.add_host(HOST));
        let done = time.block_on(async {
            let fixture = Fixture::new(&time, ConnectionLimits::default(), |fs| fs).await;
            let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
            test(Bench { fixture, sim, world, arena }).await;
        });
        done.unwrap_or_else(|e| panic!("simulated: {simulated}: {e:?}"));
    }
}

impl Bench {
    /// Number of windows that were bound on the simulated fabric; `None` with iWARP in software.
    pub(crate) fn binds(&self) -> Option<u64> {
        self.sim.is_some().then(|| self.world.host_use(HOST).binds)
    }

    /// Both ends of a connection.
    pub(crate) async fn queue_pairs(&self) -> (Box<dyn QueuePair>, Box<dyn QueuePair>) {
        let ours = connect_params(ConnectParams::default(), true);
        let theirs = IserTarget::connect_params(ConnectParams::default());
        let rt = || Arc::clone(&self.rt);
        if let Some(sim) = &self.sim {
            let mut listener = sim.listen(rt(), SocketAddr::from((HOST, 0))).unwrap();
            let connect = sim.connect(rt(), self.arena.clone(), listener.local_addr(), ours);
            let accept = async {
                let incoming = listener.accept().await.unwrap();
                incoming.accept(rt(), self.fixture.arena.clone(), theirs).await
            };
            return futures::future::try_join(connect, accept).await.unwrap();
        }
        let (c, s) = memory_stream(64 << 10, usize::MAX);
        let connect = millrace_rdma_iwarp::connect_over(rt(), self.arena.clone(), Box::new(c), ours);
        let accept = millrace_rdma_iwarp::accept_over(rt(), self.fixture.arena.clone(), Box::new(s), theirs);
        futures::future::try_join(connect, accept).await.unwrap()
    }

    pub(crate) async fn connect(&self, isid: u8, settings: Settings) -> Client {
        let (ours, theirs) = self.queue_pairs().await;
        let Fixture { table, rt, arena, limits, stats, .. } = &self.fixture;
        let server = IserTarget {
            table: Arc::clone(table),
            rt: Arc::clone(rt),
            arena: arena.clone(),
            limits: limits.clone(),
            stats: Arc::clone(stats),
            registration: Arc::new(Registration::new(RegistrationSettings::new(Strategy::Dynamic))),
        };
        self.spawn(server.serve(theirs, None, self.account_of(Ipv4Addr::LOCALHOST.into()), self.stopped()));
        let domain = ours.domain();
        let config = login_config(isid, settings);
        let Ok(LoggedIn::Established(connection)) = log_in(ours, self.arena.clone(), config).await else {
            panic!("the login failed")
        };
        let mut client = Client { connection, domain, arena: self.arena.clone() };
        // POWER ON, and GOOD.
        client.execute(&[0; 6], Direction::None, None).await;
        client.execute(&[0; 6], Direction::None, None).await;
        client
    }
}

pub(crate) fn login_config(isid: u8, settings: Settings) -> LoginConfig {
    LoginConfig {
        initiator: name("iqn.2026-01.example:host"),
        target: Some(name(TARGET)),
        isid: Isid([0x80, 0, 0, 0, 0, isid]),
        cid: 1,
        cmd_sn: 100,
        settings,
        chap: None,
        random: [isid; 33],
        redirects: 0,
    }
}

/// A session, and the domain of its connection.
pub(crate) struct Client {
    pub(crate) connection: Box<InitiatorConnection>,
    pub(crate) domain: DomainRef,
    arena: Arena,
}

pub(crate) fn command(cdb: &[u8], direction: Direction, expected: usize) -> Command {
    let mut bytes = [0; 16];
    bytes[..cdb.len()].copy_from_slice(cdb);
    let (attribute, expected) = (TaskAttribute::SIMPLE, expected as u32);
    Command { lun: 0, attribute, cdb: bytes, direction, expected }
}

/// The bytes of memory.
pub(crate) fn bytes(memory: Option<Memory>) -> Vec<u8> {
    match memory {
        Some(Memory::Owned(buffer)) => buffer.to_vec(),
        Some(Memory::Shared(views)) => views.to_vec(),
        None => Vec::new(),
    }
}

impl Client {
    pub(crate) fn memory(&self, data: &[u8]) -> Memory {
        let mut buffer = self.arena.alloc(data.len()).unwrap();
        buffer.copy_from_slice(data);
        Memory::Owned(buffer)
    }

    pub(crate) async fn next(&mut self) -> Result<Event, Error> {
        poll_fn(|cx| self.connection.poll_event(cx)).await
    }

    pub(crate) fn submit(&mut self, cdb: &[u8], direction: Direction, memory: Option<Memory>) -> u32 {
        let length = memory.as_ref().map_or(0, Memory::len);
        self.connection.submit(command(cdb, direction, length), memory).unwrap()
    }

    /// The next command that ends.
    pub(crate) async fn completed(&mut self) -> (u32, Outcome, Option<Memory>) {
        loop {
            if let Event::Completed { itt, outcome, memory } = self.next().await.unwrap() {
                return (itt, outcome, memory);
            }
        }
    }

    pub(crate) async fn execute(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        memory: Option<Memory>,
    ) -> (Outcome, Option<Memory>) {
        let submitted = self.submit(cdb, direction, memory);
        let (itt, outcome, memory) = self.completed().await;
        assert_eq!(itt, submitted);
        assert_eq!(self.domain.exposed(), (0, 0));
        (outcome, memory)
    }

    pub(crate) async fn write(&mut self, lba: u32, data: &[u8]) {
        let (memory, blocks) = (self.memory(data), (data.len() / 512) as u16);
        let (outcome, memory) = self.execute(&rw10(0x2a, lba, blocks), Direction::Write, Some(memory)).await;
        assert!(matches!(outcome, Outcome::Completed { status: 0, .. }), "{outcome:?}");
        assert!(bytes(memory) == data);
    }

    pub(crate) async fn read(&mut self, lba: u32, blocks: u16) -> Vec<u8> {
        let memory = self.memory(&vec![0xee; usize::from(blocks) * 512]);
        let (outcome, memory) = self.execute(&rw10(0x28, lba, blocks), Direction::Read, Some(memory)).await;
        assert!(matches!(outcome, Outcome::Completed { status: 0, .. }), "{outcome:?}");
        bytes(memory)
    }

    pub(crate) async fn log_out(mut self) {
        self.connection.logout().unwrap();
        loop {
            if let Event::Session(InitiatorEvent::LoggedOut { .. }) = self.next().await.unwrap() {
                break;
            }
        }
        assert!(matches!(self.next().await, Err(Error::Connection(_))));
        assert!(self.connection.into_unfinished().is_empty());
        assert_eq!(self.domain.exposed(), (0, 0));
    }
}
