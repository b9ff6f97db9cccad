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

/// The Write chunk of a call: its tag, length and offset.
struct Chunk {
    tag: u32,
    length: u32,
    offset: u64,
}

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
    // An RDMA_MSG with no Read list and one Write chunk of one segment.
    let chunk = Chunk {
        tag: word(&call, 28),
        length: word(&call, 32),
        offset: u64::from(word(&call, 36)) << 32 | u64::from(word(&call, 40)),
    };
    if word(&call, 20) != 1 || word(&call, 24) != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a call without a Write chunk"));
    }
    // A victim that sees through the lie at once may be gone before all of it is told.
    let told = answer(&mut peer, lie, word(&call, 0), &chunk);
    while told.is_ok() && !matches!(peer.event(), Ok(Event::Closed) | Err(_)) {}
    Ok(())
}

/// The reply: a header with the Write chunk as it is claimed to be, an RPC reply, and two results: a number and the
/// length of what is in the chunk.
fn reply(xid: u32, chunk: &Chunk, claimed: u32, said: u32) -> Vec<u8> {
    let [high, low] = [(chunk.offset >> 32) as u32, chunk.offset as u32];
    let lists = [0, 1, 1, chunk.tag, claimed, high, low, 0, 0];
    [words(&[xid, 1, 32, 0]), words(&lists), words(&[xid, 1, 0, 0, 0, 0, 7, said])].concat()
}

fn answer(peer: &mut Peer, lie: Lie, xid: u32, c: &Chunk) -> io::Result<()> {
    let full = vec![0x66; c.length as usize];
    let honest = reply(xid, c, c.length, c.length);
    match lie {
        Lie::WritesBeyond => {
            peer.write(c.tag, c.offset, &[&full[..], &[0x66]].concat())?;
            peer.send(&honest)
        }
        Lie::WritesBefore => {
            peer.write(c.tag, c.offset.wrapping_sub(64), &[0x66; 64])?;
            peer.send(&honest)
        }
        Lie::WritesElsewhere => {
            peer.write(c.tag ^ 0x0001_0000, c.offset, &full)?;
            peer.send(&honest)
        }
        Lie::Reads => {
            peer.read(c.tag, c.offset, c.length)?;
            peer.send(&honest)
        }
        Lie::ClaimsMore => {
            peer.write(c.tag, c.offset, &full)?;
            peer.send(&reply(xid, c, c.length + 1, c.length + 1))
        }
        Lie::ClaimsOther => {
            peer.write(c.tag, c.offset, &full)?;
            peer.send(&reply(xid, c, c.length - 8, c.length))
        }
        Lie::NamesOther => {
            let other = Chunk { tag: c.tag ^ 0x100, ..*c };
            peer.send(&reply(xid, &other, c.length, c.length))
        }
        Lie::WritesLate => {
            peer.write(c.tag, c.offset, &full)?;
            peer.send(&honest)?;
            // Late by more than it takes the client to have its memory back.
            std::thread::sleep(std::time::Duration::from_millis(50));
            peer.write(c.tag, c.offset, &vec![LATE; full.len()])
        }
        Lie::InvalidatesOther => peer.send_invalidating(&honest, c.tag ^ 0x100),
        Lie::ExposesItself => {
            let own = [1, 32, 0x0102_0304, c.length, 0, 0, 0, 0, 0];
            let rpc = [xid, 1, 0, 0, 0, 0, 7, c.length];
            peer.send(&[words(&[xid, 1, 32, 0]), words(&own), words(&rpc)].concat())
        }
    }
}
