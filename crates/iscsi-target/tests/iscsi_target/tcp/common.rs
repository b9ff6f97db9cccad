//! A target on streams in memory, and an initiator.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr},
    ops::Deref,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use millrace_iscsi::{
    chap::Mutual,
    login::{Established, InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, LoginError},
    name::IscsiName,
    negotiation::{DigestPolicy, Settings},
    pdu::{
        Bhs, Digest, Isid, Part, PduReader, Response, TaskAttribute, TaskFunction, TaskResult, digest,
        padding,
    },
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorPdu, InitiatorSession, Outcome,
        Payload, Placement,
    },
};
use millrace_iscsi_target::{ConnectionLimits, TableLimits, TargetTable, tcp::TcpTarget};
use millrace_runtime::{ByteStream, MemoryStream, memory_stream, virtual_time::VirtualTime};
use millrace_vfs::FileSystemRef;

pub(crate) use crate::support::*;

/// The server's side.
pub(crate) struct Bench {
    pub(crate) fixture: Fixture,
    pub(crate) server: TcpTarget,
}

impl Deref for Bench {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

/// Runs `test` in virtual time.
pub(crate) fn run<F: Future<Output = ()>>(limits: ConnectionLimits, test: impl FnOnce(Bench) -> F) {
    run_on(limits, |fs| fs, test);
}

/// Runs `test` with a disk on the file system that `wrap` returns.
pub(crate) fn run_on<F: Future<Output = ()>>(
    limits: ConnectionLimits,
    wrap: impl FnOnce(FileSystemRef) -> FileSystemRef,
    test: impl FnOnce(Bench) -> F,
) {
    let time = VirtualTime::new(7);
    time.block_on(async {
        let fixture = Fixture::new(&time, limits, wrap).await;
        let Fixture { rt, table, arena, limits, stats, .. } = &fixture;
        let server = TcpTarget {
            table: table.clone(),
            rt: rt.clone(),
            arena: arena.clone(),
            limits: limits.clone(),
            stats: stats.clone(),
        };
        test(Bench { fixture, server }).await;
    })
    .unwrap();
}

impl Bench {
    /// Replaces the table of targets by one with these limits.
    pub(crate) fn limit(&mut self, limits: TableLimits) {
        let table = TargetTable::new(limits);
        table.replace(vec![target(&self.device)]).unwrap();
        self.fixture.table = Arc::clone(&table);
        self.server.table = table;
    }

    /// Connects; the server's task runs until the end of the connection.
    pub(crate) fn connect(&self) -> Client {
        self.connect_with(1 << 16, usize::MAX)
    }

    /// Connects by a stream that buffers `capacity` bytes, and returns `segment` bytes at once.
    pub(crate) fn connect_with(&self, capacity: usize, segment: usize) -> Client {
        self.connect_stream(HOST, capacity, segment)
    }

    /// Connects from the host `addr`.
    pub(crate) fn connect_from(&self, addr: IpAddr) -> Client {
        self.connect_stream(addr, 1 << 16, usize::MAX)
    }

    fn connect_stream(&self, addr: IpAddr, capacity: usize, segment: usize) -> Client {
        let (ours, theirs) = memory_stream(capacity, segment);
        let client = Client::new(ours);
        let theirs = Box::new(Socket { stream: theirs, writes: Arc::clone(&client.received) });
        self.spawn(self.server.clone().serve(theirs, None, self.account_of(addr), self.stopped()));
        client
    }

    /// Another connection works.
    pub(crate) async fn expect_service(&self) {
        let mut other = self.connect();
        other.log_in(9).await.unwrap();
        other.clear_attention().await;
        let data: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        other.write(8, &data).await;
        assert_eq!(other.read(8, 8).await, data);
        other.log_out().await;
    }
}

/// A stream that is reset when it is closed with unread input, as sockets are: the peer loses what it has not received.
struct Socket {
    stream: MemoryStream,
    /// Bytes of each write.
    writes: Arc<Mutex<Vec<usize>>>,
}

impl ByteStream for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        self.stream.poll_read(cx, bufs)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = self.stream.poll_write(cx, bufs);
        if let Poll::Ready(Ok(n)) = &written {
            self.writes.lock().unwrap().push(*n);
        }
        written
    }

    fn shutdown(&mut self) {
        self.stream.shutdown();
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let unread = self.stream.poll_read(&mut cx, &mut [IoSliceMut::new(&mut [0])]);
        if matches!(unread, Poll::Ready(Ok(1))) {
            self.stream.abort();
        }
    }
}

/// An initiator.
pub(crate) struct Client {
    pub(crate) stream: MemoryStream,
    reader: PduReader,
    pub(crate) session: Option<InitiatorSession>,
    pub(crate) settings: Settings,
    pub(crate) chap: Option<Mutual>,
    pub(crate) established: Option<Established>,
    /// Data of commands by tag.
    pub(crate) data: std::collections::HashMap<u32, Vec<u8>>,
    pub(crate) events: Vec<InitiatorEvent>,
    /// Bytes of each write of the target.
    pub(crate) received: Arc<Mutex<Vec<usize>>>,
    digests: (bool, bool),
}

/// The peer has closed the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl Client {
    fn new(stream: MemoryStream) -> Self {
        let settings = Settings { initial_r2t: false, ..Settings::default() };
        Self {
            stream,
            reader: PduReader::new(1 << 20),
            session: None,
            settings,
            chap: None,
            established: None,
            data: Default::default(),
            events: Vec::new(),
            received: Arc::default(),
            digests: (false, false),
        }
    }

    pub(crate) fn with_digests(mut self) -> Self {
        (self.settings.header_digest, self.settings.data_digest) =
            (DigestPolicy::Require, DigestPolicy::Require);
        self
    }

    /// Sends raw bytes; errors are those of a closed connection.
    pub(crate) async fn send_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        while !bytes.is_empty() {
            let n =
                poll_fn(|cx| self.stream.poll_write(cx, &[IoSlice::new(bytes)])).await.map_err(|_| Ended)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// The bytes of a PDU.
    pub(crate) fn encode(&self, bhs: &Bhs, data: &[u8]) -> Vec<u8> {
        let mut bytes = bhs.to_vec();
        if self.digests.0 {
            bytes.extend_from_slice(&digest(&[bhs]));
        }
        bytes.extend_from_slice(data);
        let pad = vec![0; padding(data.len() as u32)];
        bytes.extend_from_slice(&pad);
        if self.digests.1 && !data.is_empty() {
            let mut sum = Digest::new();
            sum.update(data);
            sum.update(&pad);
            bytes.extend_from_slice(&sum.wire());
        }
        bytes
    }

    pub(crate) async fn send(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), Ended> {
        let bytes = self.encode(bhs, data);
        self.send_bytes(&bytes).await
    }

    /// The number of the next status that the target sends.
    pub(crate) fn exp_stat_sn(&mut self) -> u32 {
        // POWER ON and GOOD follow the login.
        self.established.as_ref().unwrap().stat_sn + 2
    }

    pub(crate) async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Ended> {
        let mut data = Vec::new();
        loop {
            let (part, missing) = self.reader.next();
            if part == Part::End {
                break;
            }
            let mut bytes = vec![0; missing];
            let n =
                poll_fn(|cx| self.stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)])).await.unwrap();
            if n == 0 {
                return Err(Ended);
            }
            self.reader.supply(&bytes[..n]).unwrap();
            if part == Part::Data {
                data.extend_from_slice(&bytes[..n]);
            }
        }
        let bhs = *self.reader.header().unwrap();
        self.reader.finish();
        Ok((bhs, data))
    }

    /// Waits until the target has closed the connection; other PDUs are discarded.
    pub(crate) async fn expect_end(&mut self) -> Vec<Response> {
        let mut responses = Vec::new();
        while let Ok((bhs, _)) = self.receive().await {
            responses.push(Response::decode(&bhs).unwrap());
        }
        self.stream.shutdown();
        responses
    }

    /// Logs in to the target.
    pub(crate) async fn log_in(&mut self, isid: u8) -> Result<(), LoginError> {
        self.log_in_to(isid, Some(name(TARGET))).await
    }

    pub(crate) async fn log_in_to(&mut self, isid: u8, target: Option<IscsiName>) -> Result<(), LoginError> {
        self.try_log_in_to(isid, target).await.expect("a login response")
    }

    /// Logs in, unless the target closes the connection.
    pub(crate) async fn try_log_in_to(
        &mut self,
        isid: u8,
        target: Option<IscsiName>,
    ) -> Result<Result<(), LoginError>, Ended> {
        let (mut login, mut pdu) = InitiatorLogin::new(LoginConfig {
            initiator: name("iqn.2026-01.example:host"),
            target,
            isid: Isid([0x80, 0, 0, 0, 0, isid]),
            cid: 1,
            cmd_sn: 100,
            settings: self.settings.clone(),
            chap: self.chap.clone(),
            random: [isid; 33],
            redirects: 0,
        });
        loop {
            self.send(&pdu.bhs, &pdu.data).await?;
            let (bhs, data) = self.receive().await?;
            match login.receive(&bhs, &data) {
                Ok(InitiatorStep::Send(next)) => pdu = next,
                Ok(InitiatorStep::Established(established)) => {
                    self.establish(*established);
                    return Ok(Ok(()));
                }
                Ok(InitiatorStep::Redirect { .. }) => panic!("a redirection"),
                Err(e) => return Ok(Err(e)),
            }
        }
    }

    fn establish(&mut self, established: Established) {
        let parameters = established.parameters;
        self.digests = (parameters.header_digest, parameters.data_digest);
        self.reader.set(1 << 20, self.digests.0, self.digests.1);
        self.session = Some(InitiatorSession::new(InitiatorConfig {
            parameters,
            cid: established.cid,
            cmd_sn: established.cmd_sn,
            max_cmd_sn: established.max_cmd_sn,
            exp_stat_sn: established.stat_sn,
        }));
        self.established = Some(established);
    }

    pub(crate) fn session(&mut self) -> &mut InitiatorSession {
        self.session.as_mut().unwrap()
    }

    /// Queues a command with data to send, or the number of bytes to receive.
    pub(crate) fn submit(&mut self, cdb: &[u8], direction: Direction, data: Vec<u8>) -> u32 {
        let mut bytes = [0; 16];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let expected = data.len() as u32;
        let attribute = TaskAttribute::SIMPLE;
        let command = Command { lun: 0, attribute, cdb: bytes, direction, expected };
        let itt = self.session().submit(command, None).unwrap();
        self.data.insert(itt, data);
        itt
    }

    /// The data segment of a PDU of the session.
    pub(crate) fn data_of(&self, pdu: &InitiatorPdu) -> Vec<u8> {
        match &pdu.data {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Task { itt, offset, length } => {
                self.data[itt][*offset as usize..][..*length as usize].to_vec()
            }
        }
    }

    /// Sends what the session has to send.
    pub(crate) async fn flush(&mut self) -> Result<(), Ended> {
        while let Some(pdu) = self.session().poll_transmit() {
            let data = self.data_of(&pdu);
            self.send(&pdu.encode(), &data).await?;
        }
        Ok(())
    }

    /// Receives and processes one PDU.
    pub(crate) async fn step(&mut self) -> Result<(), Ended> {
        self.flush().await?;
        let (bhs, data) = self.receive().await?;
        let place = self.session().begin(&bhs, &[], None).unwrap();
        if let Placement::Task { itt, offset, length, .. } = place {
            let length = length as usize;
            self.data.get_mut(&itt).unwrap()[offset as usize..][..length].copy_from_slice(&data[..length]);
        }
        let control = matches!(place, Placement::Control { .. });
        self.session().finish(if control { &data } else { &[] }).unwrap();
        while let Some(event) = self.session().poll_event() {
            self.events.push(event);
        }
        self.flush().await
    }

    /// The event that `select` maps, when it comes.
    pub(crate) async fn event<T>(
        &mut self,
        select: impl Fn(&InitiatorEvent) -> Option<T>,
    ) -> Result<T, Ended> {
        loop {
            while let Some(event) = self.session().poll_event() {
                self.events.push(event);
            }
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

    /// Executes a command; returns status, sense and data.
    pub(crate) async fn execute(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        data: Vec<u8>,
    ) -> (u8, Vec<u8>, Vec<u8>) {
        let itt = self.submit(cdb, direction, data);
        match self.outcome(itt).await.unwrap() {
            Outcome::Completed { status, sense, transferred, .. } => {
                let mut data = self.data.remove(&itt).unwrap();
                data.truncate(transferred as usize);
                (status, sense, data)
            }
            other => panic!("{other:?}"),
        }
    }

    /// TEST UNIT READY until the unit attention conditions are reported.
    pub(crate) async fn clear_attention(&mut self) {
        while self.execute(&[0; 6], Direction::None, Vec::new()).await.0 != 0 {}
    }

    pub(crate) async fn write(&mut self, lba: u32, data: &[u8]) {
        let cdb = rw10(0x2a, lba, (data.len() / 512) as u16);
        let (status, sense, _) = self.execute(&cdb, Direction::Write, data.to_vec()).await;
        assert_eq!((status, sense.as_slice()), (0, &[][..]));
    }

    pub(crate) async fn read(&mut self, lba: u32, blocks: u16) -> Vec<u8> {
        let buffer = vec![0xee; usize::from(blocks) * 512];
        let (status, _, data) = self.execute(&rw10(0x28, lba, blocks), Direction::Read, buffer).await;
        assert_eq!(status, 0);
        data
    }

    pub(crate) fn stream_shutdown(&mut self) {
        self.stream.shutdown();
    }

    /// Processes PDUs until the target closes the connection.
    pub(crate) async fn expect_end_of_session(&mut self) {
        while self.step().await.is_ok() {}
        self.stream.shutdown();
    }

    pub(crate) async fn log_out(&mut self) {
        self.session().logout().unwrap();
        let logged_out =
            |event: &InitiatorEvent| matches!(event, InitiatorEvent::LoggedOut { .. }).then_some(());
        self.event(logged_out).await.unwrap();
        assert_eq!(self.receive().await.unwrap_err(), Ended);
        self.stream.shutdown();
    }
}
