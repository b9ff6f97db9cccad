//! The raw limit of this machine: plain sockets between two processes, without an upper protocol.
//!
//! The measuring process starts this program as its peer ([`serve_peer`]) and sends it requests over the
//! socket: to receive a stream, to answer pings, or to answer requests of which several are in flight.

mod exchange;
mod peer;
mod pingpong;
mod provider;
mod stream;

use std::{
    io::Read,
    net::{SocketAddr, TcpStream},
};

use millrace_runtime::tokio_rt::prefer_loopback_congestion_control;

pub use exchange::Exchange;
pub use peer::serve_peer;
pub use pingpong::PingPong;
pub use stream::Stream;

use crate::{At, BenchError, child::Peer, child::value};

/// A running peer and its addresses.
pub struct RawPeer {
    tcp: SocketAddr,
    rdma: SocketAddr,
    at: At,
    // Killed when dropped.
    _process: Peer,
}

impl RawPeer {
    /// Starts this program with `args`, plus `--address` and `--provider` for `at`. The arguments must make
    /// it call [`serve_peer`].
    ///
    /// # Errors
    /// The peer does not start.
    pub fn start(args: &[&str], at: At) -> Result<Self, BenchError> {
        at.choose()?;
        let arguments = at.arguments();
        let mut process = Peer::start(args.iter().copied().chain(arguments.iter().map(String::as_str)))?;
        let line = process.line()?;
        let addr = |key| {
            let addr = value(&line, key).and_then(|a| a.parse().ok());
            addr.ok_or_else(|| BenchError::Peer(format!("unexpected first line '{line}'")))
        };
        Ok(Self { tcp: addr("tcp")?, rdma: addr("rdma")?, at, _process: process })
    }

    fn connect(&self) -> Result<TcpStream, BenchError> {
        connect(self.tcp)
    }
}

fn connect(addr: SocketAddr) -> Result<TcpStream, BenchError> {
    let s = TcpStream::connect(addr).map_err(BenchError::io("connect to the peer process"))?;
    socket_settings(&s)?;
    Ok(s)
}

/// Reads a number that the peer process sends: a port, or its processor time in nanoseconds.
fn read_number(s: &mut TcpStream) -> Result<u64, BenchError> {
    let mut number = [0; 8];
    s.read_exact(&mut number).map_err(BenchError::io("read from the peer process"))?;
    Ok(u64::from_be_bytes(number))
}

/// The socket settings of the iWARP provider: TCP_NODELAY, and its congestion control for loopback. Buffer
/// sizes are left to the kernel.
fn socket_settings(s: &TcpStream) -> Result<(), BenchError> {
    if let Ok(peer) = s.peer_addr() {
        prefer_loopback_congestion_control(s, peer);
    }
    s.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))
}

/// A request to the peer, 48 bytes on the socket: kind and five numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// Receive `total` bytes into records of a working set of `working_set` bytes, used in rotation.
    Stream { total: u64, working_set: u64 },
    /// Answer `count` messages of `ping` bytes with `pong` bytes each.
    PingPong { count: u64, ping: u64, pong: u64 },
    /// Accept connections on another port, and answer requests.
    Exchange(Exchange),
}

impl Request {
    const BYTES: usize = 48;

    fn encode(self) -> [u8; Self::BYTES] {
        let words = match self {
            Self::Stream { total, working_set } => [1, total, working_set, 0, 0, 0],
            Self::PingPong { count, ping, pong } => [2, count, ping, pong, 0, 0],
            Self::Exchange(Exchange { count, request, reply, depth, connections }) => {
                [3, count, request, reply, depth, connections]
            }
        };
        let mut out = [0; Self::BYTES];
        for (bytes, w) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&w.to_be_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut words = [0; 6];
        for (w, b) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *w = u64::from_be_bytes(b.try_into().ok()?);
        }
        match words {
            [1, total, working_set, ..] => Some(Self::Stream { total, working_set }),
            [2, count, ping, pong, ..] => Some(Self::PingPong { count, ping, pong }),
            [3, count, request, reply, depth, connections] => {
                Some(Self::Exchange(Exchange { count, request, reply, depth, connections }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Exchange, Request};

    #[test]
    fn requests_are_decoded_as_encoded() {
        for o in [
            Request::Stream { total: 5, working_set: 6 },
            Request::PingPong { count: 1, ping: u64::MAX, pong: 3 },
            Request::Exchange(Exchange { count: 1, request: 2, reply: 3, depth: u64::MAX, connections: 4 }),
        ] {
            assert_eq!(Request::decode(&o.encode()), Some(o));
        }
        assert_eq!(Request::decode(&[0; Request::BYTES]), None);
    }
}
