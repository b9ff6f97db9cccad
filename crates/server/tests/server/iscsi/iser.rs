//! iSER, on its own address and on that of iSCSI over TCP.

use std::{
    future::poll_fn,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::{
    login::InitiatorConfig,
    negotiation::Settings,
    pdu::{Isid, TaskAttribute},
    session::{Command, Direction, InitiatorEvent, Outcome},
};
use millrace_iscsi_initiator::iser::{Event, InitiatorConnection, LoggedIn, connect_params, log_in};
use millrace_rdma::{ConnectParams, Memory};
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_scsi::initiator::{read_16, write_16};
use millrace_server::{Config, Running, Server};

use super::{
    DISK, addr,
    initiator::{GOOD, Initiator},
    with_luns,
};
use crate::common::{rdma_at, run};

/// A session with iSER.
struct Host {
    connection: Box<InitiatorConnection>,
    arena: Arena,
}

impl Host {
    /// Connects, logs in, and reports the unit attention conditions.
    async fn ready(addr: SocketAddr) -> Self {
        let provider = rdma_at().1.to_connect(addr).unwrap().provider;
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let params = connect_params(ConnectParams::default(), provider.can_be_invalidated(addr));
        let qp = provider.connect(TokioRuntime::current(), arena.clone(), addr, params).await.unwrap();
        let config = InitiatorConfig {
            initiator: "iqn.2026-01.example:rdma-host".parse().unwrap(),
            target: Some(DISK.parse().unwrap()),
            isid: Isid([0x80, 0, 0, 0, 0, 2]),
            cid: 1,
            cmd_sn: 1,
            settings: Settings::default(),
            chap: None,
            random: [9; 33],
            redirects: 0,
        };
        let LoggedIn::Established(connection) = log_in(qp, arena.clone(), config).await.unwrap() else {
            panic!("a redirection")
        };
        let mut host = Self { connection, arena };
        while host.execute([0; 16], Direction::None, None).await.0 != GOOD {}
        host
    }

    async fn event<T>(&mut self, select: impl Fn(Event) -> Option<T>) -> T {
        loop {
            let event = poll_fn(|cx| self.connection.poll_event(cx)).await.unwrap();
            if let Some(selected) = select(event) {
                return selected;
            }
        }
    }

    async fn execute(
        &mut self,
        cdb: [u8; 16],
        direction: Direction,
        data: Option<&[u8]>,
    ) -> (u8, Option<Vec<u8>>) {
        let memory = data.map(|data| {
            let mut buffer = self.arena.alloc(data.len()).unwrap();
            buffer.copy_from_slice(data);
            Memory::Owned(buffer)
        });
        let expected = memory.as_ref().map_or(0, Memory::len) as u32;
        let command = Command { lun: 0, attribute: TaskAttribute::SIMPLE, cdb, direction, expected };
        self.connection.submit(command, memory).unwrap();
        let completed = |event| match event {
            Event::Completed { outcome: Outcome::Completed { status, .. }, memory, .. } => {
                Some((status, memory))
            }
            Event::Completed { outcome, .. } => panic!("{outcome:?}"),
            Event::Session(_) => None,
        };
        let (status, memory) = self.event(completed).await;
        let bytes = memory.map(|memory| match memory {
            Memory::Owned(buffer) => buffer.to_vec(),
            Memory::Shared(views) => views.to_vec(),
        });
        (status, bytes)
    }

    async fn write(&mut self, lba: u64, data: &[u8]) {
        let cdb = write_16(lba, (data.len() / 512) as u32, false);
        assert_eq!(self.execute(cdb, Direction::Write, Some(data)).await.0, GOOD);
    }

    async fn read(&mut self, lba: u64, length: usize) -> Vec<u8> {
        let cdb = read_16(lba, (length / 512) as u32, false);
        let (status, data) = self.execute(cdb, Direction::Read, Some(&vec![0xee; length])).await;
        assert_eq!(status, GOOD);
        data.unwrap()
    }
}

/// A server with a disk of 8 MiB on one address for iSCSI and iSER.
fn shared(change: impl FnOnce(&mut Config)) -> Running {
    let mut config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=8MiB"]);
    config.listen_iser = config.listen_iscsi;
    config.provider = ProviderChoice::Iwarp;
    change(&mut config);
    Server::start(config).unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| i as u8 ^ (i >> 9) as u8).collect()
}

#[test]
fn one_address_serves_sessions_over_tcp_and_rdma() {
    if rdma_at().1 == ProviderChoice::Verbs {
        return; // Only iWARP in software shares a TCP listener.
    }
    run(async {
        let server = shared(|_| {});
        assert_eq!(server.iser_addr(), server.iscsi_addr());
        let mut rdma = Host::ready(addr(&server)).await;
        let mut tcp = Initiator::ready(addr(&server), DISK, 0);
        // Data by RDMA Reads, and immediate data.
        let (long, short) = (pattern(1 << 20), pattern(4096));
        rdma.write(0, &long).await;
        rdma.write(4096, &short).await;
        assert!(tcp.read(0, 0, 2048, 1 << 20) == long && tcp.read(0, 4096, 8, 4096) == short);
        assert_eq!(tcp.write(0, 9, 1, &[7; 512]).status, GOOD);
        let read = rdma.read(8, 64 << 10).await;
        assert!(read[..512] == long[4096..4608] && read[512..1024] == [7; 512]);
        assert!(read[1024..] == long[5120..][..read.len() - 1024]);
        let stats = server.stats();
        let iscsi = stats.iscsi;
        assert_eq!((iscsi.open, iscsi.sessions, iscsi.logins), (2, 2, 2), "{iscsi:?}");
        assert_eq!((iscsi.malformed, iscsi.stalled), (0, 0), "{iscsi:?}");
        assert_eq!((stats.rdma.opened, stats.tcp.opened), (0, 0), "neither is NFS");
    });
}

#[test]
fn iser_on_its_own_address_ends_when_the_server_stops() {
    run(async {
        let mut config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=8MiB"]);
        config.listen_iscsi = None;
        config.listen_iser = Some(SocketAddr::new(rdma_at().0, 0));
        let server = Server::start(config).unwrap();
        assert_eq!(server.iscsi_addr(), None);
        let mut host = Host::ready(server.iser_addr().unwrap()).await;
        let data = pattern(256 << 10);
        host.write(100, &data).await;
        assert!(host.read(100, data.len()).await == data);
        let leave = async {
            let asked = |event| matches!(event, Event::Session(InitiatorEvent::LogoutRequested { .. }));
            host.event(|event| asked(event).then_some(())).await;
            host.connection.logout().unwrap();
            let left = |event| matches!(event, Event::Session(InitiatorEvent::LoggedOut { .. }));
            host.event(|event| left(event).then_some(())).await;
        };
        let (stats, ()) = futures::join!(server.stop(Duration::from_secs(10)), leave);
        assert_eq!((stats.iscsi.open, stats.iscsi.sessions, stats.iscsi.logins), (0, 0, 1));
    });
}

/// Waits until the server closes the stream.
fn closed(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    match stream.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_protocols_and_silent_peers_are_disconnected() {
    let server = shared(|config| config.limits.stall_timeout = 1);
    // HTTP, a SCSI Command before the login, and 0.
    for first in [b'G', 0x41, 0] {
        let mut stream = TcpStream::connect(addr(&server)).unwrap();
        stream.write_all(&[first; 48]).unwrap();
        closed(stream);
    }
    let began = Instant::now();
    closed(TcpStream::connect(addr(&server)).unwrap());
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    let stats = server.stats().iscsi;
    assert_eq!((stats.malformed, stats.stalled, stats.opened), (3, 1, 0), "{stats:?}");
}

#[test]
fn a_login_that_does_not_end_is_disconnected() {
    let server = shared(|config| config.limits.stall_timeout = 1);
    // The first byte of an MPA request and of a Login Request, and no more.
    for first in [b'M', 0x43] {
        let mut stream = TcpStream::connect(addr(&server)).unwrap();
        stream.write_all(&[first]).unwrap();
        closed(stream);
    }
    Initiator::ready(addr(&server), DISK, 0);
}

#[test]
fn connections_without_a_byte_count_and_end_when_the_server_stops() {
    run(async {
        let server = shared(|config| config.limits.max_connections_per_client = Some(1));
        let silent = TcpStream::connect(addr(&server)).unwrap();
        closed(TcpStream::connect(addr(&server)).unwrap());
        assert_eq!(server.stats().turned_away, 1);
        let began = Instant::now();
        server.stop(Duration::from_secs(30)).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        closed(silent);
    });
}

#[test]
fn a_change_of_the_address_needs_a_restart() {
    let start = Config { listen_iser: None, ..with_luns(&["/x=memory:64MiB"], &["/x/0,size=8MiB"]) };
    let mut server = Server::start(start.clone()).unwrap();
    assert_eq!(server.iser_addr(), None);
    let elsewhere = Config { listen_iser: start.listen_iscsi, ..start };
    assert_eq!(server.reload(&elsewhere).unwrap().unapplied, ["listen_iser"]);
}
