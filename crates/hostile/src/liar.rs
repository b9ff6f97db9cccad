//! A server that lies to its client.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    thread::JoinHandle,
};

use crate::{Event, Peer, READ_WRITE};

/// What the lie is about. The client has exposed memory for a result (one Write chunk).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// It writes one byte beyond the chunk.
    WritesBeyond,
    /// It writes before the chunk.
    WritesBefore,
    /// It writes to a tag that it was not given.
    WritesElsewhere,
    /// It reads the chunk, which may only be written.
    Reads,
    /// It claims to have written more than the chunk holds.
    ClaimsMore,
    /// It writes less than it claims in the length word.
    ClaimsOther,
    /// It names a chunk in the reply that the call did not give.
    NamesOther,
    /// It replies, and then writes again.
    WritesLate,
    /// It invalidates a tag that is not the call's.
    InvalidatesOther,
    /// It sends a Read list in a reply of the Read-Write design.
    ExposesItself,
}

impl Lie {
    /// All of them.
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

    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::WritesBeyond => "writes one byte beyond the memory it was given",
            Self::WritesBefore => "writes before the memory it was given",
            Self::WritesElsewhere => "writes to a tag that it was not given",
            Self::Reads => "reads memory that it may only write",
            Self::ClaimsMore => "claims to have written more than there is room",
            Self::ClaimsOther => "claims another length than it wrote",
            Self::NamesOther => "names memory that the call did not give",
            Self::WritesLate => "writes again after its reply",
            Self::InvalidatesOther => "invalidates a tag that is not the call's",
            Self::ExposesItself => "answers with memory of its own to be read",
        }
    }
}

/// What it writes after its reply.
pub(crate) const LATE: u8 = 0x99;

/// A server that takes one connection and answers its first call with a lie.
pub struct Liar {
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

/// The Write chunk of a call. Some registration strategies give many segments, at borders of pages.
#[derive(Clone)]
struct Chunk(Vec<Segment>);

impl Chunk {
    /// That of an RDMA_MSG with no Read list and one Write chunk.
    fn of(call: &[u8]) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if word(call, 12) != 0 || word(call, 16) != 0 || word(call, 20) != 1 {
            return Err(bad("a call without a Write chunk"));
        }
        let segments = call.get(28..).unwrap_or_default().chunks_exact(16).take(word(call, 24) as usize);
        let segments: Vec<Segment> = segments
            .map(|s| Segment {
                tag: word(s, 0),
                length: word(s, 4),
                offset: u64::from(word(s, 8)) << 32 | u64::from(word(s, 12)),
            })
            .collect();
        if segments.is_empty() { Err(bad("a Write chunk without segments")) } else { Ok(Self(segments)) }
    }

    /// The same with other tags.
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

    /// Fills all of it.
    fn fill(&self, peer: &mut Peer, byte: u8) -> io::Result<()> {
        self.0.iter().try_for_each(|s| peer.write(s.tag, s.offset, &vec![byte; s.length as usize]))
    }
}

/// What it writes before its reply.
const FILL: u8 = 0x66;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

impl Liar {
    /// Listens on a free loopback port.
    ///
    /// # Errors
    /// When it cannot.
    pub fn start(lie: Lie) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        Ok(Self { addr, thread: std::thread::spawn(move || serve(&listener, lie)) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until its victim has ended the connection.
    ///
    /// # Errors
    /// When the liar could not do its work.
    pub fn end(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the liar panicked")))
    }
}

fn serve(listener: &TcpListener, lie: Lie) -> io::Result<()> {
    let mut peer = Peer::accept(listener.accept()?.0, READ_WRITE)?;
    let Event::Send(call, _) = peer.event()? else { return Err(io::ErrorKind::InvalidData.into()) };
    let chunk = Chunk::of(&call)?;
    // A victim that sees through the lie at once may be gone before all of it is told.
    let told = answer(&mut peer, lie, word(&call, 0), &chunk);
    while told.is_ok() && !matches!(peer.event(), Ok(Event::Closed) | Err(_)) {}
    Ok(())
}

/// The reply: a header with the Write chunk, of whose last segment so many bytes more (or fewer) are claimed than it has;
/// an RPC reply; and two results: a number and the length of what is in the chunk.
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

fn answer(peer: &mut Peer, lie: Lie, xid: u32, c: &Chunk) -> io::Result<()> {
    let len = c.len();
    let honest = reply(xid, c, 0, len);
    match lie {
        Lie::WritesBeyond => {
            c.fill(peer, FILL)?;
            let last = c.last();
            peer.write(last.tag, last.offset, &vec![FILL; last.length as usize + 1])?;
            peer.send(&honest)
        }
        Lie::WritesBefore => {
            let first = c.first();
            peer.write(first.tag, first.offset.wrapping_sub(64), &[FILL; 64])?;
            peer.send(&honest)
        }
        Lie::WritesElsewhere => {
            c.with_tags(0x0001_0000).fill(peer, FILL)?;
            peer.send(&honest)
        }
        Lie::Reads => {
            let first = c.first();
            peer.read(first.tag, first.offset, first.length)?;
            peer.send(&honest)
        }
        Lie::ClaimsMore => {
            c.fill(peer, FILL)?;
            peer.send(&reply(xid, c, 1, len + 1))
        }
        Lie::ClaimsOther => {
            c.fill(peer, FILL)?;
            peer.send(&reply(xid, c, -8, len))
        }
        Lie::NamesOther => peer.send(&reply(xid, &c.with_tags(0x100), 0, len)),
        Lie::WritesLate => {
            c.fill(peer, FILL)?;
            peer.send(&honest)?;
            // Late by more than it takes the client to have its memory back.
            std::thread::sleep(std::time::Duration::from_millis(50));
            c.fill(peer, LATE)
        }
        Lie::InvalidatesOther => peer.send_invalidating(&honest, c.first().tag ^ 0x100),
        Lie::ExposesItself => {
            let own = [1, 32, 0x0102_0304, len, 0, 0, 0, 0, 0];
            let rpc = [xid, 1, 0, 0, 0, 0, 7, len];
            peer.send(&[words(&[xid, 1, 32, 0]), words(&own), words(&rpc)].concat())
        }
    }
}
