//! Comparison of NFS with the raw limit of the machine. The runs are interleaved, so that other load affects
//! all of them.

use millrace_block::Transport;
use millrace_client::{Options, Proto, Url};

use crate::{
    At, BenchError, Figure,
    disk::{DiskRun, DiskSession},
    embedded::EmbeddedServer,
    iozone::{Iozone, Run, Session, Test, WORKING_SET},
    raw::{PingPong, RawPeer, Stream},
    table::{Align, Table},
    units::{grouped, short},
};

/// Payload of a frame that fits an Ethernet MTU of 1500.
const MTU_FRAME: usize = 1424;

/// Parameters of the comparison.
#[derive(Debug, Clone)]
pub struct Compare {
    /// Number of runs.
    pub runs: usize,
    /// Size of the file, and of the working set of the raw streams, in bytes.
    pub size: u64,
    /// Number of passes over the file in one run.
    pub passes: u64,
    /// Number of random reads in one run.
    pub random_ops: u64,
    /// Whether to measure NFS over TCP too.
    pub tcp: bool,
    /// Whether to measure a disk over iSER and over iSCSI too.
    pub disk: bool,
}

/// A row of the comparison.
struct Case {
    name: &'static str,
    measured: Measured,
    /// Reference of the ratio.
    reference: Reference,
    /// Target of the ratio, as text.
    wanted: &'static str,
    runs: Vec<Figure>,
}

enum Measured {
    RawStream,
    RawPing { pong: u64 },
    IwarpPing { pong: u64 },
    Nfs { session: usize, run: Run },
    Disk { session: usize, run: DiskRun },
}

#[derive(Clone, Copy, PartialEq)]
enum Reference {
    Nothing,
    /// Throughput relative to that of the raw stream.
    RawRate {
        server_is_sender: bool,
    },
    /// Throughput relative to that of the named case.
    Rate(&'static str),
    /// Latency relative to that of the named case.
    Latency(&'static str),
}

const STREAM: &str = "raw TCP stream";
const READ: &str = "READ 1 MiB x 8";
const WRITE: &str = "WRITE 1 MiB x 8";
const RANDOM: &str = "random READ 4 KiB x 16";
const PING: &str = "bare Send ping-pong 128+128 B";
const PING_4K: &str = "bare Send ping-pong 128+4096 B";

impl Compare {
    /// Measures all cases. `raw_peer` are the arguments with which this program runs as the raw peer. `each`
    /// is called with every figure.
    ///
    /// # Errors
    /// A process cannot be started, or a measurement fails.
    pub fn run(&self, raw_peer: &[&str], mut each: impl FnMut(&Figure)) -> Result<Comparison, BenchError> {
        let peer = RawPeer::start(raw_peer, At::LOOPBACK)?;
        let (server, disks) = self.start()?;
        let sessions = self.sessions(&server)?;
        let mut cases = self.cases();
        if self.disk {
            cases.extend(self.disk_cases());
        }
        for s in &sessions {
            s.prepare()?;
        }
        for _ in 0..self.runs.max(1) {
            for case in &mut cases {
                let figure = match &case.measured {
                    Measured::RawStream => {
                        let total = self.size * self.passes.max(1);
                        Stream { write: 1 << 20, total, working_set: self.size }.run(&peer)?
                    }
                    Measured::RawPing { pong } => self.ping_pong(*pong).run_tcp(&peer)?,
                    Measured::IwarpPing { pong } => self.ping_pong(*pong).run_rdma(&peer)?,
                    Measured::Nfs { session, run } => {
                        let session = sessions
                            .get(*session)
                            .ok_or_else(|| BenchError::Parameter("unknown session".into()))?;
                        session.run(run, Some(&server))?
                    }
                    Measured::Disk { session, run } => {
                        let unknown = || BenchError::Parameter("unknown session".into());
                        disks.get(*session).ok_or_else(unknown)?.run(run, &server)?
                    }
                };
                each(&figure);
                case.runs.push(figure);
            }
        }
        Ok(Comparison { cases })
    }

    /// Starts the server and, if the disk is measured, one session over iSER and one over iSCSI. The disk is
    /// filled.
    fn start(&self) -> Result<(EmbeddedServer, Vec<DiskSession>), BenchError> {
        if !self.disk {
            return Ok((EmbeddedServer::start(self.size * 2, &At::LOOPBACK)?, Vec::new()));
        }
        let server = EmbeddedServer::start_with_disk(self.size * 2, self.size, &At::LOOPBACK)?;
        let mut disks = Vec::new();
        for transport in DISKS {
            let mut options = millrace_block::Options::default();
            options.provider = At::LOOPBACK.provider;
            disks.push(DiskSession::open(server.disk_url(transport)?, options, WORKING_SET)?);
        }
        let fill =
            DiskRun { operations: self.size.div_ceil(DISK_RECORD as u64), ..self.disk_run(Test::Write) };
        disks.first().map(|disk| disk.run(&fill, &server)).transpose()?;
        Ok((server, disks))
    }

    fn ping_pong(&self, pong: u64) -> PingPong {
        PingPong { count: (self.random_ops / 4).clamp(100, 20_000), ping: 128, pong }
    }

    /// Opens one connection each for RDMA, RDMA with frames of the MTU, and TCP.
    fn sessions(&self, server: &EmbeddedServer) -> Result<Vec<Session>, BenchError> {
        let open = |proto, max_frame| {
            let url: Url = server
                .url(proto)
                .parse()
                .map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?;
            let options = Options::default().max_frame(max_frame).provider(At::LOOPBACK.provider);
            Session::open(Iozone { url, options, threads: 1, size: self.size })
        };
        let mut out = vec![open(Proto::Rdma, None)?, open(Proto::Rdma, Some(MTU_FRAME))?];
        if self.tcp {
            out.push(open(Proto::Tcp, None)?);
        }
        Ok(out)
    }

    fn cases(&self) -> Vec<Case> {
        let run = |test, record, outstanding| Run {
            test,
            record,
            outstanding,
            passes: self.passes,
            random_ops: if outstanding == 1 { self.random_ops / 4 } else { self.random_ops },
        };
        let nfs = |session, test, record, outstanding| Measured::Nfs {
            session,
            run: run(test, record, outstanding),
        };
        let read = Reference::RawRate { server_is_sender: true };
        let write = Reference::RawRate { server_is_sender: false };
        let case =
            |name, measured, reference, wanted| Case { name, measured, reference, wanted, runs: Vec::new() };
        let (mib, kib4) = (1 << 20, 4096);
        let mut out = vec![
            case(STREAM, Measured::RawStream, Reference::Nothing, ""),
            case(READ, nfs(0, Test::Read, mib, 8), read, ">= 0.95, CPU <= 1.15"),
            case(WRITE, nfs(0, Test::Rewrite, mib, 8), write, ">= 0.90, CPU <= 1.25"),
            // The server frames the data of READ, so only WRITE shows the effect of the small frames.
            case("WRITE 1 MiB x 8, MTU frames", nfs(1, Test::Rewrite, mib, 8), write, ">= 0.60"),
            case(RANDOM, nfs(0, Test::RandomRead, kib4, 16), Reference::Nothing, ">= 130,000/s, <= 3 us"),
            case("plain TCP ping-pong 128+128 B", Measured::RawPing { pong: 128 }, Reference::Nothing, ""),
            case(PING, Measured::IwarpPing { pong: 128 }, Reference::Nothing, ""),
            case(PING_4K, Measured::IwarpPing { pong: 4096 }, Reference::Nothing, ""),
            case(
                "random READ 4 KiB x 1",
                nfs(0, Test::RandomRead, kib4, 1),
                Reference::Latency(PING_4K),
                "<= 1.25",
            ),
        ];
        if self.tcp {
            out.push(case("TCP: READ 1 MiB x 8", nfs(2, Test::Read, mib, 8), read, ""));
            out.push(case("TCP: WRITE 1 MiB x 8", nfs(2, Test::Rewrite, mib, 8), write, ""));
            let random = nfs(2, Test::RandomRead, kib4, 16);
            out.push(case("TCP: random READ 4 KiB x 16", random, Reference::Nothing, ""));
        }
        out
    }
}

/// Bytes of a large operation of a disk.
const DISK_RECORD: usize = 512 << 10;
/// The transports of the disk, in the order of their sessions.
const DISKS: [Transport; 2] = [Transport::Iser, Transport::Tcp];

impl Compare {
    /// Large operations of a disk.
    fn disk_run(&self, test: Test) -> DiskRun {
        DiskRun {
            test,
            record: DISK_RECORD,
            outstanding: 8,
            operations: self.passes.max(1) * self.size / DISK_RECORD as u64,
            span: self.size,
            memory: WORKING_SET.min(usize::try_from(self.size).unwrap_or(usize::MAX)),
            flush: true,
        }
    }

    /// The disk over iSER, compared with NFS/RDMA, and over iSCSI, compared with the raw stream.
    fn disk_cases(&self) -> Vec<Case> {
        let large = |session, test| Measured::Disk { session, run: self.disk_run(test) };
        let random = |session| {
            let (outstanding, operations, memory) = (16, self.random_ops, 0);
            let run =
                DiskRun { record: 4096, outstanding, operations, memory, ..self.disk_run(Test::RandomRead) };
            Measured::Disk { session, run }
        };
        let raw = |server_is_sender| Reference::RawRate { server_is_sender };
        let case =
            |name, measured, reference, wanted| Case { name, measured, reference, wanted, runs: Vec::new() };
        vec![
            case("iSER: READ 512 KiB x 8", large(0, Test::Read), Reference::Rate(READ), ">= 0.95"),
            case("iSER: WRITE 512 KiB x 8", large(0, Test::Write), Reference::Rate(WRITE), ">= 0.95"),
            case("iSER: random READ 4 KiB x 16", random(0), Reference::Rate(RANDOM), ""),
            case("iSCSI: READ 512 KiB x 8", large(1, Test::Read), raw(true), ">= 0.90"),
            case("iSCSI: WRITE 512 KiB x 8", large(1, Test::Write), raw(false), ">= 0.90"),
            case("iSCSI: random READ 4 KiB x 16", random(1), Reference::Rate(RANDOM), ""),
        ]
    }
}

/// Results of a comparison.
pub struct Comparison {
    cases: Vec<Case>,
}

impl Comparison {
    fn median(&self, name: &str) -> Option<Figure> {
        self.cases.iter().find(|c| c.name == name).and_then(|c| Figure::median(&c.runs))
    }

    /// Table of medians and ratios.
    pub fn table(&self) -> Table {
        let mut t = Table::new(&[
            ("case", Align::Left),
            ("MB/s", Align::Right),
            ("ops/s", Align::Right),
            ("p50 us", Align::Right),
            ("client s/GB", Align::Right),
            ("server s/GB", Align::Right),
            ("server us/op", Align::Right),
            ("ratio", Align::Right),
            ("CPU ratio", Align::Right),
            ("wanted", Align::Left),
        ]);
        let raw = self.median(STREAM).unwrap_or_default();
        let show = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
        let over = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        for case in &self.cases {
            let Some(f) = Figure::median(&case.runs) else { continue };
            let (ratio, cpu) = match case.reference {
                Reference::Nothing => (None, None),
                Reference::RawRate { server_is_sender } => {
                    // The server sends the data of READ, so compare its CPU time with that of the raw sender.
                    let raw_cpu =
                        if server_is_sender { raw.client_cpu_s_per_gb } else { raw.server_cpu_s_per_gb };
                    (over(f.mb_per_s, raw.mb_per_s), over(f.server_cpu_s_per_gb, raw_cpu))
                }
                Reference::Rate(name) => {
                    let of = self.median(name).unwrap_or_default();
                    (over(f.mb_per_s, of.mb_per_s), over(f.server_cpu_s_per_gb, of.server_cpu_s_per_gb))
                }
                Reference::Latency(name) => (over(f.p50_us, self.median(name).and_then(|p| p.p50_us)), None),
            };
            let bulk = f.record >= 1 << 16;
            t.row([
                case.name.to_owned(),
                show(f.mb_per_s),
                if bulk {
                    "-".into()
                } else {
                    f.ops_per_s.map_or_else(|| "-".into(), |v| grouped(v.round() as u64))
                },
                show(f.p50_us),
                show(f.client_cpu_s_per_gb.filter(|_| bulk)),
                show(f.server_cpu_s_per_gb.filter(|_| bulk)),
                show(f.server_cpu_us_per_op.filter(|_| !bulk)),
                show(ratio),
                show(cpu),
                case.wanted.to_owned(),
            ]);
        }
        t
    }
}
