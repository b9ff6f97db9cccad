//! A server that violates the protocol towards its client.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    thread::JoinHandle,
};

use crate::{Event, Peer, READ_WRITE};

/// Violation by a server. The client has exposed memory for a result (one Write chunk).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// Writes one byte beyond the chunk.
    WritesBeyond,
    /// Writes before the chunk.
    WritesBefore,
    /// Writes to a tag that is not in the call.
    WritesElsewhere,
    /// Reads the chunk, which is write-only.
    Reads,
    /// Returns a chunk length that exceeds the chunk.
    ClaimsMore,
    /// Writes fewer bytes than the length word states.
    ClaimsOther,
    /// Returns a chunk that is not in the call.
    NamesOther,
    /// Writes again after its reply.
    WritesLate,
    /// Invalidates a tag that is not in the call.
    InvalidatesOther,
    /// Sends a Read list in a reply of the Read-Write design.
    ExposesItself,
}

impl Violation {
    /// All violations.
    pub const ALL: [Self; 10] = [
        Self::WritesBeyond,
        Self::WritesBefore,
        Self::WritesElsewhere,
        Self::Reads,
        Self::ClaimsMore,
        Self::ClaimsOther,
        Self::NamesOther,
        Self::WritesLate,
        Self::InvalidatesOther,
        Self::ExposesItself,
    ];

    /// Description.
    pub const fn text(self) -> &'static str {
        match self {
            Self::WritesBeyond => "writes one byte beyond the exposed memory",
            Self::WritesBefore => "writes before the exposed memory",
            Self::WritesElsewhere => "writes to a tag that is not in the call",
            Self::Reads => "reads write-only memory",
            Self::ClaimsMore => "returns a length that exceeds the chunk",
            Self::ClaimsOther => "returns a length that differs from the data",
            Self::NamesOther => "returns a chunk that is not in the call",
            Self::WritesLate => "writes again after its reply",
            Self::InvalidatesOther => "invalidates a tag that is not in the call",
            Self::ExposesItself => "returns a Read list",
        }
    }
}

/// Byte written after the reply.
pub(crate) const LATE: u8 = 0x99;

/// A server that accepts one connection and answers its first call with a violation.
pub struct MaliciousServer {
    addr: SocketAddr,
    thread: JoinHandle<io::Result<()>>,
}

/// A segment of a Write chunk.
#[derive(Clone, Copy)]
struct Segment {
    tag: u32,
    length: u32,
    offset: u64,
}

/// The Write chunk of a call. Some registration strategies use many segments, which end at page boundaries.
#[derive(Clone)]
struct Chunk(Vec<Segment>);

impl Chunk {
    /// Decodes the chunk of an RDMA_MSG without Read list and with one Write chunk.
    fn of(call: &[u8]) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if word(call, 12) != 0 || word(call, 16) != 0 || word(call, 20) != 1 {
            return Err(bad("call without a Write chunk"));
        }
        let segments = call.get(28..).unwrap_or_default().chunks_exact(16).take(word(call, 24) as usize);
        let segments: Vec<Segment> = segments
            .map(|s| Segment {
                tag: word(s, 0),
                length: word(s, 4),
                offset: u64::from(word(s, 8)) << 32 | u64::from(word(s, 12)),
            })
            .collect();
        if segments.is_empty() { Err(bad("Write chunk without segments")) } else { Ok(Self(segments)) }
    }

    /// The same chunk with different tags.
    fn with_tags(&self, change: u32) -> Self {
        Self(self.0.iter().map(|s| Segment { tag: s.tag ^ change, ..*s }).collect())
    }

    fn first(&self) -> Segment {
        self.0[0]
    }

    fn last(&self) -> Segment {
        self.0[self.0.len() - 1]
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|s| s.length).sum()
    }

    /// Fills the whole chunk.
    fn fill(&self, peer: &mut Peer, byte: u8) -> io::Result<()> {
        self.0.iter().try_for_each(|s| peer.write(s.tag, s.offset, &vec![byte; s.length as usize]))
    }
}

/// Byte written before the reply.
const FILL: u8 = 0x66;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

impl MaliciousServer {
    /// Starts to listen on a free loopback port.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub fn start(violation: Violation) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        Ok(Self { addr, thread: std::thread::spawn(move || serve(&listener, violation)) })
    }

    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until the client has ended the connection.
    ///
    /// # Errors
    /// The server failed before it committed the violation.
    pub fn end(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the malicious server panicked")))
    }
}

fn serve(listener: &TcpListener, violation: Violation) -> io::Result<()> {
    let mut peer = Peer::accept(listener.accept()?.0, READ_WRITE)?;
    let Event::Send(call, _) = peer.event()? else { return Err(io::ErrorKind::InvalidData.into()) };
    let chunk = Chunk::of(&call)?;
    // A client that detects the violation may end the connection before it is complete.
    let told = answer(&mut peer, violation, word(&call, 0), &chunk);
    while told.is_ok() && !matches!(peer.event(), Ok(Event::Closed) | Err(_)) {}
    Ok(())
}

/// The reply: a header with the Write chunk, to whose last segment length `claimed` is added; an RPC reply;
/// and two results: a number and `said`, the length of the data in the chunk.
fn reply(xid: u32, chunk: &Chunk, claimed: i32, said: u32) -> Vec<u8> {
    let mut lists = vec![0, 1, chunk.0.len() as u32];
    for s in &chunk.0 {
        lists.extend([s.tag, s.length, (s.offset >> 32) as u32, s.offset as u32]);
    }
    if let Some(length) = lists.iter_mut().rev().nth(2) {
        *length = length.wrapping_add_signed(claimed);
    }
    lists.extend([0, 0]);
    [words(&[xid, 1, 32, 0]), words(&lists), words(&[xid, 1, 0, 0, 0, 0, 7, said])].concat()
}

fn answer(peer: &mut Peer, violation: Violation, xid: u32, c: &Chunk) -> io::Result<()> {
    let len = c.len();
    let honest = reply(xid, c, 0, len);
    match violation {
        Violation::WritesBeyond => {
            c.fill(peer, FILL)?;
            let last = c.last();
            peer.write(last.tag, last.offset, &vec![FILL; last.length as usize + 1])?;
            peer.send(&honest)
        }
        Violation::WritesBefore => {
            let first = c.first();
            peer.write(first.tag, first.offset.wrapping_sub(64), &[FILL; 64])?;
            peer.send(&honest)
        }
        Violation::WritesElsewhere => {
            c.with_tags(0x0001_0000).fill(peer, FILL)?;
            peer.send(&honest)
        }
        Violation::Reads => {
            let first = c.first();
            peer.read(first.tag, first.offset, first.length)?;
            peer.send(&honest)
        }
        Violation::ClaimsMore => {
            c.fill(peer, FILL)?;
            peer.send(&reply(xid, c, 1, len + 1))
        }
        Violation::ClaimsOther => {
            c.fill(peer, FILL)?;
            peer.send(&reply(xid, c, -8, len))
        }
        Violation::NamesOther => peer.send(&reply(xid, &c.with_tags(0x100), 0, len)),
        Violation::WritesLate => {
            c.fill(peer, FILL)?;
            peer.send(&honest)?;
            // Longer than the client needs to reuse its memory.
            std::thread::sleep(std::time::Duration::from_millis(50));
            c.fill(peer, LATE)
        }
        Violation::InvalidatesOther => peer.send_invalidating(&honest, c.first().tag ^ 0x100),
        Violation::ExposesItself => {
            let own = [1, 32, 0x0102_0304, len, 0, 0, 0, 0, 0];
            let rpc = [xid, 1, 0, 0, 0, 0, 7, len];
            peer.send(&[words(&[xid, 1, 32, 0]), words(&own), words(&rpc)].concat())
        }
    }
}
