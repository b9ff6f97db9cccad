//! A client that waits for each answer, or sends any bytes.

use std::{
    collections::HashMap,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const REQ_ONE: u16 = 8;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// A client in the transmission phase.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    next: u64,
    /// Lengths of the reads without an answer.
    reads: HashMap<u64, usize>,
}

/// The answer to a request: the error, or the data.
pub(crate) type Answer = Result<Vec<u8>, u32>;

/// A connection that has received the greeting.
pub(crate) fn greeted(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(receive(&mut stream, 18), b"NBDMAGICIHAVEOPT\0\x03");
    stream
}

pub(crate) fn receive(stream: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Whether the server has closed the connection; bytes that arrive first are ignored.
pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
    // A connection with unread bytes is reset.
    std::io::copy(stream, &mut std::io::sink())
        .map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |_| true)
}

pub(crate) fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    [b"IHAVEOPT", &kind.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

pub(crate) fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    let (cookie, offset) = (cookie.to_be_bytes(), offset.to_be_bytes());
    [b"\x25\x60\x95\x13", &flags[..], &command, &cookie, &offset, &length.to_be_bytes()].concat()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

impl Client {
    pub(crate) fn connect(path: &Path, structured: bool) -> Self {
        Self::connect_with(path, structured, false)
    }

    /// A client with structured replies and `base:allocation`.
    pub(crate) fn with_allocation(path: &Path) -> Self {
        Self::connect_with(path, true, true)
    }

    fn connect_with(path: &Path, structured: bool, allocation: bool) -> Self {
        let mut stream = greeted(path);
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        if structured {
            stream.write_all(&option(8, &[])).unwrap();
            assert_eq!(receive(&mut stream, 20)[12..16], 1_u32.to_be_bytes());
        }
        if allocation {
            let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
            stream.write_all(&option(10, query)).unwrap();
            // The context with its number, and the end of the answer.
            let answer = receive(&mut stream, 20 + 19 + 20);
            assert_eq!(answer[12..39], *b"\0\0\0\x04\0\0\0\x13\0\0\0\x01base:allocation");
        }
        stream.write_all(&option(1, &[])).unwrap();
        let export = receive(&mut stream, 10);
        let size = u64::from_be_bytes(number(&export, 0));
        let flags = u16::from_be_bytes(number(&export, 8));
        Self { stream, structured, size, flags, next: 1, reads: HashMap::new() }
    }

    /// Sends a request, and returns its cookie.
    pub(crate) fn send(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let bytes = [&request(flags, command, cookie, offset, length), data].concat();
        self.stream.write_all(&bytes).unwrap();
        if command == READ {
            self.reads.insert(cookie, length as usize);
        }
        cookie
    }

    /// Sends reads of the first `length` bytes together, and returns their cookies.
    pub(crate) fn send_reads(&mut self, count: u64, length: u32) -> Vec<u64> {
        let cookies: Vec<_> = (self.next..self.next + count).collect();
        self.next += count;
        let bytes: Vec<u8> = cookies.iter().flat_map(|cookie| request(0, READ, *cookie, 0, length)).collect();
        self.stream.write_all(&bytes).unwrap();
        self.reads.extend(cookies.iter().map(|cookie| (*cookie, length as usize)));
        cookies
    }

    /// Receives an answer, with its cookie.
    pub(crate) fn answer(&mut self) -> (u64, Answer) {
        let magic = receive(&mut self.stream, 4);
        match magic[..] {
            [0x67, 0x44, 0x66, 0x98] => {
                let rest = receive(&mut self.stream, 12);
                let error = u32::from_be_bytes(number(&rest, 0));
                let cookie = u64::from_be_bytes(number(&rest, 4));
                let read = self.reads.remove(&cookie);
                assert!(read.is_none() || !self.structured, "a simple reply to a read");
                let length = read.filter(|_| error == 0).unwrap_or(0);
                let data = receive(&mut self.stream, length);
                (cookie, if error == 0 { Ok(data) } else { Err(error) })
            }
            [0x66, 0x8e, 0x33, 0xef] => {
                assert!(self.structured);
                let rest = receive(&mut self.stream, 16);
                assert_eq!(rest[..2], [0, 1], "the only chunk");
                let cookie = u64::from_be_bytes(number(&rest, 4));
                let mut data = receive(&mut self.stream, u32::from_be_bytes(number(&rest, 12)) as usize);
                let read = self.reads.remove(&cookie);
                let answer = match u16::from_be_bytes(number(&rest, 2)) {
                    0 => Ok(data),
                    1 => Ok(data.split_off(8)),
                    5 => {
                        assert_eq!(data[..4], 1_u32.to_be_bytes(), "the number of the context");
                        return (cookie, Ok(data.split_off(4)));
                    }
                    0x8001 => Err(u32::from_be_bytes(number(&data, 0))),
                    other => panic!("chunk of type {other}"),
                };
                assert!(answer.as_ref().is_err() || read == answer.as_ref().ok().map(Vec::len));
                (cookie, answer)
            }
            _ => panic!("no reply: {magic:02x?}"),
        }
    }

    /// Whether another byte arrives before the end of the stream.
    pub(crate) fn peek(&mut self) -> bool {
        let mut byte = [0; 1];
        let (fd, flags) = (&self.stream, rustix::net::RecvFlags::PEEK);
        rustix::net::recv(fd, &mut byte, flags).is_ok_and(|(n, _)| n > 0)
    }

    /// Sends a request without others in progress, and receives its answer.
    pub(crate) fn call(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> Answer {
        let sent = self.send(flags, command, offset, length, data);
        let (cookie, answer) = self.answer();
        assert_eq!(cookie, sent);
        answer
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Answer {
        self.call(0, READ, offset, length, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.call(0, WRITE, offset, data.len() as u32, data)
    }

    /// Length and flags of the ranges from `offset` on.
    pub(crate) fn status(&mut self, flags: u16, offset: u64, length: u32) -> Result<Vec<(u32, u32)>, u32> {
        let data = self.call(flags, BLOCK_STATUS, offset, length, &[])?;
        let field = |range: &[u8], at| u32::from_be_bytes(number(range, at));
        Ok(data.chunks_exact(8).map(|range| (field(range, 0), field(range, 4))).collect())
    }

    pub(crate) fn flush(&mut self) -> Answer {
        self.call(0, FLUSH, 0, 0, &[])
    }
}
