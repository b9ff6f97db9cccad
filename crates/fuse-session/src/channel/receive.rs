//! Buffers for requests: the data of a write is read into a buffer of an arena that the handler may keep, and need not be
//! copied.

use std::{
    io::{self, IoSliceMut},
    ops::Deref,
    os::fd::OwnedFd,
};

use crate::protocol::{DecodeError, Header, WriteRequest};
use millrace_buffer::{Arena, ArenaConfig, Buffer};
use rustix::io::{Errno, readv};

use super::MIN_BUFFER;

/// An arena for the buffers of a number of threads, for handlers that keep none.
pub(super) fn own_arena(max_write: u32, threads: usize) -> Arena {
    let limit = threads * (max_write as usize).max(MIN_BUFFER).next_power_of_two();
    Arena::new(ArenaConfig { limit, ..ArenaConfig::default() })
}

/// A request: its header, its body, and the data of a write.
pub(super) type Received<'a> = (Header, &'a [u8], WriteData<'a>);

/// A request that is in one buffer, which no handler keeps.
///
/// # Errors
/// Those of [`Header::decode`].
pub(super) fn whole(message: &[u8]) -> Result<Received<'_>, DecodeError> {
    let (header, body) = Header::decode(message)?;
    Ok((header, body, WriteData::Borrowed(message.get(WriteRequest::DATA..).unwrap_or_default())))
}

/// The buffers of a thread or task that reads requests.
pub(super) struct ReceiveBuffer {
    /// The header and parameters of a write, or all of another request.
    start: Vec<u8>,
    data: DataBuffer,
    /// Length of the request in bytes.
    length: usize,
}

/// What a read of `/dev/fuse` returns from [`WriteRequest::DATA`] on: the data of a write.
pub struct DataBuffer {
    buffer: Buffer,
    arena: Arena,
}

impl ReceiveBuffer {
    /// Buffers for requests with up to `max_write` bytes of data.
    ///
    /// # Errors
    /// `arena` has no memory.
    pub(super) fn new(arena: Arena, max_write: u32) -> io::Result<Self> {
        let buffer = arena.alloc((max_write as usize).max(MIN_BUFFER));
        let buffer = buffer.map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        Ok(Self { start: Vec::new(), data: DataBuffer { buffer, arena }, length: 0 })
    }

    /// Reads one request and returns its length. `None`: the mount has ended.
    ///
    /// # Errors
    /// Those of `device`: [`io::ErrorKind::WouldBlock`] if it does not block and there is no request.
    pub(super) fn receive(&mut self, device: &OwnedFd) -> io::Result<Option<usize>> {
        self.start.resize(WriteRequest::DATA, 0);
        let mut parts = [&mut self.start[..], &mut self.data.buffer[..]].map(IoSliceMut::new);
        loop {
            match readv(device, &mut parts) {
                Ok(length) => {
                    self.length = length;
                    return Ok(Some(length));
                }
                // The request was aborted before it was read.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The received request.
    ///
    /// # Errors
    /// Those of [`Header::decode`].
    pub(super) fn request(&mut self) -> Result<Received<'_>, DecodeError> {
        let Self { start, data, length } = self;
        let rest = length.saturating_sub(WriteRequest::DATA);
        start.truncate(*length);
        if rest > 0 && !WriteRequest::follows(&Header::decode_start(start, *length)?.0) {
            start.extend_from_slice(&data.buffer[..rest]);
        }
        let (header, body) = Header::decode_start(start, *length)?;
        Ok((header, body, WriteData::Received(data, rest)))
    }
}

/// The data of a write.
pub enum WriteData<'a> {
    /// In the buffer into which it was read, with its length.
    Received(&'a mut DataBuffer, usize),
    /// Elsewhere.
    Borrowed(&'a [u8]),
}

impl<'a> WriteData<'a> {
    /// The first `length` bytes; `None` if there are fewer.
    pub(super) fn first(self, length: u32) -> Option<Self> {
        let length = length as usize;
        (length <= self.len()).then(|| match self {
            Self::Received(buffer, _) => Self::Received(buffer, length),
            Self::Borrowed(data) => Self::Borrowed(&data[..length]),
        })
    }

    /// Takes the buffer that begins with the data, if it occupies as much memory as a new one of `room` bytes, which are
    /// at least those of the data. Its length is then `room`, and nothing is left here.
    pub fn take(&mut self, room: usize) -> Option<Buffer> {
        let Self::Received(received, _) = self else { return None };
        let (capacity, size) = (received.buffer.capacity(), received.buffer.len());
        if room > size || capacity >= 2 * room {
            return None;
        }
        // Without memory for the next request, requests that release memory could not be read.
        let next = received.arena.alloc(size).ok()?;
        let mut taken = std::mem::replace(&mut received.buffer, next);
        taken.set_len(room);
        *self = Self::Borrowed(&[]);
        Some(taken)
    }
}

impl Deref for WriteData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Received(received, length) => &received.buffer[..*length],
            Self::Borrowed(data) => data,
        }
    }
}
