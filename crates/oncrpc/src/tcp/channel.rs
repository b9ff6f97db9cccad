//! A byte stream that carries records: the thin I/O between [`super::record`] and the two ends of RPC.

use std::{
    io,
    task::{Context, Poll, ready},
};

use millrace_runtime::{ByteStream, RuntimeExt, RuntimeRef, Sleep};
use millrace_xdr::{Arena, Message};

use super::record::{Next, RecordReader, RecordWriter};
use crate::serving::{Account, MEMORY_RETRY};

pub(super) struct Channel {
    stream: Box<dyn ByteStream>,
    reader: RecordReader,
    pub(super) writer: RecordWriter,
    rt: RuntimeRef,
    retry: Option<Sleep>,
    /// A record has begun for which there is no memory yet.
    waits_for_memory: bool,
    pub(super) received: u64,
    pub(super) sent: u64,
}

fn no_memory(e: millrace_xdr::OutOfMemory) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, e)
}

impl Channel {
    /// A stream whose records `reader` cuts.
    pub(super) fn new(
        stream: Box<dyn ByteStream>,
        rt: RuntimeRef,
        arena: &Arena,
        reader: RecordReader,
    ) -> io::Result<Self> {
        let zeros = arena.copy_from(&[0; 4]).map_err(no_memory)?;
        Ok(Self {
            stream,
            reader,
            writer: RecordWriter::new(zeros),
            rt,
            retry: None,
            waits_for_memory: false,
            received: 0,
            sent: 0,
        })
    }

    /// A record whose bytes are here. `Ok(None)`: more must be read ([`Self::poll_fill`]). Pending: there is no memory
    /// for the record that comes; the task is woken to try again.
    pub(super) fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Message>>> {
        self.poll_next(cx, None)
    }

    /// The same, with the record's memory taken from `account` before it is read. It is the caller's with the record
    /// ([`Self::take_admitted`]).
    pub(super) fn poll_call(
        &mut self,
        cx: &mut Context<'_>,
        account: &mut Account,
    ) -> Poll<io::Result<Option<Message>>> {
        self.poll_next(cx, Some(account))
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        mut account: Option<&mut Account>,
    ) -> Poll<io::Result<Option<Message>>> {
        self.waits_for_memory = true;
        loop {
            match self.reader.next_record() {
                Ok(Next::NeedRoom(bytes)) => {
                    if let Some(account) = account.as_deref_mut() {
                        ready!(account.poll_take(cx, bytes));
                    }
                    self.reader.admit(bytes);
                }
                Ok(Next::NoMemory) => {
                    let rt = &self.rt;
                    let sleep = self.retry.get_or_insert_with(|| rt.sleep(MEMORY_RETRY));
                    ready!(sleep.as_mut().poll(cx));
                    self.retry = None;
                }
                other => {
                    self.waits_for_memory = false;
                    return Poll::Ready(match other {
                        Ok(Next::Record(m)) => Ok(Some(m)),
                        Ok(_) => Ok(None),
                        Err(e) => Err(io::Error::new(io::ErrorKind::InvalidData, e)),
                    });
                }
            }
        }
    }

    /// Memory that was taken for the last record.
    pub(super) fn take_admitted(&mut self) -> usize {
        self.reader.take_admitted()
    }

    /// Drops the record that is being read, and the replies that are queued; gives what was taken from the account for the
    /// record.
    pub(super) fn clear(&mut self) -> usize {
        self.writer.clear();
        self.reader.clear();
        self.reader.take_admitted()
    }

    /// Reads once. `Ok(false)`: the stream has ended. Call it when [`Self::poll_record`] has nothing.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` when it ends inside a record.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.waits_for_memory {
            return Poll::Pending; // There is no room for what would be read.
        }
        let n = ready!(self.stream.poll_read(cx, &mut self.reader.space()))?;
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

    /// Whether a record has begun and only the peer can bring the rest of it.
    pub(super) fn awaits_rest(&self) -> bool {
        !self.waits_for_memory && !self.reader.at_record_start()
    }

    /// Whether no record is on its way, in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.waits_for_memory && self.reader.at_record_start() && self.writer.queued() == 0
    }

    /// Writes until nothing is queued.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.writer.queued() > 0 {
            let n = ready!(self.stream.poll_write(cx, &self.writer.slices()))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n as u64;
            self.writer.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    /// Ends our direction.
    pub(super) fn shutdown(&mut self) {
        self.stream.shutdown();
    }

    /// Ends the connection with a reset, in which what the peer has not received yet is lost.
    pub(super) fn abort(&mut self) {
        self.stream.abort();
    }

    /// Reads and forgets until the peer ends its direction too.
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
