//! The cases: what each measures, and what it is compared with.

use millrace_client::Proto;

use super::Compare;
use crate::{
    Figure,
    disk::DiskRun,
    iozone::{Run, Test},
    raw::{Exchange, PingPong},
    wire_bytes::WireBytes,
};

/// A row of the comparison.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) measured: Measured,
    pub(super) reference: Reference,
    /// Goal of the ratios, as text.
    pub(super) wanted: &'static str,
    pub(super) runs: Vec<Figure>,
    /// The run of the reference directly before each run. The speed of a shared host changes within seconds, so only
    /// runs beside each other compare.
    pub(super) beside: Vec<Figure>,
}

#[derive(Clone, Copy)]
pub(super) enum Measured {
    RawStream,
    RawPing(PingPong),
    IwarpPing(PingPong),
    Exchange(Exchange),
    Nfs {
        session: usize,
        run: Run,
    },
    /// The first write into a fresh export, by a client whose data is in memory already; or the first read of a client
    /// after it, into fresh memory.
    First {
        proto: Proto,
        run: Run,
    },
    Disk {
        session: usize,
        run: DiskRun,
    },
    /// NFS with both ends polling.
    Polling {
        proto: Proto,
        run: Run,
    },
}

/// What a case is compared with.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reference {
    /// The case is the reference of others, and runs with them.
    Nothing,
    /// Throughput and processor time per byte of the raw stream.
    RawRate { server_is_sender: bool },
    /// Throughput and processor time per byte of the named case.
    Rate(&'static str),
    /// Operations per second and processor time per operation of the named case.
    Operations(&'static str),
    /// Median latency of the named case.
    Latency(&'static str),
}

impl Reference {
    /// The name of the case.
    pub(super) fn case(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::RawRate { .. } => Some(STREAM),
            Self::Rate(name) | Self::Operations(name) | Self::Latency(name) => Some(name),
        }
    }
}

pub(super) const STREAM: &str = "raw TCP stream";
pub(super) const READ: &str = "READ 1 MiB x 8";
pub(super) const WRITE: &str = "WRITE 1 MiB x 8";
pub(super) const RANDOM: &str = "random READ 4 KiB x 16";
const PING: &str = "plain TCP ping-pong, RDMA's bytes";
const EXCHANGE: &str = "plain TCP exchange x 16, RDMA's bytes";
const TCP_PING: &str = "plain TCP ping-pong, TCP's bytes";
const TCP_EXCHANGE: &str = "plain TCP exchange x 16, TCP's bytes";

/// Bytes of a small READ.
pub(super) const SMALL: usize = 4096;
/// Small READs in flight.
const IN_FLIGHT: usize = 16;

impl Case {
    pub(super) fn new(
        name: &'static str,
        measured: Measured,
        reference: Reference,
        wanted: &'static str,
    ) -> Self {
        Self { name, measured, reference, wanted, runs: Vec::new(), beside: Vec::new() }
    }
}

impl Compare {
    fn run_of(&self, test: Test, record: usize, outstanding: usize) -> Run {
        let random_ops = if outstanding == 1 { self.random_ops / 4 } else { self.random_ops };
        Run { test, record, outstanding, passes: self.passes, random_ops }
    }

    fn nfs(&self, session: usize, test: Test, record: usize, outstanding: usize) -> Measured {
        Measured::Nfs { session, run: self.run_of(test, record, outstanding) }
    }

    fn ping_pong(&self, bytes: WireBytes) -> PingPong {
        let count = (self.random_ops / 4).clamp(100, 20_000);
        PingPong { count, ping: bytes.call, pong: bytes.reply }
    }

    fn exchange(&self, bytes: WireBytes) -> Measured {
        let (count, depth) = (self.random_ops.max(1), IN_FLIGHT as u64);
        Measured::Exchange(Exchange { count, request: bytes.call, reply: bytes.reply, depth, connections: 1 })
    }

    /// NFS over RDMA (session 0, and 1 with small frames), and what it is compared with. `bytes` are those of a small
    /// READ.
    pub(super) fn rdma_cases(&self, bytes: WireBytes) -> Vec<Case> {
        let read = Reference::RawRate { server_is_sender: true };
        let write = Reference::RawRate { server_is_sender: false };
        let (mib, random) = (1 << 20, Test::RandomRead);
        let bare = PingPong { ping: 128, pong: SMALL as u64, ..self.ping_pong(bytes) };
        let nothing = Reference::Nothing;
        vec![
            Case::new(STREAM, Measured::RawStream, nothing, ""),
            Case::new(READ, self.nfs(0, Test::Read, mib, 8), read, ">= 0.98, server <= 1.03"),
            Case::new(WRITE, self.nfs(0, Test::Rewrite, mib, 8), write, ">= 0.95, server <= 1.10"),
            // The server frames the data of READ, so only WRITE shows the effect of the small frames.
            Case::new("WRITE 1 MiB x 8, MTU frames", self.nfs(1, Test::Rewrite, mib, 8), write, ">= 0.75"),
            Case::new(EXCHANGE, self.exchange(bytes), nothing, ""),
            Case::new(
                RANDOM,
                self.nfs(0, random, SMALL, IN_FLIGHT),
                Reference::Operations(EXCHANGE),
                ">= 0.60, server <= 1.6, client <= 2.0",
            ),
            Case::new(PING, Measured::RawPing(self.ping_pong(bytes)), nothing, ""),
            Case::new(
                "bare Send ping-pong 128+4096 B",
                Measured::IwarpPing(bare),
                Reference::Latency(PING),
                "",
            ),
            Case::new(
                "random READ 4 KiB x 1",
                self.nfs(0, random, SMALL, 1),
                Reference::Latency(PING),
                "<= 1.20",
            ),
        ]
    }

    /// NFS over TCP (session 2), and what it is compared with.
    pub(super) fn tcp_cases(&self, bytes: WireBytes) -> Vec<Case> {
        let read = Reference::RawRate { server_is_sender: true };
        let write = Reference::RawRate { server_is_sender: false };
        let (mib, random) = (1 << 20, Test::RandomRead);
        vec![
            Case::new(
                "TCP: READ 1 MiB x 8",
                self.nfs(2, Test::Read, mib, 8),
                read,
                ">= 0.95, client <= 1.05",
            ),
            Case::new(
                "TCP: WRITE 1 MiB x 8",
                self.nfs(2, Test::Rewrite, mib, 8),
                write,
                ">= 0.95, server <= 1.10",
            ),
            Case::new(TCP_EXCHANGE, self.exchange(bytes), Reference::Nothing, ""),
            Case::new(
                "TCP: random READ 4 KiB x 16",
                self.nfs(2, random, SMALL, IN_FLIGHT),
                Reference::Operations(TCP_EXCHANGE),
                ">= 0.65, server <= 1.5, client <= 2.0",
            ),
            Case::new(TCP_PING, Measured::RawPing(self.ping_pong(bytes)), Reference::Nothing, ""),
            Case::new(
                "TCP: random READ 4 KiB x 1",
                self.nfs(2, random, SMALL, 1),
                Reference::Latency(TCP_PING),
                "<= 1.15",
            ),
        ]
    }
}

impl Compare {
    /// The first touch of memory: of the server's by a write, of the client's by a read.
    pub(super) fn cold_cases(&self, proto: Proto) -> [Case; 2] {
        let names = match proto {
            Proto::Rdma => ["first WRITE 1 MiB x 8, fresh export", "first READ 1 MiB x 8, fresh memory"],
            Proto::Tcp => {
                ["TCP: first WRITE 1 MiB x 8, fresh export", "TCP: first READ 1 MiB x 8, fresh memory"]
            }
        };
        let run = |test| Run { test, record: 1 << 20, outstanding: 8, passes: 1, random_ops: 0 };
        let raw = |server_is_sender| Reference::RawRate { server_is_sender };
        let [write, read] = [Test::Write, Test::Read].map(|test| Measured::First { proto, run: run(test) });
        [Case::new(names[0], write, raw(false), ""), Case::new(names[1], read, raw(true), "")]
    }

    /// The latency of a small READ with both ends polling.
    pub(super) fn polling_case(&self, proto: Proto) -> Case {
        let (name, reference) = match proto {
            Proto::Rdma => ("random READ 4 KiB x 1, polling", PING),
            Proto::Tcp => ("TCP: random READ 4 KiB x 1, polling", TCP_PING),
        };
        let measured = Measured::Polling { proto, run: self.run_of(Test::RandomRead, SMALL, 1) };
        Case::new(name, measured, Reference::Latency(reference), "")
    }
}

/// The transports of NFS, in the order of their cases.
pub(super) const PROTOS: [Proto; 2] = [Proto::Rdma, Proto::Tcp];
