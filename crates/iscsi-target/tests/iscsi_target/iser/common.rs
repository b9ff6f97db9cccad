//! A target on RDMA connections, and an initiator.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    ops::Deref,
    sync::{Arc, RwLock},
    task::Poll,
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_iscsi::{
    iser::{Advertised, Message, PREFIX_BYTES, PrivateData, RemoteBuffer, max_message, prefix},
    login::{Established, InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, LoginError},
    name::IscsiName,
    negotiation::{IserSettings, Settings},
    pdu::{Bhs, Isid, Response, TaskAttribute, TaskFunction, TaskResult},
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorPdu, InitiatorSession, Outcome,
        Payload, Placement,
    },
};
use millrace_iscsi_target::{ConnectionLimits, iser::IserTarget};
use millrace_rdma::{
    Access, Completion, ConnectParams, DomainRef, ExposedRegion, ExposureMeter, Memory, MemoryRegion,
    Provider, QueuePair, SendRequest,
    registration::{Registration, Settings as RegistrationSettings, Strategy},
};
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::{RuntimeRef, memory_stream, timeout, virtual_time::VirtualTime};
use millrace_vfs::FileSystemRef;

use super::observed::Observed;

pub(crate) use crate::support::*;

/// Receives of the initiator.
const RECEIVES: usize = 160;
/// Maximum data segment that the initiator receives, as of Linux's initiator in the login phase.
const MAX_DATA: u32 = 8192;

/// Held while a test runs: copied bytes are counted for the whole process.
static COUNTED: RwLock<()> = RwLock::new(());

/// A provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    Sim,
    /// iWARP over a stream that returns at most `segment` bytes at once, with FPDUs of at most `frame` bytes.
    Iwarp {
        segment: usize,
        frame: Option<usize>,
    },
}

/// iWARP with whole segments, and with those of an Ethernet.
const WHOLE: Fabric = Fabric::Iwarp { segment: usize::MAX, frame: None };
const PARTS: Fabric = Fabric::Iwarp { segment: 1461, frame: Some(1400) };
/// The simulated fabric requires that local memory is registered.
const FABRICS: [(Fabric, Strategy); 5] = [
    (Fabric::Sim, Strategy::Dynamic),
    (Fabric::Sim, Strategy::Fast),
    (Fabric::Sim, Strategy::Cache),
    (WHOLE, Strategy::Dynamic),
    (PARTS, Strategy::Cache),
];

/// The server's side.
pub(crate) struct Bench {
    pub(crate) fixture: Fixture,
    pub(crate) fabric: Fabric,
    pub(crate) registration: Arc<Registration>,
    /// The memory that the target has exposed.
    meter: Arc<ExposureMeter>,
    sim: Arc<dyn Provider>,
    ip: IpAddr,
}

impl Deref for Bench {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

/// Runs `test` on all fabrics and strategies of registration.
pub(crate) fn run(limits: &ConnectionLimits, test: impl AsyncFn(Bench)) {
    run_on(limits, |fs| fs, test);
}

/// Runs `test` with a disk on the file system that `wrap` returns.
pub(crate) fn run_on(
    limits: &ConnectionLimits,
    wrap: impl Fn(FileSystemRef) -> FileSystemRef,
    test: impl AsyncFn(Bench),
) {
    let _shared = COUNTED.read();
    on_fabrics(limits, wrap, test);
}

/// Runs `test` while no other test runs, so that the bytes that the process copies are its own.
pub(crate) fn run_alone(limits: &ConnectionLimits, test: impl AsyncFn(Bench)) {
    let _exclusive = COUNTED.write();
    on_fabrics(limits, |fs| fs, test);
}

fn on_fabrics(
    limits: &ConnectionLimits,
    wrap: impl Fn(FileSystemRef) -> FileSystemRef,
    test: impl AsyncFn(Bench),
) {
    for (fabric, strategy) in FABRICS {
        let time = VirtualTime::new(7);
        let world = World::new(&time, Profile::named("gige-2003").unwrap());
        let ip = IpAddr::from([10, 0, 0, 1]);
        let sim = world.add_host(ip);
        let done = time.block_on(async {
            let fixture = Fixture::new(&time, limits.clone(), &wrap).await;
            let registration = Arc::new(Registration::new(RegistrationSettings::new(strategy)));
            test(Bench { fixture, fabric, registration, meter: Arc::default(), sim, ip }).await;
        });
        done.unwrap_or_else(|e| panic!("{fabric:?}, {strategy}: {e:?}"));
    }
}

impl Bench {
    pub(crate) fn server(&self) -> IserTarget {
        IserTarget {
            table: Arc::clone(&self.table),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            limits: self.limits.clone(),
            stats: Arc::clone(&self.stats),
            registration: Arc::clone(&self.registration),
        }
    }

    /// Connects; the server's task runs until the end of the connection.
    pub(crate) async fn connect(&self) -> Client {
        self.connect_from(HOST).await
    }

    /// Connects from the host `addr`.
    pub(crate) async fn connect_from(&self, addr: IpAddr) -> Client {
        let private_data = PrivateData { remote_invalidate: true }.encode().to_vec();
        self.connect_as(addr, ConnectParams { private_data, ..ConnectParams::default() }).await
    }

    /// Connects with these parameters of the initiator.
    pub(crate) async fn connect_with(&self, ours: ConnectParams) -> Client {
        self.connect_as(HOST, ours).await
    }

    async fn connect_as(&self, host: IpAddr, mut ours: ConnectParams) -> Client {
        let mut theirs = IserTarget::connect_params(ConnectParams::default());
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let rt = || Arc::clone(&self.rt);
        let (client, server) = match self.fabric {
            Fabric::Sim => {
                let mut listener = self.sim.listen(rt(), SocketAddr::new(self.ip, 0)).unwrap();
                let connect = self.sim.connect(rt(), arena.clone(), listener.local_addr(), ours);
                let accept = async {
                    let incoming = listener.accept().await.unwrap();
                    incoming.accept(rt(), self.arena.clone(), theirs).await
                };
                futures::future::try_join(connect, accept).await.unwrap()
            }
            Fabric::Iwarp { segment, frame } => {
                (ours.max_frame, theirs.max_frame) = (frame, frame);
                let (c, s) = memory_stream(64 << 10, segment);
                let connect = millrace_rdma_iwarp::connect_over(rt(), arena.clone(), Box::new(c), ours);
                let accept = millrace_rdma_iwarp::accept_over(rt(), self.arena.clone(), Box::new(s), theirs);
                futures::future::try_join(connect, accept).await.unwrap()
            }
        };
        let qp = Box::new(Observed { qp: server, meter: Arc::clone(&self.meter), rt: rt() });
        self.spawn(self.server().serve(qp, None, self.account_of(host), self.stopped()));
        Client::new(client, arena, rt())
    }

    /// Waits for the end of all connections, and checks that they have no memory, and that the target has never
    /// exposed any.
    pub(crate) async fn expect_idle(&self) {
        self.fixture.expect_idle().await;
        let exposed = self.meter.snapshot();
        assert_eq!((exposed.peak_regions, exposed.peak_bytes), (0, 0));
        let registered = self.registration.stats();
        if self.registration.settings().strategy == Strategy::Dynamic {
            assert_eq!(registered.registrations, registered.deregistrations);
        }
    }

    /// Another connection works.
    pub(crate) async fn expect_service(&self) {
        let mut other = self.connect().await;
        other.log_in(9).await.unwrap();
        other.clear_attention().await;
        let data = pattern(65536, 11);
        other.write(8, &data).await;
        assert!(other.read(8, 128).await == data);
        other.log_out().await;
    }
}

/// The target has closed the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended;

/// An initiator.
pub(crate) struct Client {
    pub(crate) qp: Box<dyn QueuePair>,
    pub(crate) arena: Arena,
    domain: DomainRef,
    inbox: VecDeque<(Buffer, Option<u32>)>,
    pub(crate) session: Option<InitiatorSession>,
    pub(crate) settings: Settings,
    pub(crate) established: Option<Established>,
    /// Exposed memory of commands by tag.
    pub(crate) regions: HashMap<u32, ExposedRegion>,
    /// Memory of commands that have ended.
    pub(crate) data: HashMap<u32, Vec<u8>>,
    pub(crate) events: Vec<InitiatorEvent>,
    /// Tags that the target has invalidated.
    pub(crate) invalidated: usize,
    rt: RuntimeRef,
}

impl Client {
    fn new(mut qp: Box<dyn QueuePair>, arena: Arena, rt: RuntimeRef) -> Self {
        for _ in 0..RECEIVES {
            qp.post_receive(arena.alloc(max_message(MAX_DATA)).unwrap()).unwrap();
        }
        let iser = Some(IserSettings { max_send_data: MAX_DATA, max_unexpected_pdus: 16 });
        let settings =
            Settings { initial_r2t: false, max_receive_data: MAX_DATA, iser, ..Settings::default() };
        Self {
            domain: qp.domain(),
            qp,
            arena,
            inbox: VecDeque::new(),
            session: None,
            settings,
            established: None,
            regions: HashMap::new(),
            data: HashMap::new(),
            events: Vec::new(),
            invalidated: 0,
            rt,
        }
    }

    /// Posts a Send of raw bytes; errors are those of a closed connection.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let data = self.arena.copy_from(bytes).unwrap().into();
        let _closed =
            self.qp.post_send(SendRequest { data, invalidate: None, solicited: true, signaled: None });
    }

    pub(crate) fn send(&mut self, advertised: Advertised, bhs: &Bhs, data: &[u8]) {
        self.send_bytes(&message(advertised, bhs, data));
    }

    /// Takes completions until there is a message.
    pub(crate) async fn receive_message(&mut self) -> Result<(Buffer, Option<u32>), Ended> {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                let length = max_message(MAX_DATA);
                self.qp.post_receive(self.arena.alloc(length).unwrap()).ok();
                return Ok(message);
            }
            let mut out = Vec::new();
            poll_fn(|cx| match self.qp.poll(cx, &mut out) {
                Poll::Ready(Ok(())) if out.is_empty() => Poll::Pending,
                other => other,
            })
            .await
            .map_err(|_| Ended)?;
            for completion in out {
                if let Completion::Received { buffer, invalidated } = completion {
                    self.inbox.push_back((buffer, invalidated.map(|tag| tag.0)));
                }
            }
        }
    }

    pub(crate) async fn receive(&mut self) -> Result<(Bhs, Vec<u8>, Option<u32>), Ended> {
        let (message, invalidated) = self.receive_message().await?;
        let Ok(Message::Pdu(pdu)) = Message::decode(&message) else { panic!("{:?}", &message[..]) };
        assert_eq!(pdu.advertised, Advertised::default());
        Ok((*pdu.bhs, pdu.data.to_vec(), invalidated))
    }

    /// Waits until the target has closed the connection; other PDUs are returned.
    pub(crate) async fn expect_end(mut self) -> Vec<Response> {
        let mut responses = Vec::new();
        while let Ok((bhs, _, _)) = self.receive().await {
            responses.push(Response::decode(&bhs).unwrap());
        }
        responses
    }

    /// Logs in to the target.
    pub(crate) async fn log_in(&mut self, isid: u8) -> Result<(), LoginError> {
        self.log_in_to(isid, Some(name(TARGET))).await
    }

    pub(crate) async fn log_in_to(&mut self, isid: u8, target: Option<IscsiName>) -> Result<(), LoginError> {
        let (mut login, mut pdu) = InitiatorLogin::new(LoginConfig {
            initiator: name("iqn.2026-01.example:host"),
            target,
            isid: Isid([0x80, 0, 0, 0, 0, isid]),
            cid: 1,
            cmd_sn: 100,
            settings: self.settings.clone(),
            chap: None,
            random: [isid; 33],
            redirects: 0,
        });
        loop {
            self.send(Advertised::default(), &pdu.bhs, &pdu.data);
            let (bhs, data, _) = self.receive().await.expect("a login response");
            match login.receive(&bhs, &data)? {
                InitiatorStep::Send(next) => pdu = next,
                InitiatorStep::Established(established) => {
                    self.session = Some(InitiatorSession::new(InitiatorConfig {
                        parameters: established.parameters,
                        cid: established.cid,
                        cmd_sn: established.cmd_sn,
                        max_cmd_sn: established.max_cmd_sn,
                        exp_stat_sn: established.stat_sn,
                    }));
                    self.established = Some(*established);
                    return Ok(());
                }
                InitiatorStep::Redirect { .. } => panic!("a redirection"),
            }
        }
    }

    pub(crate) fn session(&mut self) -> &mut InitiatorSession {
        self.session.as_mut().unwrap()
    }

    /// Exposes memory with this content to the target.
    pub(crate) fn expose(&self, data: &[u8], access: Access) -> (ExposedRegion, RemoteBuffer) {
        let mut buffer = self.arena.alloc(data.len()).unwrap();
        buffer.copy_from_slice(data);
        let region = MemoryRegion::new(Arc::clone(&self.domain), Memory::Owned(buffer));
        let region = region.expose(access).unwrap();
        let segment = region.segment();
        (region, RemoteBuffer { stag: segment.handle.0, base: segment.offset })
    }

    /// Queues a command with data to send, or the number of bytes to receive.
    pub(crate) fn submit(&mut self, cdb: &[u8], direction: Direction, data: Vec<u8>) -> u32 {
        let mut bytes = [0; 16];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let expected = data.len() as u32;
        let attribute = TaskAttribute::SIMPLE;
        let command = Command { lun: 0, attribute, cdb: bytes, direction, expected };
        let access = if direction == Direction::Read { Access::RemoteWrite } else { Access::RemoteRead };
        let exposed = (direction != Direction::None).then(|| self.expose(&data, access));
        let buffer = exposed.as_ref().map(|(_, buffer)| *buffer);
        let itt = self.session().submit(command, buffer).unwrap();
        self.data.insert(itt, data);
        if let Some((region, _)) = exposed {
            self.regions.insert(itt, region);
        }
        itt
    }

    /// The message of a PDU of the session.
    pub(crate) fn encode(&self, pdu: &InitiatorPdu) -> Vec<u8> {
        let data = match &pdu.data {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Task { itt, offset, length } => {
                self.data[itt][*offset as usize..][..*length as usize].to_vec()
            }
        };
        message(pdu.advertised, &pdu.encode(), &data)
    }

    /// Sends what the session has to send.
    pub(crate) fn flush(&mut self) {
        while let Some(pdu) = self.session().poll_transmit() {
            let bytes = self.encode(&pdu);
            self.send_bytes(&bytes);
        }
    }

    /// Receives and processes one PDU.
    pub(crate) async fn step(&mut self) -> Result<(), Ended> {
        self.flush();
        let (bhs, data, invalidated) = self.receive().await?;
        self.invalidated += usize::from(invalidated.is_some());
        let place = self.session().begin(&bhs, &[], invalidated).unwrap();
        let control = matches!(place, Placement::Control { .. });
        self.session().finish(if control { &data } else { &[] }).unwrap();
        self.take_events();
        self.flush();
        Ok(())
    }

    fn take_events(&mut self) {
        while let Some(event) = self.session().poll_event() {
            if let InitiatorEvent::Completed { itt, .. } = &event
                && let Some(region) = self.regions.remove(itt)
            {
                let Some(Memory::Owned(buffer)) = region.revoke().map(MemoryRegion::into_memory) else {
                    panic!("the memory of task {itt} is lost")
                };
                self.data.insert(*itt, buffer.to_vec());
            }
            self.events.push(event);
        }
    }

    /// The event that `select` maps, when it comes.
    pub(crate) async fn event<T>(
        &mut self,
        select: impl Fn(&InitiatorEvent) -> Option<T>,
    ) -> Result<T, Ended> {
        loop {
            self.take_events();
            if let Some(i) = self.events.iter().position(|event| select(event).is_some()) {
                return Ok(select(&self.events.remove(i)).unwrap());
            }
            self.step().await?;
        }
    }

    pub(crate) async fn outcome(&mut self, itt: u32) -> Result<Outcome, Ended> {
        self.event(|event| match event {
            InitiatorEvent::Completed { itt: done, outcome } if *done == itt => Some(outcome.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn managed(&mut self, itt: u32) -> Result<TaskResult, Ended> {
        self.event(|event| match event {
            InitiatorEvent::Managed { itt: done, result } if *done == itt => Some(*result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn manage(&mut self, function: TaskFunction) -> TaskResult {
        let itt = self.session().manage(function, 0).unwrap();
        self.managed(itt).await.unwrap()
    }

    /// Executes a command; returns its outcome and all of its memory.
    pub(crate) async fn execute(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        data: Vec<u8>,
    ) -> (Outcome, Vec<u8>) {
        let itt = self.submit(cdb, direction, data);
        let outcome = self.outcome(itt).await.unwrap();
        (outcome, self.data.remove(&itt).unwrap())
    }

    /// TEST UNIT READY until the unit attention conditions are reported.
    pub(crate) async fn clear_attention(&mut self) {
        loop {
            let (outcome, _) = self.execute(&[0; 6], Direction::None, Vec::new()).await;
            if matches!(outcome, Outcome::Completed { status: 0, .. }) {
                break;
            }
        }
    }

    pub(crate) async fn write(&mut self, lba: u32, data: &[u8]) {
        let cdb = rw10(0x2a, lba, (data.len() / 512) as u16);
        let (outcome, _) = self.execute(&cdb, Direction::Write, data.to_vec()).await;
        assert!(matches!(outcome, Outcome::Completed { status: 0, .. }), "{outcome:?}");
    }

    pub(crate) async fn read(&mut self, lba: u32, blocks: u16) -> Vec<u8> {
        let buffer = vec![0xee; usize::from(blocks) * 512];
        let (outcome, data) = self.execute(&rw10(0x28, lba, blocks), Direction::Read, buffer).await;
        assert!(matches!(outcome, Outcome::Completed { status: 0, .. }), "{outcome:?}");
        data
    }

    /// Regions that the target can access.
    pub(crate) fn exposed(&self) -> (usize, usize) {
        self.domain.exposed()
    }

    /// Logs out. The target waits a second for the initiator to close the connection. No memory is exposed, or
    /// in use.
    pub(crate) async fn log_out(mut self) {
        self.session().logout().unwrap();
        let logged_out =
            |event: &InitiatorEvent| matches!(event, InitiatorEvent::LoggedOut { .. }).then_some(());
        self.event(logged_out).await.unwrap();
        let rt = Arc::clone(&self.rt);
        let early = timeout(&*rt, Duration::from_millis(900), self.receive_message()).await;
        assert!(early.is_none(), "the target closes first");
        assert_eq!(self.receive_message().await.unwrap_err(), Ended);
        assert_eq!(self.exposed(), (0, 0));
        let Self { qp, arena, inbox, regions, .. } = self;
        assert_eq!((inbox.len(), regions.len()), (0, 0));
        drop((qp, inbox));
        assert_eq!(arena.stats().in_use, 0);
    }
}

/// The bytes of a message.
pub(crate) fn message(advertised: Advertised, bhs: &Bhs, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + data.len());
    bytes.extend_from_slice(&prefix(advertised, bhs));
    bytes.extend_from_slice(data);
    bytes
}
