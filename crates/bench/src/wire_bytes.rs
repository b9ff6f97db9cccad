//! The bytes of a READ on a TCP connection, counted between a client and a server.
//!
//! With the provider `iwarp`, RDMA uses a TCP connection too, and its bytes include the headers and trailers of FPDUs.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use millrace_client::{Options, Proto, Url};

use crate::{
    At, BenchError,
    embedded::EmbeddedServer,
    iozone::{Iozone, Run, Session, Test},
};

/// The bytes of one operation on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireBytes {
    /// Bytes that the client sends.
    pub call: u64,
    /// Bytes that the server sends.
    pub reply: u64,
}

impl WireBytes {
    /// Counts the bytes of a READ of `record` bytes from `server`.
    ///
    /// # Errors
    /// A connection or an operation fails.
    pub fn of_read(server: &EmbeddedServer, proto: Proto, record: usize) -> Result<Self, BenchError> {
        const READS: u64 = 64;
        let url: Url = server
            .url(proto)
            .parse()
            .map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?;
        let port = url.port.ok_or_else(|| BenchError::Parameter("the server's URL has no port".into()))?;
        let relay = Relay::start(SocketAddr::new(At::LOOPBACK.address, port))?;
        let options = Options::default().provider(At::LOOPBACK.provider);
        let url = Url { port: Some(relay.address.port()), ..url };
        let session = Session::open(Iozone { url, options, threads: 1, size: 16 * record as u64 })?;
        session.prepare()?;
        let run = Run { test: Test::RandomRead, record, outstanding: 1, passes: 1, random_ops: READS };
        let before = relay.forwarded();
        session.run(&run, None)?;
        let after = relay.forwarded();
        Ok(Self { call: (after.call - before.call) / READS, reply: (after.reply - before.reply) / READS })
    }
}

/// Forwards connections to a server, and counts their bytes.
struct Relay {
    address: SocketAddr,
    forwarded: Arc<[AtomicU64; 2]>,
    stopped: Arc<AtomicBool>,
}

impl Relay {
    fn start(server: SocketAddr) -> Result<Self, BenchError> {
        let io = || BenchError::io("relay a connection");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io())?;
        let address = listener.local_addr().map_err(io())?;
        let forwarded = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let stopped = Arc::new(AtomicBool::new(false));
        let (counts, stop) = (Arc::clone(&forwarded), Arc::clone(&stopped));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(e) = relay(client, server, &counts) {
                    tracing::debug!("relayed connection ended: {e}");
                }
            }
        });
        Ok(Self { address, forwarded, stopped })
    }

    fn forwarded(&self) -> WireBytes {
        let [call, reply] = &*self.forwarded;
        WireBytes { call: call.load(Ordering::Relaxed), reply: reply.load(Ordering::Relaxed) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address)); // Ends the wait for a connection.
    }
}

/// Forwards a connection in two threads, which end with it.
fn relay(client: TcpStream, server: SocketAddr, counts: &Arc<[AtomicU64; 2]>) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let directions = [(client.try_clone()?, server.try_clone()?), (server, client)];
    for (direction, (from, to)) in directions.into_iter().enumerate() {
        let counts = Arc::clone(counts);
        std::thread::spawn(move || {
            forward(&from, &to, counts.get(direction));
            // Fails only if the connection has ended.
            drop(to.shutdown(Shutdown::Write));
        });
    }
    Ok(())
}

fn forward(mut from: &TcpStream, mut to: &TcpStream, count: Option<&AtomicU64>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        // Counted first, so that the other end never has bytes that are not counted.
        count.map(|count| count.fetch_add(n as u64, Ordering::Relaxed));
        if to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}
