//! Small READs over many connections of one process: processor time of the server for each, and memory of both ends for
//! each connection. They are compared with an exchange of the same bytes over as many plain TCP connections.
//!
//! All connections are driven by one thread, so that the client's processor time does not depend on switches between
//! threads. The memory of a connection is the growth of resident memory, divided by the number of connections.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream, stream::FuturesUnordered};
use millrace_client::{
    Options, Proto, Url,
    handles::Client,
    ops::{FileHandle, StableHow},
};
use millrace_program::{
    cpu,
    table::{Align, Table},
    units::{cpu_us_per_op, grouped, mb_per_s, short},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use serde::Serialize;

use crate::{
    At, BenchError, Figure, VERSION,
    embedded::EmbeddedServer,
    no_halt,
    placement::{Placement, Processors},
    random::Random,
    raw::{Exchange, RawPeer},
    resident,
    stats::Latencies,
    wire_bytes::WireBytes,
};

/// Bytes of a READ.
const RECORD: usize = 4096;
/// Bytes of the file, which all connections read.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes of a WRITE that fills the file.
const FILL_BYTES: usize = 1 << 20;
/// Connections that are established at once.
const CONNECTING: usize = 16;
/// Time without calls before the memory of idle connections is measured.
const SETTLE: Duration = Duration::from_millis(500);
/// Memory of the server for its clients, in bytes: enough for 1,000 connections over RDMA.
const SERVER_MEMORY: u64 = 16 << 30;

/// Parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// The transport.
    pub proto: Proto,
    /// Number of connections.
    pub connections: usize,
    /// READs in flight on each connection.
    pub depth: usize,
    /// READs on all connections together; at least one for each in flight.
    pub reads: u64,
}

/// The figures of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectionsFigure {
    /// The READs, or the exchange (`workload` is `raw`); `threads` is 1.
    #[serde(flatten)]
    pub figure: Figure,
    #[serde(flatten)]
    processors: Processors,
    /// Number of connections.
    pub connections: usize,
    /// The memory of each connection; not measured for the exchange.
    #[serde(flatten)]
    pub memory: ConnectionMemory,
}

/// The memory of a connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConnectionMemory {
    /// Growth of the server's resident memory for each idle connection, in bytes.
    pub server_bytes_per_idle_connection: Option<f64>,
    /// Growth of the client's resident memory for each idle connection, in bytes.
    pub client_bytes_per_idle_connection: Option<f64>,
    /// As [`Self::server_bytes_per_idle_connection`], after the READs.
    pub server_bytes_per_connection: Option<f64>,
    /// As [`Self::client_bytes_per_idle_connection`], after the READs.
    pub client_bytes_per_connection: Option<f64>,
}

impl ConnectionsFigure {
    /// The figures as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn failed(e: millrace_client::Error) -> BenchError {
    BenchError::Client(e.to_string())
}

/// Resident memory of both ends in bytes.
#[derive(Clone, Copy)]
struct Resident {
    server: Option<u64>,
    client: Option<u64>,
}

impl Resident {
    fn of(server: &EmbeddedServer) -> Self {
        Self { server: resident::now(server.pid()), client: resident::now(std::process::id()) }
    }

    /// The growth since `earlier` of server and client, for each of `connections`.
    fn for_each(self, earlier: Self, connections: usize) -> [Option<f64>; 2] {
        let growth = |now: Option<u64>, before: Option<u64>| {
            Some(now?.saturating_sub(before?) as f64 / connections.max(1) as f64)
        };
        [growth(self.server, earlier.server), growth(self.client, earlier.client)]
    }
}

impl Connections {
    /// Starts a server, opens the connections and measures, on separate cores if this thread may use two: an exchange
    /// of the same bytes over plain TCP, and then the READs. `raw_peer` are the arguments with which this program runs as
    /// the raw peer.
    ///
    /// # Errors
    /// A process does not start, refuses a connection, or a call fails.
    pub fn run(&self, raw_peer: &[&str]) -> Result<[ConnectionsFigure; 2], BenchError> {
        let placement = Placement::separate();
        let peer = placement.at_server(|| RawPeer::start(raw_peer, At::LOOPBACK))?;
        let memory = [format!("--memory={SERVER_MEMORY}")];
        let server =
            placement.at_server(|| EmbeddedServer::start_with(FILE_BYTES, &At::LOOPBACK, None, &memory))?;
        let exchange = (self.exchange(&peer, &server)?, ConnectionMemory::default());
        let reads = self.reads(&server)?;
        Ok([exchange, reads].map(|(figure, memory)| ConnectionsFigure {
            figure,
            processors: placement.processors().clone(),
            connections: self.connections,
            memory,
        }))
    }

    fn exchange(&self, peer: &RawPeer, server: &EmbeddedServer) -> Result<Figure, BenchError> {
        let bytes = WireBytes::of_read(server, self.proto, RECORD)?;
        let exchange = Exchange {
            count: self.reads,
            request: bytes.call,
            reply: bytes.reply,
            depth: self.depth.max(1) as u64,
            connections: self.connections.max(1) as u64,
        };
        exchange.run(peer)
    }

    fn reads(&self, server: &EmbeddedServer) -> Result<(Figure, ConnectionMemory), BenchError> {
        let url: Url = server.url(self.proto).parse().map_err(failed)?;
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(BenchError::io("create a runtime"))?;
        rt.block_on(self.measure(server, &url))
    }

    async fn measure(
        &self,
        server: &EmbeddedServer,
        url: &Url,
    ) -> Result<(Figure, ConnectionMemory), BenchError> {
        let connections = self.connections.max(1);
        let filler = connect(url).await?;
        let file = fill(&filler).await?;
        let empty = Resident::of(server);
        let connecting = stream::iter(0..connections).map(|_| connect(url)).buffer_unordered(CONNECTING);
        let clients: Vec<Client> =
            connecting.collect::<Vec<_>>().await.into_iter().collect::<Result<_, _>>()?;
        tokio::time::sleep(SETTLE).await;
        let idle = Resident::of(server).for_each(empty, connections);
        let figure = self.read(server, &clients, file).await?;
        tokio::time::sleep(SETTLE).await;
        let used = Resident::of(server).for_each(empty, connections);
        let memory = ConnectionMemory {
            server_bytes_per_idle_connection: idle[0],
            client_bytes_per_idle_connection: idle[1],
            server_bytes_per_connection: used[0],
            client_bytes_per_connection: used[1],
        };
        Ok((figure, memory))
    }

    /// Reads at random offsets on all connections.
    async fn read(
        &self,
        server: &EmbeddedServer,
        clients: &[Client],
        file: FileHandle,
    ) -> Result<Figure, BenchError> {
        let callers = (clients.len() * self.depth.max(1)) as u64;
        let each = self.reads.div_ceil(callers).max(1);
        let mut latencies = Latencies::new();
        let server_before = server.cpu();
        let (start, before) = (Instant::now(), cpu::own());
        let mut flights: FuturesUnordered<_> = (0..callers)
            .map(|n| {
                let client = &clients[n as usize % clients.len()];
                read_records(client, file, Random::new(n), each)
            })
            .collect();
        while let Some(read) = flights.next().await {
            read?.into_iter().for_each(|latency| latencies.record(latency));
        }
        let (took, client) = (start.elapsed(), cpu::own() - before);
        let server = server.cpu().zip(server_before).map(|(after, before)| after - before);
        let reads = each * callers;
        Ok(Figure {
            workload: "connections".into(),
            test: "random-read".into(),
            proto: self.proto.to_string(),
            provider: (self.proto == Proto::Rdma).then(|| At::LOOPBACK.provider.to_string()),
            threads: 1,
            no_halt: Some(no_halt::held()),
            record: RECORD as u64,
            outstanding: self.depth.max(1),
            mb_per_s: Some(mb_per_s(reads * RECORD as u64, took)),
            ops_per_s: Some(reads as f64 / took.as_secs_f64()),
            p50_us: Some(latencies.percentile_us(50.0)),
            p99_us: Some(latencies.percentile_us(99.0)),
            client_cpu_us_per_op: Some(cpu_us_per_op(client, reads)),
            server_cpu_us_per_op: server.map(|cpu| cpu_us_per_op(cpu, reads)),
            ..Figure::default()
        })
    }
}

async fn connect(url: &Url) -> Result<Client, BenchError> {
    let options = Options::default().provider(At::LOOPBACK.provider).vers(Some(VERSION));
    Client::connect(TokioRuntime::current(), url, options).await.map_err(failed)
}

/// Creates the file.
async fn fill(client: &Client) -> Result<FileHandle, BenchError> {
    let file = client.create_file("connections", 0o600).await.map_err(failed)?.handle();
    let mut data = client.arena().alloc(FILL_BYTES)?;
    data.fill(0x5a);
    let data = data.freeze();
    for offset in (0..FILE_BYTES).step_by(FILL_BYTES) {
        client.write_from(file, offset, data.clone().into(), StableHow::Unstable).await.map_err(failed)?;
    }
    client.commit(file, 0, 0).await.map_err(failed)?;
    Ok(file)
}

/// Reads `count` records, one at a time.
async fn read_records(
    client: &Client,
    file: FileHandle,
    mut random: Random,
    count: u64,
) -> Result<Vec<Duration>, BenchError> {
    let mut buffer = client.arena().alloc(RECORD)?;
    let mut latencies = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let sent = Instant::now();
        let offset = random.below(FILE_BYTES / RECORD as u64) * RECORD as u64;
        let read = client.read_into(file, offset, buffer).await.map_err(failed)?;
        if read.count != RECORD {
            return Err(BenchError::Client(format!("READ returned {} of {RECORD} bytes", read.count)));
        }
        latencies.push(sent.elapsed());
        buffer = read.buffer;
    }
    Ok(latencies)
}

/// The conditions, and a table with a line for each measurement.
pub fn report(figures: &[ConnectionsFigure]) -> String {
    let placement = figures.first().map(|of| of.processors.condition()).unwrap_or_default();
    format!(
        "Random reads of 4 KiB on all connections, memory export, loopback, client with one thread.\n{}\n{placement}\n\n{}",
        no_halt::condition(),
        table(figures)
    )
}

fn table(figures: &[ConnectionsFigure]) -> Table {
    let right = [
        "connections",
        "in flight each",
        "ops/s",
        "p50 us",
        "p99 us",
        "client us/op",
        "server us/op",
        "server KiB idle",
        "server KiB used",
        "client KiB idle",
        "client KiB used",
    ];
    let columns = right.into_iter().map(|name| (name, Align::Right));
    let mut t = Table::new(&[("case", Align::Left)].into_iter().chain(columns).collect::<Vec<_>>());
    let cell = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
    let kib = |v: Option<f64>| cell(v.map(|bytes| bytes / 1024.0));
    for of in figures {
        let f = &of.figure;
        let case = match f.workload.as_str() {
            "raw" => format!("plain TCP {}", f.test),
            _ => format!("{} {}", f.test, f.proto),
        };
        t.row([
            case,
            grouped(of.connections as u64),
            f.outstanding.to_string(),
            f.ops_per_s.map_or_else(|| "-".into(), |v| grouped(v.round() as u64)),
            cell(f.p50_us),
            cell(f.p99_us),
            cell(f.client_cpu_us_per_op),
            cell(f.server_cpu_us_per_op),
            kib(of.memory.server_bytes_per_idle_connection),
            kib(of.memory.server_bytes_per_connection),
            kib(of.memory.client_bytes_per_idle_connection),
            kib(of.memory.client_bytes_per_connection),
        ]);
    }
    t
}
