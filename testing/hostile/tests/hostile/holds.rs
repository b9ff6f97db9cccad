//! Clients that hold shared resources of a server, and an honest client, over RDMA (iWARP) and TCP sockets.
//!
//! These tests assert no times. `cargo test --release -p millrace-hostile --test hostile -- --ignored
//! --nocapture` measures the rate of the honest client during each attack.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use millrace_client::{
    Options, Proto, RetryPolicy, Url, Version,
    handles::blocking::Client,
    ops::{FileHandle, StableHow},
};
use millrace_hostile::hold::{self, Held};
use millrace_server::{ByteSize, Config, Limits, Running, Server, Stats};

const MIB: usize = 1 << 20;
const MEMORY: u64 = 64 << 20;
/// Number of names in the listed directory, more than fit into one reply.
const NAMES: usize = 3000;
const HOSTILE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const ALSO_HOSTILE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

fn start(limits: Limits) -> Running {
    let limits = Limits { memory: ByteSize(MEMORY), credits: 32, ..limits };
    let config = Config {
        exports: vec!["/x=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        provider: "iwarp".parse().unwrap(),
        limits,
        shards: Some(2),
        float_shards: true,
        ..Config::default()
    };
    Server::start(config).unwrap()
}

fn addr(server: &Running, proto: Proto) -> SocketAddr {
    if proto == Proto::Tcp { server.tcp_addr().unwrap() } else { server.rdma_addr().unwrap() }
}

/// An honest client, from 127.0.0.1.
struct Honest {
    client: Client,
    file: FileHandle,
    data: Vec<u8>,
    read: Vec<u8>,
}

impl Honest {
    fn connect(server: &Running, proto: Proto) -> Self {
        Self::connect_with(server, proto, Options::default())
    }

    fn connect_with(server: &Running, proto: Proto, options: Options) -> Self {
        let url =
            Url { port: Some(addr(server, proto).port()), proto: Some(proto), ..Url::new("127.0.0.1", "/x") };
        let client = Client::connect(&url, options.vers(Some(Version::V3))).unwrap();
        let file = client.create_file(format!("file-{proto}"), 0o600).unwrap().handle();
        Self { client, file, data: vec![0x5e; MIB], read: vec![0; MIB] }
    }

    /// Writes 1 MiB, reads it, and gets the attributes.
    fn round(&mut self) {
        self.client.write(self.file, 0, &self.data, StableHow::FileSync).unwrap();
        assert_eq!(self.client.read(self.file, 0, &mut self.read).unwrap(), MIB);
        assert!(self.read == self.data);
        self.client.getattr(self.file).unwrap();
    }

    fn rounds(&mut self, n: u32) {
        (0..n).for_each(|_| self.round());
        let stats = self.client.stats();
        assert_eq!((stats.reconnects, stats.retransmits), (0, 0), "{stats:?}");
    }

    /// Rounds per second.
    fn rate(&mut self, time: Duration) -> f64 {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.round();
            rounds += 1;
        }
        f64::from(rounds) / start.elapsed().as_secs_f64()
    }
}

/// Waits until the condition is true; panics after a time limit.
fn wait(server: &Running, what: &str, until: impl Fn(&Stats) -> bool) {
    for _ in 0..6000 {
        if until(&server.stats()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: {:?}", server.stats().budget);
}

/// The server and the objects that attacks use.
struct Target {
    rdma: SocketAddr,
    tcp: SocketAddr,
    root: Vec<u8>,
    file: Vec<u8>,
}

impl Target {
    /// Creates a file of 1 MiB and a directory with many names on the server.
    fn new(server: &Running) -> Self {
        let honest = Honest::connect(server, Proto::Tcp);
        let file = honest.client.create_file("target", 0o600).unwrap().handle();
        honest.client.write(file, 0, &honest.data, StableHow::FileSync).unwrap();
        let (rdma, tcp) = (addr(server, Proto::Rdma), addr(server, Proto::Tcp));
        let (root, file) = hold::handles(rdma, "/x", "target").unwrap();
        Self { rdma, tcp, root, file }
    }
}

/// Name and start of an attack, which continues until it is dropped.
type Attack = (&'static str, fn(&Target) -> Held);
/// As [`Attack`], from several addresses.
type AttackFrom = (&'static str, fn(&Target, &[IpAddr]) -> Vec<Held>);

const HOLD_MEMORY: [Attack; 4] = [
    ("unanswered RDMA Reads", |t| hold::unanswered_reads(t.rdma, HOSTILE, 8, 32).unwrap()),
    ("RDMA Writes that are not received", |t| {
        hold::untaken_rdma_writes(t.rdma, HOSTILE, &t.file, 6, 32).unwrap()
    }),
    ("replies that are not received", |t| hold::untaken_replies(t.tcp, HOSTILE, &t.file, 8, 64).unwrap()),
    ("incomplete records", |t| hold::partial_records(t.tcp, &[HOSTILE, ALSO_HOSTILE], 60).unwrap()),
];

const LISTINGS: Attack = ("listings", |t| hold::listings(t.tcp, HOSTILE, &t.root, 2, 32).unwrap());

fn fill(server: &Running) {
    let honest = Honest::connect(server, Proto::Tcp);
    for n in 0..NAMES {
        honest.client.create_file(format!("a-file-with-a-name-of-some-length-{n}"), 0o600).unwrap();
    }
}

#[test]
fn a_client_that_holds_memory_is_limited_to_its_share() {
    for (what, attack) in HOLD_MEMORY {
        let server = start(Limits { stall_timeout: 3600, ..Limits::default() });
        let target = Target::new(&server);
        let mut honest = [Proto::Rdma, Proto::Tcp].map(|proto| Honest::connect(&server, proto));
        honest.iter_mut().for_each(|h| h.rounds(2));
        let before = server.stats();
        let held = attack(&target);
        wait(&server, what, |s| s.budget.waiting > 0 || s.budget.in_use > s.budget.shared / 4);
        for _ in 0..10 {
            honest.iter_mut().for_each(|h| h.rounds(2));
            let now = server.stats();
            assert!(now.budget.in_use < now.budget.shared, "{what}: {:?}", now.budget);
            // Memory of each connection besides the budget.
            let taken = now.memory.in_use.saturating_sub(before.memory.in_use) as u64;
            assert!(taken < MEMORY, "{what}: {taken} bytes");
        }
        // New connections are served too.
        for proto in [Proto::Rdma, Proto::Tcp] {
            Honest::connect(&server, proto).rounds(2);
        }
        assert_eq!(server.stats().operations.out_of_memory, 0, "{what}");
        drop(held);
        wait(&server, "the memory is released", |s| s.budget.in_use < 2 * MIB);
    }
}

/// Clients hold all shared memory, so that other clients can use only the memory that is reserved for each connection.
#[test]
fn small_calls_of_other_clients_are_executed_while_bulk_data_holds_all_memory() {
    let many = || (0..60).map(|n| IpAddr::from(Ipv4Addr::from_bits(0x7f01_0001 + n)));
    let attacks: [AttackFrom; 2] = [
        ("incomplete records", |t, from| vec![hold::partial_records(t.tcp, from, from.len()).unwrap()]),
        ("unanswered RDMA Reads", |t, from| {
            from.iter().map(|from| hold::unanswered_reads(t.rdma, *from, 1, 2).unwrap()).collect()
        }),
    ];
    for (what, attack) in attacks {
        let server = start(Limits { stall_timeout: 3600, ..Limits::default() });
        let target = Target::new(&server);
        let small = |honest: &[Honest; 2]| {
            for h in honest.iter().cycle().take(200) {
                h.client.getattr(h.file).unwrap();
                let found = h.client.lookup(h.client.root(), "target").unwrap();
                assert_eq!(found.handle.as_bytes(), target.file);
            }
        };
        let mut options = Options::default();
        // A call that waits for memory fails.
        (options.timeout, options.retry) = (Duration::from_secs(20), RetryPolicy::NONE);
        let connect =
            || [Proto::Rdma, Proto::Tcp].map(|proto| Honest::connect_with(&server, proto, options.clone()));
        let old = connect();
        small(&old);
        let held = attack(&target, &many().collect::<Vec<_>>());
        let is_held = |s: &Stats| s.budget.waiting > 0 && s.budget.shared - s.budget.in_use < 2 * MIB;
        wait(&server, what, is_held);
        small(&old);
        small(&connect());
        assert!(is_held(&server.stats()), "{what}: {:?}", server.stats().budget);
        drop(held);
    }
}

#[test]
fn only_the_client_that_holds_memory_loses_its_connection() {
    for (what, attack) in HOLD_MEMORY {
        let server = start(Limits { stall_timeout: 1, ..Limits::default() });
        let target = Target::new(&server);
        let mut honest = [Proto::Rdma, Proto::Tcp].map(|proto| Honest::connect(&server, proto));
        let held = attack(&target);
        wait(&server, what, |s| s.budget.in_use > s.budget.shared / 8);
        while server.stats().budget.in_use > 2 * MIB {
            honest.iter_mut().for_each(|h| h.rounds(1));
        }
        honest.iter_mut().for_each(|h| h.rounds(1));
        let stats = server.stats();
        let stalled = (stats.tcp.stalled + stats.rdma.stalled) as usize;
        assert!((1..=held.connections()).contains(&stalled), "{what}: {stalled}");
    }
}

#[test]
fn silent_connections_are_evicted_and_end() {
    let server = start(Limits { max_connections: Some(32), stall_timeout: 2, ..Limits::default() });
    let mut honest = [Proto::Rdma, Proto::Tcp].map(|proto| Honest::connect(&server, proto));
    honest.iter_mut().for_each(|h| h.rounds(1));
    let from: Vec<IpAddr> = (2..6).map(|n| Ipv4Addr::new(127, 0, 0, n).into()).collect();
    // The silent connections exceed the maximum number of connections, and occupy all but two.
    let held = hold::silent(addr(&server, Proto::Tcp), &from, 200).unwrap();
    wait(&server, "all connections were accepted", |s| s.turned_away + s.tcp.evicted + s.tcp.open > 200);
    assert_eq!(server.stats().budget.connections, 32);
    honest.iter_mut().for_each(|h| h.rounds(2));
    for proto in [Proto::Rdma, Proto::Tcp] {
        Honest::connect(&server, proto).rounds(1);
    }
    wait(&server, "the silent connections end", |s| s.tcp.open <= 2);
    honest.iter_mut().for_each(|h| h.rounds(1));
    assert!(server.stats().tcp.no_call > 20);
    drop(held);
}

#[test]
fn listings_do_not_starve_other_clients() {
    let server = start(Limits::default());
    let target = Target::new(&server);
    fill(&server);
    let mut honest = [Proto::Rdma, Proto::Tcp].map(|proto| Honest::connect(&server, proto));
    let before = server.stats().calls_of(millrace_nfs::v3::Procedure::Readdir);
    let held = (LISTINGS.1)(&target);
    wait(&server, LISTINGS.0, |s| s.calls_of(millrace_nfs::v3::Procedure::Readdir) > before + 100);
    honest.iter_mut().for_each(|h| h.rounds(10));
    drop(held);
}

#[test]
fn failed_calls_from_many_addresses_evict_no_cached_reply() {
    let server = start(Limits { replies_kept: 64, ..Limits::default() });
    let target = Target::new(&server);
    let from = |n: u32| IpAddr::from(Ipv4Addr::from_bits(0x7f01_0000 + n));
    let victim: IpAddr = Ipv4Addr::LOCALHOST.into();
    assert_eq!(hold::remove(target.tcp, victim, 77, &target.root, "target").unwrap(), 0);
    assert_eq!(hold::refused_changes(target.tcp, (0..500).map(from)).unwrap(), 500);
    assert_eq!(
        hold::remove(target.tcp, victim, 77, &target.root, "target").unwrap(),
        0,
        "the retransmission was executed"
    );
    assert_eq!(
        hold::remove(target.tcp, victim, 78, &target.root, "target").unwrap(),
        2,
        "the file still exists"
    );
}

#[test]
#[ignore = "measures time"]
fn rate_of_other_clients_during_each_attack() {
    const TIME: Duration = Duration::from_secs(3);
    println!("{:<36} {:>6} {:>12} {:>12} {:>6}", "attack", "", "alone", "attacked", "ratio");
    for (what, attack) in [LISTINGS].into_iter().chain(HOLD_MEMORY) {
        let server = start(Limits { stall_timeout: 3600, ..Limits::default() });
        let target = Target::new(&server);
        fill(&server);
        for proto in [Proto::Rdma, Proto::Tcp] {
            let mut honest = Honest::connect(&server, proto);
            honest.rate(TIME / 3);
            let alone = honest.rate(TIME);
            let held = attack(&target);
            wait(&server, what, |s| s.budget.in_use > MIB / 8);
            let beside = honest.rate(TIME);
            drop(held);
            let ratio = beside / alone;
            println!("{what:<36} {proto:>6} {alone:>10.0}/s {beside:>10.0}/s {ratio:>6.2}");
            assert!(ratio > 0.5, "{what}: {ratio}");
        }
    }
}
