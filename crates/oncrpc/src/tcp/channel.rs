//! Record I/O on a byte stream, for both ends of RPC over TCP.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll, ready},
};

use millrace_buffer::MemoryWait;
use millrace_runtime::ByteStream;
use millrace_xdr::{Arena, Buffer, Message};

use super::record::{Next, RecordReader, RecordWriter};
use millrace_admission::Account;

pub(super) struct Channel {
    stream: Box<dyn ByteStream>,
    reader: RecordReader,
    pub(super) writer: RecordWriter,
    memory: MemoryWait,
    /// Whether a record has started for which there is no memory yet.
    waits_for_memory: bool,
    /// Whether the stream may have accepted bytes that its transport does not have.
    unflushed: bool,
    pub(super) received: u64,
    pub(super) sent: u64,
}

fn no_memory(e: millrace_xdr::OutOfMemory) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, e)
}

impl Channel {
    /// Creates a channel whose records `reader` decodes.
    pub(super) fn new(stream: Box<dyn ByteStream>, arena: &Arena, reader: RecordReader) -> io::Result<Self> {
        let zeros = arena.copy_from(&[0; 4]).map_err(no_memory)?;
        Ok(Self {
            stream,
            reader,
            writer: RecordWriter::new(zeros),
            memory: MemoryWait::new(arena),
            waits_for_memory: false,
            unflushed: false,
            received: 0,
            sent: 0,
        })
    }

    /// Returns the next received record. `Ok(None)`: more bytes must be read ([`Self::poll_fill`]). Pending:
    /// there is no memory for the next record; the task is woken to try again. For a large record, `place` returns the
    /// memory for a part of it and the part's position, from the first bytes of the record and its length.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
        mut place: impl FnMut(&[u8], usize) -> Option<(usize, Buffer)>,
    ) -> Poll<io::Result<Option<Message>>> {
        self.poll_next(cx, None, |reader, len| {
            if let Some((offset, buffer)) = place(reader.start(), len) {
                reader.place(offset, buffer);
            }
        })
    }

    /// As [`Self::poll_reply`], with the record's memory charged to `account` before it is read. The charge
    /// passes to the caller with the record ([`Self::take_admitted`]). For a large record, `data_offset` returns the
    /// position of the data that starts a buffer, from the first bytes of the record and its length.
    pub(super) fn poll_call(
        &mut self,
        cx: &mut Context<'_>,
        account: &mut Account,
        mut data_offset: impl FnMut(&[u8], usize) -> Option<usize>,
    ) -> Poll<io::Result<Option<Message>>> {
        self.poll_next(cx, Some(account), |reader, len| {
            if let Some(offset) = data_offset(reader.start(), len) {
                reader.align(offset);
            }
        })
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        mut account: Option<&mut Account>,
        mut large: impl FnMut(&mut RecordReader, usize),
    ) -> Poll<io::Result<Option<Message>>> {
        self.waits_for_memory = true;
        loop {
            match self.reader.next_record() {
                Ok(Next::NeedAdmission(bytes)) => {
                    if let Some(account) = account.as_deref_mut() {
                        ready!(account.poll_take(cx, bytes));
                    }
                    self.reader.admit(bytes);
                }
                Ok(Next::Large(len)) => large(&mut self.reader, len),
                Ok(Next::NoMemory(e)) => {
                    self.memory.begin(&e);
                    ready!(self.memory.poll(cx));
                }
                other => {
                    self.waits_for_memory = false;
                    self.memory.end();
                    return Poll::Ready(match other {
                        Ok(Next::Record(m)) => Ok(Some(m)),
                        Ok(_) => Ok(None),
                        Err(e) => Err(io::Error::new(io::ErrorKind::InvalidData, e)),
                    });
                }
            }
        }
    }

    /// Lets others have the memory for which this task was woken, if it takes none in this turn.
    pub(super) fn yield_memory(&mut self, cx: &mut Context<'_>) {
        let _waits = self.memory.poll(cx);
    }

    /// Bytes charged for the last record.
    pub(super) fn take_admitted(&mut self) -> usize {
        self.reader.take_admitted()
    }

    /// Drops the partially received record and the queued replies. Returns the bytes charged for the record.
    pub(super) fn clear(&mut self) -> usize {
        self.writer.clear();
        self.reader.clear();
        self.memory.end();
        self.reader.take_admitted()
    }

    /// Reads once. `Ok(false)`: the stream has ended. To be called when [`Self::poll_reply`] needs more
    /// bytes.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` if it ends within a record.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.waits_for_memory {
            return Poll::Pending; // There is no memory for further bytes.
        }
        let read = self.stream.poll_read(cx, &mut self.reader.space());
        if read.is_pending() {
            self.reader.shrink();
        }
        let n = ready!(read)?;
        if n == 0 {
            return Poll::Ready(if self.reader.at_record_start() {
                Ok(false)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            });
        }
        self.received += n as u64;
        self.reader.advance(n);
        Poll::Ready(Ok(true))
    }

    /// Whether a record is partially received, and only the peer can complete it.
    pub(super) fn awaits_peer(&self) -> bool {
        !self.waits_for_memory && !self.reader.at_record_start()
    }

    /// Whether no record is partially received or queued.
    pub(super) fn is_quiescent(&self) -> bool {
        !self.waits_for_memory && self.reader.at_record_start() && self.is_flushed()
    }

    /// Writes until the queue is empty, and flushes the stream.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.writer.queued() > 0 {
            let n = ready!(self.stream.poll_write(cx, &self.writer.slices()))?;
            self.unflushed = true;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n as u64;
            self.writer.advance(n);
        }
        if self.unflushed {
            ready!(self.stream.poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the stream has all queued records, and its transport too.
    pub(super) fn is_flushed(&self) -> bool {
        self.writer.queued() == 0 && !self.unflushed
    }

    /// Takes the stream, until [`Self::set_stream`]. Nothing may be received or queued.
    pub(super) fn take_stream(&mut self) -> Box<dyn ByteStream> {
        std::mem::replace(&mut self.stream, Box::new(Gone))
    }

    /// Sets the stream after [`Self::take_stream`].
    pub(super) fn set_stream(&mut self, stream: Box<dyn ByteStream>) {
        self.stream = stream;
    }

    /// Shuts down the sending direction.
    pub(super) fn shutdown(&mut self) {
        self.stream.shutdown();
    }

    /// Resets the connection, which discards data that the peer has not received.
    pub(super) fn abort(&mut self) {
        self.stream.abort();
    }

    /// Reads and discards data until the peer closes its direction.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waste = [0; 4096];
        loop {
            match ready!(self.stream.poll_read(cx, &mut [io::IoSliceMut::new(&mut waste)])) {
                Ok(n) if n > 0 => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

/// The stream of a channel during its replacement.
struct Gone;

impl ByteStream for Gone {
    fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [io::IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, _: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    fn shutdown(&mut self) {}

    fn abort(&mut self) {}

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::NotConnected.into())
    }
}
