//! Comparison of NFS with the raw limit of the machine. Each run of a case follows a run of its reference, so that
//! other load affects both. Client and server run on separate cores.

mod case;
mod disk;
mod report;

use std::time::Duration;

use millrace_client::{Options, Proto, Url};

use crate::{
    At, BenchError, Figure,
    disk::DiskSession,
    embedded::EmbeddedServer,
    iozone::{Iozone, Session},
    placement::Placement,
    raw::{RawPeer, Stream},
    wire_bytes::WireBytes,
};
use case::{Case, Measured, PROTOS, SMALL};
pub use report::Comparison;

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
    /// Whether to measure the first touch of memory too.
    pub cold: bool,
    /// Whether to measure a disk over iSER and over iSCSI too.
    pub disk: bool,
    /// How long both ends poll in additional cases with one small READ in flight; zero: no such cases.
    pub busy_poll: Duration,
}

impl Compare {
    /// Measures all cases, with client and server on separate cores if this thread may use two. `raw_peer` are the
    /// arguments with which this program runs as the raw peer. `each` is called with every figure.
    ///
    /// # Errors
    /// A process cannot be started, or a measurement fails.
    pub fn run(&self, raw_peer: &[&str], mut each: impl FnMut(&Figure)) -> Result<Comparison, BenchError> {
        let placement = Placement::separate();
        let peer = placement.at_server(|| RawPeer::start(raw_peer, At::LOOPBACK))?;
        let server = placement.at_server(|| self.start())?;
        let small_read = self.small_read(&server)?;
        let disks = if self.disk { self.open_disks(&server)? } else { Vec::new() };
        let sessions = self.sessions(&server)?;
        for s in &sessions {
            s.prepare()?;
        }
        let polling = (!self.busy_poll.is_zero()).then(|| self.polling(&placement)).transpose()?;
        let compare = self;
        let mut ends =
            Ends { compare, placement: &placement, peer, sessions, polling, disks, fresh: None, server };
        let mut cases = self.cases(&small_read);
        for _ in 0..self.runs.max(1) {
            for at in 0..cases.len() {
                let Some(reference) = cases.get(at).and_then(|case| case.reference.case()) else { continue };
                let missing = || BenchError::Parameter(format!("no case is called {reference}"));
                let of = cases.iter_mut().find(|case| case.name == reference).ok_or_else(missing)?;
                let of = ends.run(of, &mut each)?;
                if let Some(case) = cases.get_mut(at) {
                    ends.run(case, &mut each)?;
                    case.beside.push(of);
                }
            }
            ends.fresh = None;
        }
        let small_read = small_read.into_iter().map(|(proto, bytes)| (proto.to_string(), bytes)).collect();
        drop(ends);
        Ok(Comparison { cases, small_read, processors: placement.processors().clone() })
    }

    /// Starts the server, with a disk if it is measured.
    fn start(&self) -> Result<EmbeddedServer, BenchError> {
        match self.disk {
            true => EmbeddedServer::start_with_disk(self.size * 2, self.size, &At::LOOPBACK),
            false => EmbeddedServer::start(self.size * 2, &At::LOOPBACK),
        }
    }

    /// The bytes of a small READ, for each transport that is measured.
    fn small_read(&self, server: &EmbeddedServer) -> Result<Vec<(Proto, WireBytes)>, BenchError> {
        let protos = PROTOS.into_iter().filter(|proto| self.tcp || *proto == Proto::Rdma);
        protos.map(|proto| Ok((proto, WireBytes::of_read(server, proto, SMALL)?))).collect()
    }

    fn cases(&self, small_read: &[(Proto, WireBytes)]) -> Vec<Case> {
        let mut cases = Vec::new();
        for (proto, bytes) in small_read {
            cases.extend(match proto {
                Proto::Rdma => self.rdma_cases(*bytes),
                Proto::Tcp => self.tcp_cases(*bytes),
            });
            if !self.busy_poll.is_zero() {
                cases.push(self.polling_case(*proto));
            }
            if self.cold {
                cases.extend(self.cold_cases(*proto));
            }
        }
        if self.disk {
            cases.extend(self.disk_cases());
        }
        cases
    }

    /// Opens one connection each for RDMA, RDMA with frames of the MTU, and TCP.
    fn sessions(&self, server: &EmbeddedServer) -> Result<Vec<Session>, BenchError> {
        let mut out = vec![
            self.open(server, Proto::Rdma, options())?,
            self.open(server, Proto::Rdma, options().max_frame(Some(MTU_FRAME)))?,
        ];
        if self.tcp {
            out.push(self.open(server, Proto::Tcp, options())?);
        }
        Ok(out)
    }

    fn open(&self, server: &EmbeddedServer, proto: Proto, options: Options) -> Result<Session, BenchError> {
        let url: Url = server
            .url(proto)
            .parse()
            .map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?;
        Session::open(Iozone { url, options, threads: 1, size: self.size })
    }

    /// A server whose memory is untouched, with a connection.
    fn fresh(&self, placement: &Placement, proto: Proto) -> Result<(Session, EmbeddedServer), BenchError> {
        let server = placement.at_server(|| EmbeddedServer::start(self.size, &At::LOOPBACK))?;
        Ok((self.open(&server, proto, options())?, server))
    }

    /// A server and connections that poll.
    fn polling(&self, placement: &Placement) -> Result<Polling, BenchError> {
        let arguments = ["--busy-poll".to_owned(), self.busy_poll.as_micros().to_string()];
        let start = || EmbeddedServer::start_with(self.size, &At::LOOPBACK, None, &arguments);
        let server = placement.at_server(start)?;
        let options = || options().busy_poll(self.busy_poll);
        let rdma = self.open(&server, Proto::Rdma, options())?;
        rdma.prepare()?;
        let tcp = self.tcp.then(|| self.open(&server, Proto::Tcp, options())).transpose()?;
        tcp.iter().try_for_each(Session::prepare)?;
        Ok(Polling { rdma, tcp, server })
    }
}

fn options() -> Options {
    Options::default().provider(At::LOOPBACK.provider)
}

/// A server that polls, and connections that do. A session ends before its server.
struct Polling {
    rdma: Session,
    tcp: Option<Session>,
    server: EmbeddedServer,
}

/// What the cases measure. A session ends before its server.
struct Ends<'a> {
    compare: &'a Compare,
    placement: &'a Placement,
    peer: RawPeer,
    sessions: Vec<Session>,
    polling: Option<Polling>,
    disks: Vec<DiskSession>,
    /// The export of the last first write.
    fresh: Option<(Session, EmbeddedServer)>,
    server: EmbeddedServer,
}

impl Ends<'_> {
    /// Runs a case once, and adds the figure to its runs.
    fn run(&mut self, case: &mut Case, each: &mut impl FnMut(&Figure)) -> Result<Figure, BenchError> {
        let figure = self.measure(case.measured)?;
        each(&figure);
        case.runs.push(figure.clone());
        Ok(figure)
    }

    fn measure(&mut self, measured: Measured) -> Result<Figure, BenchError> {
        let unknown = || BenchError::Parameter("unknown session".into());
        match measured {
            Measured::RawStream => {
                let (size, passes) = (self.compare.size, self.compare.passes.max(1));
                Stream { write: 1 << 20, total: size * passes, working_set: size }.run(&self.peer)
            }
            Measured::RawPing(ping_pong) => ping_pong.run_tcp(&self.peer),
            Measured::IwarpPing(ping_pong) => ping_pong.run_rdma(&self.peer),
            Measured::Exchange(exchange) => exchange.run(&self.peer),
            Measured::Nfs { session, run } => {
                self.sessions.get(session).ok_or_else(unknown)?.run(&run, Some(&self.server))
            }
            Measured::First { proto, run } => {
                if run.test.writes() {
                    self.fresh = Some(self.compare.fresh(self.placement, proto)?);
                }
                let missing = || BenchError::Parameter("no fresh export".into());
                let (session, server) = self.fresh.as_ref().ok_or_else(missing)?;
                session.run(&run, Some(server))
            }
            Measured::Polling { proto, run } => {
                let Polling { rdma, tcp, server } = self.polling.as_ref().ok_or_else(unknown)?;
                let session = if proto == Proto::Tcp { tcp.as_ref() } else { Some(rdma) };
                session.ok_or_else(unknown)?.run(&run, Some(server))
            }
            Measured::Disk { session, run } => {
                self.disks.get(session).ok_or_else(unknown)?.run(&run, &self.server)
            }
        }
    }
}
