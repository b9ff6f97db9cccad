//! Requests and replies over plain TCP, with several requests in flight: the bound of small operations.
//!
//! Both ends wait with epoll, receive everything that has arrived with one `read`, and send everything that it allows with
//! one `write`, so batches are as large as the load makes them. Neither end looks at the bytes, and each sends from
//! memory that stays in the processor's cache.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::{RawPeer, Request};
use crate::{
    BenchError, Figure, cpu, no_halt,
    stats::Latencies,
    units::{cpu_us_per_op, mb_per_s},
};

/// Parameters of requests and replies.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Number of requests.
    pub count: u64,
    /// Size of a request in bytes.
    pub request: u64,
    /// Size of a reply in bytes.
    pub reply: u64,
    /// Number of requests in flight.
    pub depth: u64,
}

impl Exchange {
    /// Runs once over a TCP connection.
    ///
    /// # Errors
    /// A parameter is out of range, or the connection or the peer fails.
    pub fn run(&self, peer: &RawPeer) -> Result<Figure, BenchError> {
        self.check()?;
        let Self { count, request, reply, depth } = *self;
        let mut socket = peer.connect()?;
        let order = Request::Exchange { count, request, reply, depth };
        socket.write_all(&order.encode()).map_err(BenchError::io("request an exchange"))?;
        let mut latencies = Latencies::new();
        let (start, before) = (Instant::now(), cpu::own());
        self.request(&mut socket, &mut latencies)?;
        let (took, client) = (start.elapsed(), cpu::own() - before);
        let mut used = [0; 8];
        socket.read_exact(&mut used).map_err(BenchError::io("read the peer's processor time"))?;
        let server = Duration::from_nanos(u64::from_be_bytes(used));
        Ok(Figure {
            workload: "raw".into(),
            test: format!("exchange {request}+{reply} B x {depth}"),
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
        })
    }

    fn check(&self) -> Result<(), BenchError> {
        const MOST: u64 = 1 << 20;
        let sizes = (1..=MOST).contains(&self.request) && (1..=MOST).contains(&self.reply);
        if self.count == 0 || !sizes || !(1..=1024).contains(&self.depth) {
            return Err(BenchError::Parameter(
                "invalid parameters: request and reply must have 1 byte to 1 MiB, the depth must be 1 to 1024, and the count at least 1".into(),
            ));
        }
        Ok(())
    }

    /// Sends all requests and receives all replies.
    fn request(&self, socket: &mut TcpStream, latencies: &mut Latencies) -> Result<(), BenchError> {
        let mut end = End::new(socket, self.request * self.depth)?;
        let mut replies = vec![0; (self.reply * self.depth) as usize];
        let mut sent = VecDeque::new();
        let (mut requested, mut received) = (0, 0);
        let total = self.count * self.reply;
        while received < total {
            let now = Instant::now();
            while requested < self.count && sent.len() < self.depth as usize {
                end.owed += self.request;
                sent.push_back(now);
                requested += 1;
            }
            let complete = received / self.reply;
            received += end.step(&mut replies, total - received)?;
            let now = Instant::now();
            for at in sent.drain(..(received / self.reply - complete) as usize) {
                latencies.record(now - at);
            }
        }
        end.finish()
    }

    /// Answers all requests, and returns the processor time in nanoseconds.
    pub(super) fn respond(&self, socket: &mut TcpStream) -> Result<u64, BenchError> {
        self.check()?;
        let before = cpu::own();
        let mut end = End::new(socket, self.reply * self.depth)?;
        let mut requests = vec![0; (self.request * self.depth) as usize];
        let (mut received, total) = (0, self.count * self.request);
        while received < total || end.owed > 0 {
            let complete = received / self.request;
            received += end.step(&mut requests, total - received)?;
            end.owed += (received / self.request - complete) * self.reply;
            end.send()?;
        }
        end.finish()?;
        Ok((cpu::own() - before).as_nanos() as u64)
    }
}

/// One end of the connection, which does not block in reads and writes.
struct End<'a> {
    socket: &'a mut TcpStream,
    epoll: OwnedFd,
    /// Whether `epoll` reports that the socket can be written.
    awaits_space: bool,
    /// The bytes to send, from the start again for every write.
    outgoing: Vec<u8>,
    /// Number of bytes to be sent.
    owed: u64,
}

fn failed() -> impl FnOnce(std::io::Error) -> BenchError {
    BenchError::io("exchange requests and replies")
}

impl<'a> End<'a> {
    fn new(socket: &'a mut TcpStream, outgoing: u64) -> Result<Self, BenchError> {
        socket.set_nonblocking(true).map_err(failed())?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| failed()(e.into()))?;
        let added = epoll::add(&epoll, &*socket, EventData::new_u64(0), EventFlags::IN);
        added.map_err(|e| failed()(e.into()))?;
        Ok(Self { socket, epoll, awaits_space: false, outgoing: vec![7; outgoing as usize], owed: 0 })
    }

    /// Sends what is owed, waits, and receives at most `most` bytes. Returns the number of received bytes.
    fn step(&mut self, incoming: &mut [u8], most: u64) -> Result<u64, BenchError> {
        self.send()?;
        self.wait(most > 0)?;
        let most = incoming.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        match self.socket.read(&mut incoming[..most]) {
            Ok(0) => Err(BenchError::Peer("the connection ended early".into())),
            Ok(n) => Ok(n as u64),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(failed()(e)),
        }
    }

    /// Sends what is owed, as far as the socket takes it.
    fn send(&mut self) -> Result<(), BenchError> {
        while self.owed > 0 {
            let most = self.outgoing.len().min(usize::try_from(self.owed).unwrap_or(usize::MAX));
            match self.socket.write(&self.outgoing[..most]) {
                Ok(n) => self.owed -= n as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(failed()(e)),
            }
        }
        Ok(())
    }

    /// Waits for received bytes if `receives`, and for space for the bytes owed.
    fn wait(&mut self, receives: bool) -> Result<(), BenchError> {
        let needs_space = self.owed > 0;
        if !receives && !needs_space {
            return Ok(());
        }
        if needs_space != self.awaits_space {
            let flags = if needs_space { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let changed = epoll::modify(&self.epoll, &*self.socket, EventData::new_u64(0), flags);
            changed.map_err(|e| failed()(e.into()))?;
            self.awaits_space = needs_space;
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        match epoll::wait(&self.epoll, &mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(failed()(e.into())),
        }
    }

    fn finish(self) -> Result<(), BenchError> {
        self.socket.set_nonblocking(false).map_err(failed())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn all_replies_arrive_whatever_the_sizes_and_the_depth() {
        // The last two exceed the buffers of the sockets in both directions.
        for (request, reply, depth) in [(1, 1, 1), (128, 4224, 16), (7, 100_003, 3), (1 << 20, 1 << 20, 16)] {
            let exchange = Exchange { count: 100, request, reply, depth };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut requester = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut responder = listener.accept().unwrap().0;
            let answered = std::thread::spawn(move || {
                exchange.respond(&mut responder).unwrap();
                responder.write_all(b"end").unwrap();
            });
            let mut latencies = Latencies::new();
            exchange.request(&mut requester, &mut latencies).unwrap();
            assert_eq!(latencies.len(), 100);
            let mut rest = Vec::new();
            requester.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"end");
            answered.join().unwrap();
        }
    }

    #[test]
    fn parameters_out_of_range_are_rejected() {
        let valid = Exchange { count: 1, request: 1, reply: 1 << 20, depth: 1024 };
        assert!(valid.check().is_ok());
        for wrong in [
            Exchange { count: 0, ..valid },
            Exchange { request: 0, ..valid },
            Exchange { reply: (1 << 20) + 1, ..valid },
            Exchange { depth: 1025, ..valid },
        ] {
            assert!(matches!(wrong.check(), Err(BenchError::Parameter(_))), "{wrong:?}");
        }
    }
}
