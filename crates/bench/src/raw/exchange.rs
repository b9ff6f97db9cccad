//! Requests and replies over plain TCP, with several requests in flight: the bound of small operations.
//!
//! Each end is one thread that waits with epoll, receives everything that has arrived on a connection with one `read`,
//! and sends everything that it allows with one `write`, so batches are as large as the load makes them. Neither end
//! looks at the bytes, and each sends from memory that stays in the processor's cache.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use millrace_program::{
    cpu,
    units::{cpu_us_per_op, mb_per_s},
};
use millrace_runtime::tokio_rt::prefer_loopback_congestion_control;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::{RawPeer, Request, connect, read_number, socket_settings};
use crate::{BenchError, Figure, no_halt, stats::Latencies};

/// Events that one wait returns at most.
const EVENTS: usize = 256;

/// Parameters of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Number of requests on all connections together; rounded up to a multiple of their number.
    pub count: u64,
    /// Size of a request in bytes.
    pub request: u64,
    /// Size of a reply in bytes.
    pub reply: u64,
    /// Number of requests in flight on each connection.
    pub depth: u64,
    /// Number of connections.
    pub connections: u64,
}

impl Exchange {
    /// Runs once over TCP connections.
    ///
    /// # Errors
    /// A parameter is out of range, or a connection or the peer fails.
    pub fn run(&self, peer: &RawPeer) -> Result<Figure, BenchError> {
        self.check()?;
        let mut control = peer.connect()?;
        control.write_all(&Request::Exchange(*self).encode()).map_err(failed())?;
        let addr = SocketAddr::new(peer.tcp.ip(), read_number(&mut control)? as u16);
        let sockets = (0..self.connections).map(|_| connect(addr)).collect::<Result<_, _>>()?;
        let mut latencies = Latencies::new();
        let (start, before) = (Instant::now(), cpu::own());
        let ends = self.request(sockets, &mut latencies)?;
        let (took, client) = (start.elapsed(), cpu::own() - before);
        let server = Duration::from_nanos(read_number(&mut control)?);
        drop(ends);
        Ok(self.figure(&latencies, took, client, server))
    }

    fn figure(&self, latencies: &Latencies, took: Duration, client: Duration, server: Duration) -> Figure {
        let Self { request, reply, depth, connections, .. } = *self;
        let count = self.each() * connections;
        let each = if connections > 1 { format!(" on {connections}") } else { String::new() };
        Figure {
            workload: "raw".into(),
            test: format!("exchange {request}+{reply} B x {depth}{each}"),
            proto: "tcp".into(),
            threads: 1,
            no_halt: Some(no_halt::held()),
            record: reply,
            outstanding: depth as usize,
            mb_per_s: Some(mb_per_s(count * reply, took)),
            ops_per_s: Some(count as f64 / took.as_secs_f64()),
            p50_us: Some(latencies.percentile_us(50.0)),
            p99_us: Some(latencies.percentile_us(99.0)),
            client_cpu_us_per_op: Some(cpu_us_per_op(client, count)),
            server_cpu_us_per_op: Some(cpu_us_per_op(server, count)),
            ..Figure::default()
        }
    }

    fn check(&self) -> Result<(), BenchError> {
        const MOST: u64 = 1 << 20;
        let sizes = (1..=MOST).contains(&self.request) && (1..=MOST).contains(&self.reply);
        let in_flight = (1..=1024).contains(&self.depth) && (1..=4096).contains(&self.connections);
        if self.count == 0 || !sizes || !in_flight {
            return Err(BenchError::Parameter(
                "invalid parameters: request and reply must have 1 byte to 1 MiB, the depth must be 1 to 1024, the connections 1 to 4096, and the count at least 1".into(),
            ));
        }
        Ok(())
    }

    /// Requests on each connection.
    fn each(&self) -> u64 {
        self.count.div_ceil(self.connections)
    }

    /// Sends all requests and receives all replies.
    fn request(&self, sockets: Vec<TcpStream>, latencies: &mut Latencies) -> Result<Ends, BenchError> {
        let each = self.each();
        let mut ends =
            Ends::new(sockets, each * self.reply, self.reply * self.depth, self.request * self.depth)?;
        // The times at which the requests in flight on each connection were sent.
        let first = each.min(self.depth);
        let mut sent = vec![VecDeque::from(vec![Instant::now(); first as usize]); ends.connections.len()];
        for at in 0..ends.connections.len() {
            ends.send(at, first * self.request)?;
        }
        let mut unsent = vec![each - first; ends.connections.len()];
        while ends.open > 0 {
            for event in 0..ends.wait()? {
                let at = ends.ready(event);
                let replies = ends.receive(at, self.reply)?;
                let now = Instant::now();
                sent[at].drain(..replies as usize).for_each(|sent| latencies.record(now - sent));
                let next = replies.min(unsent[at]);
                unsent[at] -= next;
                sent[at].extend((0..next).map(|_| now));
                ends.send(at, next * self.request)?;
            }
        }
        Ok(ends)
    }

    /// Accepts connections on another port, which it sends to the requester, and answers all requests. Returns the
    /// processor time in nanoseconds.
    pub(super) fn respond(&self, control: &mut TcpStream) -> Result<u64, BenchError> {
        self.check()?;
        let address = control.local_addr().map_err(failed())?.ip();
        let listener = TcpListener::bind((address, 0)).map_err(failed())?;
        let at = listener.local_addr().map_err(failed())?;
        prefer_loopback_congestion_control(&listener, at);
        control.write_all(&u64::from(at.port()).to_be_bytes()).map_err(failed())?;
        let mut sockets = Vec::new();
        for _ in 0..self.connections {
            let socket = listener.accept().map_err(failed())?.0;
            socket_settings(&socket)?;
            sockets.push(socket);
        }
        let before = cpu::own();
        let total = self.each() * self.request;
        let mut ends = Ends::new(sockets, total, self.request * self.depth, self.reply * self.depth)?;
        while ends.open > 0 {
            for event in 0..ends.wait()? {
                let at = ends.ready(event);
                let requests = ends.receive(at, self.request)?;
                ends.send(at, requests * self.reply)?;
            }
        }
        Ok((cpu::own() - before).as_nanos() as u64)
    }
}

fn failed() -> impl FnOnce(std::io::Error) -> BenchError {
    BenchError::io("exchange requests and replies")
}

/// One end of the connections, which does not block in reads and writes.
struct Ends {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Connections on which bytes remain to be received or sent.
    open: usize,
    events: Vec<Event>,
    /// Where all bytes are received.
    incoming: Vec<u8>,
    /// The bytes to send, from the start again for every write.
    outgoing: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    received: u64,
    /// Bytes to be received in all.
    total: u64,
    /// Bytes to be sent.
    owed: u64,
    /// Whether epoll reports that the socket can be written.
    awaits_space: bool,
    is_open: bool,
}

impl Ends {
    /// Waits for `total` bytes on each connection. `incoming` and `outgoing` limit the bytes of one read and one write.
    fn new(sockets: Vec<TcpStream>, total: u64, incoming: u64, outgoing: u64) -> Result<Self, BenchError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| failed()(e.into()))?;
        let mut connections = Vec::new();
        for (at, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true).map_err(failed())?;
            let added = epoll::add(&epoll, &socket, EventData::new_u64(at as u64), EventFlags::IN);
            added.map_err(|e| failed()(e.into()))?;
            let idle = Connection { socket, received: 0, total, owed: 0, awaits_space: false, is_open: true };
            connections.push(idle);
        }
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let open = connections.len();
        let (incoming, outgoing) = (vec![0; incoming as usize], vec![7; outgoing as usize]);
        Ok(Self { epoll, connections, open, events: vec![none; EVENTS], incoming, outgoing })
    }

    /// Waits until connections are ready, and returns their number.
    fn wait(&mut self) -> Result<usize, BenchError> {
        match epoll::wait(&self.epoll, self.events.as_mut_slice(), None) {
            Ok(ready) => Ok(ready),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(e) => Err(failed()(e.into())),
        }
    }

    /// The connection of an event of the last wait.
    fn ready(&self, event: usize) -> usize {
        self.events[event].data.u64() as usize
    }

    /// Receives what has arrived, and returns the number of messages of `size` bytes that it completes.
    fn receive(&mut self, at: usize, size: u64) -> Result<u64, BenchError> {
        let of = &mut self.connections[at];
        let most = self.incoming.len().min(usize::try_from(of.total - of.received).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let before = of.received / size;
        match of.socket.read(&mut self.incoming[..most]) {
            Ok(0) => return Err(BenchError::Peer("the connection ended early".into())),
            Ok(n) => of.received += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(failed()(e)),
        }
        Ok(of.received / size - before)
    }

    /// Sends `more` bytes and those that are owed, as far as the socket takes them.
    fn send(&mut self, at: usize, more: u64) -> Result<(), BenchError> {
        let of = &mut self.connections[at];
        of.owed += more;
        while of.owed > 0 {
            let most = self.outgoing.len().min(usize::try_from(of.owed).unwrap_or(usize::MAX));
            match of.socket.write(&self.outgoing[..most]) {
                Ok(n) => of.owed -= n as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(failed()(e)),
            }
        }
        let needs_space = of.owed > 0;
        if needs_space != of.awaits_space {
            let flags = if needs_space { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let changed = epoll::modify(&self.epoll, &of.socket, EventData::new_u64(at as u64), flags);
            changed.map_err(|e| failed()(e.into()))?;
            of.awaits_space = needs_space;
        }
        if of.is_open && of.owed == 0 && of.received == of.total {
            of.is_open = false;
            self.open -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_replies_arrive_whatever_the_sizes_and_the_depth() {
        let cases = [
            (1, 1, 1, 1),
            (128, 4224, 16, 1),
            (7, 100_003, 3, 1),
            (128, 4224, 4, 300),
            // These exceed the buffers of the sockets in both directions.
            (1 << 20, 1 << 20, 16, 1),
            (1 << 20, 1 << 20, 3, 2),
        ];
        for (request, reply, depth, connections) in cases {
            let exchange = Exchange { count: 100, request, reply, depth, connections };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut responder = listener.accept().unwrap().0;
            let answered = std::thread::spawn(move || exchange.respond(&mut responder).unwrap());
            let addr = SocketAddr::from(([127, 0, 0, 1], read_number(&mut control).unwrap() as u16));
            let sockets = (0..connections).map(|_| connect(addr).unwrap()).collect();
            let mut latencies = Latencies::new();
            let ends = exchange.request(sockets, &mut latencies).unwrap();
            assert_eq!(latencies.len(), exchange.each() * connections, "{exchange:?}");
            answered.join().unwrap();
            // The responder has sent nothing else before it closed the connections. The kernel may deliver that later.
            for mut end in ends.connections {
                end.socket.set_nonblocking(false).unwrap();
                assert_eq!(end.socket.read(&mut [0]).unwrap(), 0, "{exchange:?}");
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_rejected() {
        let valid = Exchange { count: 1, request: 1, reply: 1 << 20, depth: 1024, connections: 4096 };
        assert!(valid.check().is_ok());
        for wrong in [
            Exchange { count: 0, ..valid },
            Exchange { request: 0, ..valid },
            Exchange { reply: (1 << 20) + 1, ..valid },
            Exchange { depth: 1025, ..valid },
            Exchange { connections: 0, ..valid },
        ] {
            assert!(matches!(wrong.check(), Err(BenchError::Parameter(_))), "{wrong:?}");
        }
    }
}
