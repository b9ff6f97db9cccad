//! NFS beside the raw limit of the machine, in turns, so that its noise meets all of them alike.

use millrace_client::{Options, Proto, Url};

use crate::{
    At, BenchError, Figure,
    embedded::EmbeddedServer,
    iozone::{Iozone, Run, Session, Test},
    raw::{PingPong, RawPeer, Stream},
    table::{Align, Table},
    units::{grouped, short},
};

/// Payload of a frame that fits an Ethernet MTU of 1500.
const MTU_FRAME: usize = 1424;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Compare {
    /// Runs of everything.
    pub runs: usize,
    /// Bytes of the file, and of the working set of the raw streams.
    pub size: u64,
    /// How often the file is gone through in one run.
    pub passes: u64,
    /// Random reads of one run.
    pub random_ops: u64,
    /// Measure NFS over TCP too.
    pub tcp: bool,
}

/// One measured thing.
struct Case {
    name: &'static str,
    what: What,
    /// What it is held against.
    against: Against,
    /// The target for the ratio, as text.
    wanted: &'static str,
    runs: Vec<Figure>,
}

enum What {
    RawStream,
    RawPing { pong: u64 },
    IwarpPing { pong: u64 },
    Nfs { session: usize, run: Run },
}

#[derive(Clone, Copy, PartialEq)]
enum Against {
    Nothing,
    /// MB/s against the raw stream's.
    RawRate {
        server_is_sender: bool,
    },
    /// Latency against the named case's.
    Latency(&'static str),
}

const STREAM: &str = "raw TCP stream";
const PING: &str = "bare Send ping-pong 128+128 B";
const PING_4K: &str = "bare Send ping-pong 128+4096 B";

impl Compare {
    /// Measures everything; `raw_peer` are the arguments that make this program the raw peer. `each` sees every
    /// figure as it comes.
    ///
    /// # Errors
    /// When anything cannot be started or fails.
    pub fn run(&self, raw_peer: &[&str], mut each: impl FnMut(&Figure)) -> Result<Comparison, BenchError> {
        let peer = RawPeer::start(raw_peer, At::LOOPBACK)?;
        let server = EmbeddedServer::start(self.size * 2, &At::LOOPBACK)?;
        let sessions = self.sessions(&server)?;
        let mut cases = self.cases();
        for s in &sessions {
            s.prepare()?;
        }
        for _ in 0..self.runs.max(1) {
            for case in &mut cases {
                let figure = match &case.what {
                    What::RawStream => {
                        let total = self.size * self.passes.max(1);
                        Stream { write: 1 << 20, total, working_set: self.size }.run(&peer)?
                    }
                    What::RawPing { pong } => self.game(*pong).run_tcp(&peer)?,
                    What::IwarpPing { pong } => self.game(*pong).run_rdma(&peer)?,
                    What::Nfs { session, run } => {
                        let session = sessions
                            .get(*session)
                            .ok_or_else(|| BenchError::Parameter("no such session".into()))?;
                        session.run(run, Some(&server))?
                    }
                };
                each(&figure);
                case.runs.push(figure);
            }
        }
        Ok(Comparison { cases })
    }

    fn game(&self, pong: u64) -> PingPong {
        PingPong { count: (self.random_ops / 4).clamp(100, 20_000), ping: 128, pong }
    }

    /// One connection each: RDMA, RDMA framed by MTU, and TCP.
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
        let nfs =
            |session, test, record, outstanding| What::Nfs { session, run: run(test, record, outstanding) };
        let read = Against::RawRate { server_is_sender: true };
        let write = Against::RawRate { server_is_sender: false };
        let case = |name, what, against, wanted| Case { name, what, against, wanted, runs: Vec::new() };
        let (mib, kib4) = (1 << 20, 4096);
        let mut out = vec![
            case(STREAM, What::RawStream, Against::Nothing, ""),
            case("READ 1 MiB x 8", nfs(0, Test::Read, mib, 8), read, ">= 0.95, CPU <= 1.15"),
            case("WRITE 1 MiB x 8", nfs(0, Test::Rewrite, mib, 8), write, ">= 0.90, CPU <= 1.25"),
            // A READ's data is framed by the server, so that only the WRITE shows what a peer's small frames cost.
            case("WRITE 1 MiB x 8, MTU frames", nfs(1, Test::Rewrite, mib, 8), write, ">= 0.60"),
            case(
                "random READ 4 KiB x 16",
                nfs(0, Test::RandomRead, kib4, 16),
                Against::Nothing,
                ">= 130,000/s, <= 3 us",
            ),
            case("plain TCP ping-pong 128+128 B", What::RawPing { pong: 128 }, Against::Nothing, ""),
            case(PING, What::IwarpPing { pong: 128 }, Against::Nothing, ""),
            case(PING_4K, What::IwarpPing { pong: 4096 }, Against::Nothing, ""),
            case(
                "random READ 4 KiB x 1",
                nfs(0, Test::RandomRead, kib4, 1),
                Against::Latency(PING_4K),
                "<= 1.25",
            ),
        ];
        if self.tcp {
            out.push(case("TCP: READ 1 MiB x 8", nfs(2, Test::Read, mib, 8), read, ""));
            out.push(case("TCP: WRITE 1 MiB x 8", nfs(2, Test::Rewrite, mib, 8), write, ""));
            let random = nfs(2, Test::RandomRead, kib4, 16);
            out.push(case("TCP: random READ 4 KiB x 16", random, Against::Nothing, ""));
        }
        out
    }
}

/// What was measured.
pub struct Comparison {
    cases: Vec<Case>,
}

impl Comparison {
    fn median(&self, name: &str) -> Option<Figure> {
        self.cases.iter().find(|c| c.name == name).and_then(|c| Figure::median(&c.runs))
    }

    /// Medians and ratios.
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
            let (ratio, cpu) = match case.against {
                Against::Nothing => (None, None),
                Against::RawRate { server_is_sender } => {
                    // For a READ the server sends: its cost stands beside the raw sender's.
                    let raw_cpu =
                        if server_is_sender { raw.client_cpu_s_per_gb } else { raw.server_cpu_s_per_gb };
                    (over(f.mb_per_s, raw.mb_per_s), over(f.server_cpu_s_per_gb, raw_cpu))
                }
                Against::Latency(name) => (over(f.p50_us, self.median(name).and_then(|p| p.p50_us)), None),
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
