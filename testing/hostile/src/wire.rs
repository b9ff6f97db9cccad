//! MPA, DDP and RDMAP (RFC 5044, 5041, 5040, 6581) over a blocking socket, without CRCs.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use socket2::{Domain, Socket, Type};

/// Time limit for any operation of the other end.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum payload of a sent segment in bytes.
const SEGMENT: usize = 16 << 10;
/// Revision 2 with the read depths of RFC 6581.
const ENHANCED_REVISION_2: u16 = 0x1002;
const REJECT: u16 = 0x2000;
/// Queues of untagged messages (RFC 5040 section 5.1).
const SENDS: u32 = 0;
const READ_REQUESTS: u32 = 1;
const TERMINATES: u32 = 2;

const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const SEND: u8 = 3;
const SEND_INVALIDATE: u8 = 4;

/// An action of the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A Send with this message, and the tag that it invalidates.
    Send(Vec<u8>, Option<u32>),
    /// An RDMA Write of this data to a local tag and offset.
    Write(u32, u64, Vec<u8>),
    /// The data of a response to an RDMA Read of this end.
    ReadResponse(Vec<u8>),
    /// An RDMA Read Request.
    ReadRequest {
        /// Tag and offset of the sink at the other end.
        sink: (u32, u64),
        /// Number of bytes.
        size: u32,
        /// Local tag and offset.
        source: (u32, u64),
    },
    /// A Terminate: layer, type and code.
    Terminate(u8, u8, u8),
    /// The end of the connection.
    Closed,
}

/// One end of an iWARP connection that can violate the protocol.
pub struct Peer {
    stream: TcpStream,
    sent: [u32; 2],
    /// Segments of an incomplete message.
    partial: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    let b = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or_else(|| bad("truncated header"))?;
    Ok(u32::from_be_bytes(*b))
}

fn long(bytes: &[u8], at: usize) -> io::Result<u64> {
    Ok(u64::from(word(bytes, at)?) << 32 | u64::from(word(bytes, at + 4)?))
}

fn frame(key: &[u8; 16], depth: u16, private: &[u8]) -> Vec<u8> {
    let mut out = key.to_vec();
    out.extend(ENHANCED_REVISION_2.to_be_bytes());
    out.extend((private.len() as u16 + 4).to_be_bytes());
    out.extend(depth.to_be_bytes());
    out.extend(depth.to_be_bytes());
    out.extend(private);
    out
}

/// Connects from the local address `from` over TCP.
pub(crate) fn connect_from(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

impl Peer {
    /// Connects with this private data and read depths of 32.
    ///
    /// # Errors
    /// The connection cannot be established.
    pub fn connect(addr: SocketAddr, private: &[u8]) -> io::Result<Self> {
        Self::over(TcpStream::connect(addr)?)?.connected(private)
    }

    /// Runs MPA startup as the initiator, with this private data.
    pub(crate) fn connected(mut self, private: &[u8]) -> io::Result<Self> {
        self.stream.write_all(&frame(b"MPA ID Req Frame", 32, private))?;
        self.start_up()?;
        Ok(self)
    }

    /// Accepts an incoming connection with this private data.
    ///
    /// # Errors
    /// The peer does not use iWARP.
    pub fn accept(stream: TcpStream, private: &[u8]) -> io::Result<Self> {
        let mut peer = Self::over(stream)?;
        peer.start_up()?;
        peer.stream.write_all(&frame(b"MPA ID Rep Frame", 32, private))?;
        Ok(peer)
    }

    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, sent: [0; 2], partial: Vec::new() })
    }

    /// Reads the startup frame of the other end.
    fn start_up(&mut self) -> io::Result<()> {
        let mut fixed = [0; 20];
        self.stream.read_exact(&mut fixed)?;
        let mut private = vec![0; usize::from(u16::from_be_bytes([fixed[18], fixed[19]]))];
        self.stream.read_exact(&mut private)?;
        if u16::from_be_bytes([fixed[16], fixed[17]]) & REJECT != 0 {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(())
    }

    /// Sends an FPDU: length, ULPDU, padding, and a CRC, which is ignored.
    fn ulpdu(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let body = parts.concat();
        let mut out = (body.len() as u16).to_be_bytes().to_vec();
        out.extend(body);
        out.resize(out.len().next_multiple_of(4) + 4, 0);
        self.stream.write_all(&out)
    }

    fn untagged(&mut self, opcode: u8, queue: u32, invalidate: u32, payload: &[u8]) -> io::Result<()> {
        let sent = self.sent.get_mut(queue as usize).ok_or_else(|| bad("invalid queue"))?;
        *sent += 1;
        let msn = *sent;
        let pieces = payload.len().div_ceil(SEGMENT).max(1);
        for n in 0..pieces {
            let at = n * SEGMENT;
            let piece = payload.get(at..payload.len().min(at + SEGMENT)).unwrap_or_default();
            let last = if n + 1 == pieces { 0x40 } else { 0 };
            let fields = [invalidate, queue, msn, at as u32].map(u32::to_be_bytes).concat();
            self.ulpdu(&[&[0x01 | last, 0x40 | opcode], &fields, piece])?;
        }
        Ok(())
    }

    fn tagged(&mut self, opcode: u8, tag: u32, offset: u64, payload: &[u8]) -> io::Result<()> {
        let pieces = payload.len().div_ceil(SEGMENT).max(1);
        for n in 0..pieces {
            let at = n * SEGMENT;
            let piece = payload.get(at..payload.len().min(at + SEGMENT)).unwrap_or_default();
            let last = if n + 1 == pieces { 0x40 } else { 0 };
            let to = offset.wrapping_add(at as u64);
            self.ulpdu(&[&[0x81 | last, 0x40 | opcode], &tag.to_be_bytes(), &to.to_be_bytes(), piece])?;
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.untagged(SEND, SENDS, 0, message)
    }

    /// Sends a message that invalidates `tag`.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send_invalidating(&mut self, message: &[u8], tag: u32) -> io::Result<()> {
        self.untagged(SEND_INVALIDATE, SENDS, tag, message)
    }

    /// Writes to any tag and offset.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn write(&mut self, tag: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.tagged(WRITE, tag, offset, bytes)
    }

    /// Requests `size` bytes of any tag and offset.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn read(&mut self, tag: u32, offset: u64, size: u32) -> io::Result<()> {
        // The sink is not exposed, so any tag can be used.
        let sink = [&7_u32.to_be_bytes()[..], &0_u64.to_be_bytes(), &size.to_be_bytes()].concat();
        let body = [&sink[..], &tag.to_be_bytes(), &offset.to_be_bytes()].concat();
        self.untagged(READ_REQUEST, READ_REQUESTS, 0, &body)
    }

    /// Sends the response to an RDMA Read.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn respond(&mut self, sink: (u32, u64), bytes: &[u8]) -> io::Result<()> {
        self.tagged(READ_RESPONSE, sink.0, sink.1, bytes)
    }

    /// Waits for the next action of the other end.
    ///
    /// # Errors
    /// No data for 20 s, or invalid data.
    pub fn event(&mut self) -> io::Result<Event> {
        loop {
            let mut length = [0; 2];
            match self.stream.read_exact(&mut length) {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(e);
                }
                Err(_) => return Ok(Event::Closed),
            }
            let length = usize::from(u16::from_be_bytes(length));
            let mut rest = vec![0; (length + 2).next_multiple_of(4) - 2 + 4];
            if self.stream.read_exact(&mut rest).is_err() {
                return Ok(Event::Closed);
            }
            rest.truncate(length);
            if let Some(event) = self.decode(&rest)? {
                return Ok(event);
            }
        }
    }

    fn decode(&mut self, ulpdu: &[u8]) -> io::Result<Option<Event>> {
        let &[ddp, rdmap, ..] = ulpdu else { return Err(bad("empty segment")) };
        let (tagged, last) = (ddp & 0x80 != 0, ddp & 0x40 != 0);
        let payload = ulpdu.get(if tagged { 14 } else { 18 }..).ok_or_else(|| bad("truncated header"))?;
        self.partial.extend(payload);
        if !last {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.partial);
        Ok(Some(match (rdmap & 0x0f, tagged) {
            (WRITE, true) => {
                let before = (whole.len() - payload.len()) as u64;
                Event::Write(word(ulpdu, 2)?, long(ulpdu, 6)?.wrapping_sub(before), whole)
            }
            (READ_RESPONSE, true) => Event::ReadResponse(whole),
            (READ_REQUEST, false) => Event::ReadRequest {
                sink: (word(&whole, 0)?, long(&whole, 4)?),
                size: word(&whole, 12)?,
                source: (word(&whole, 16)?, long(&whole, 20)?),
            },
            (_, false) if word(ulpdu, 6)? == TERMINATES => {
                let code = word(&whole, 0)?;
                Event::Terminate((code >> 28) as u8, (code >> 24) as u8 & 15, (code >> 16) as u8)
            }
            (opcode, false) => {
                let invalidates = matches!(opcode, SEND_INVALIDATE | 6);
                Event::Send(whole, if invalidates { Some(word(ulpdu, 2)?) } else { None })
            }
            _ => return Err(bad("unknown operation")),
        }))
    }
}
