//! The rate of a plain TCP connection between a program in the guest and one on the host.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::{guest::Guest, network::HOST};

/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(1);
/// Time limit of accepting a connection, of a read and of the guest's command.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of one write of a stream.
const RECORD: usize = 1 << 20;
/// Bytes of a request and of a reply: those of a READ of 4 KiB.
const PING: usize = 128;
const PONG: usize = 4096 + 128;

/// Arguments of `interop bench-wire`.
#[derive(Debug, Args)]
pub(crate) struct WireArgs {
    limit: Limit,
    /// Address of the listener on the host
    address: String,
}

/// A figure of the plain TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Limit {
    /// Stream from the host to the guest.
    FromHost,
    /// Stream from the guest to the host.
    ToHost,
    /// One small request after the other, with a reply of the size of a small READ's.
    PingPong,
}

/// The figures of one run.
pub(super) struct Limits {
    /// MB/s.
    from_host: f64,
    /// MB/s.
    to_host: f64,
    /// Requests per second.
    ping_pong: f64,
}

impl Limits {
    pub(super) fn measure(wire: &Wire, guest: &mut Guest) -> Result<Self> {
        Ok(Self {
            from_host: wire.measure(guest, Limit::FromHost)?,
            to_host: wire.measure(guest, Limit::ToHost)?,
            ping_pong: wire.measure(guest, Limit::PingPong)?,
        })
    }

    pub(super) fn get(&self, limit: Limit) -> f64 {
        match limit {
            Limit::FromHost => self.from_host,
            Limit::ToHost => self.to_host,
            Limit::PingPong => self.ping_pong,
        }
    }
}

/// The host's end.
pub(super) struct Wire(TcpListener);

impl Wire {
    /// Listens at the host's address.
    ///
    /// # Errors
    /// When the address does not exist.
    pub(super) fn listen() -> Result<Self> {
        let listener = TcpListener::bind((HOST, 0)).context("cannot listen at the host's address")?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    fn accept(&self) -> Result<TcpStream> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    return Ok(stream);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e).context("the guest does not connect to the host"),
            }
        }
    }

    fn measure(&self, guest: &mut Guest, limit: Limit) -> Result<f64> {
        let kind = limit.to_possible_value().context("every limit has a name")?;
        let job = guest.spawn(&format!(
            "{} bench-wire {} {}",
            guest.interop()?,
            kind.get_name(),
            self.0.local_addr()?
        ))?;
        let mut stream = self.accept()?;
        let began = Instant::now();
        let count = match limit {
            Limit::FromHost => send(&mut stream)?,
            Limit::ToHost => receive(&mut stream)?,
            Limit::PingPong => answer(&mut stream)?,
        };
        drop(stream);
        let rate = count as f64 / began.elapsed().as_secs_f64();
        job.wait(TIMEOUT)?.ok()?;
        Ok(if limit == Limit::PingPong { rate } else { rate / 1e6 })
    }
}

/// Runs the guest's end.
///
/// # Errors
/// When the connection fails.
pub(crate) fn run(args: &WireArgs) -> Result<()> {
    let mut stream = TcpStream::connect(&args.address)?;
    stream.set_nodelay(true)?;
    match args.limit {
        Limit::FromHost => receive(&mut stream).map(drop),
        Limit::ToHost => send(&mut stream).map(drop),
        Limit::PingPong => ask(&mut stream),
    }
}

fn send(stream: &mut TcpStream) -> Result<u64> {
    let (record, began, mut sent) = (vec![1; RECORD], Instant::now(), 0);
    while began.elapsed() < TIME {
        stream.write_all(&record)?;
        sent += RECORD as u64;
    }
    Ok(sent)
}

fn receive(stream: &mut TcpStream) -> Result<u64> {
    let (mut record, mut received) = (vec![0; RECORD], 0);
    loop {
        match stream.read(&mut record)? {
            0 => return Ok(received),
            n => received += n as u64,
        }
    }
}

fn ask(stream: &mut TcpStream) -> Result<()> {
    let (ping, mut pong, began) = ([1; PING], [0; PONG], Instant::now());
    while began.elapsed() < TIME {
        stream.write_all(&ping)?;
        stream.read_exact(&mut pong)?;
    }
    Ok(())
}

fn answer(stream: &mut TcpStream) -> Result<u64> {
    let (mut ping, pong, mut answered) = ([0; PING], [1; PONG], 0);
    while stream.read(&mut ping)? == PING {
        stream.write_all(&pong)?;
        answered += 1;
    }
    Ok(answered)
}
