//! The transmission phase of a connection.

use std::{
    mem,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use millrace_iscsi_initiator::{Buffer, Error, View};
use millrace_runtime::{BoxFuture, ByteStream, StallTimer};

use crate::{
    command::{Command, MAX_PAYLOAD},
    device::{Device, with_memory},
    error::ConnectionError,
    failure::Failure,
    handshake::Negotiated,
    input::{Input, Payload},
    output::{Head, Output},
    wire::{Errno, Request, command, put_data_chunk, put_error_chunk, put_simple_reply, put_status_chunk},
};

/// Maximum number of requests in progress: those whose reply is not sent.
const MAX_REQUESTS: usize = 256;
/// Maximum bytes of data of the requests in progress.
const MAX_BYTES: usize = MAX_PAYLOAD as usize;
/// Time without a byte after which a client has stopped within a request, or no longer receives replies: its requests keep
/// memory of the device that other clients need. Such a client is detected after one to two times this limit.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Rounds of work before other tasks of the executor have a turn.
const MAX_ROUNDS: usize = 16;

/// A connection with its requests in progress.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn ByteStream>,
    input: Input,
    output: Output,
    device: Device,
    negotiated: Negotiated,
    receiving: Receiving,
    operations: FuturesUnordered<BoxFuture<'static, Completed>>,
    /// Number of requests in progress, and bytes of their data.
    requests: usize,
    bytes: usize,
    /// Whether the last request was a write: then the next one is likely to have data, too.
    bulk: bool,
    /// Losses of completed writes that were reported to the client.
    losses: u64,
    /// Detects that the client does not continue a request, and that it does not receive replies.
    unreceived: StallTimer,
    unsent: StallTimer,
}

/// The part of a request that is received next.
enum Receiving {
    /// The header of a request.
    Header,
    /// Nothing, until there is memory for the data of a request.
    Memory {
        request: Request,
        command: Command,
        attempt: Option<BoxFuture<'static, Result<Vec<Buffer>, Error>>>,
    },
    /// The data of a write.
    Payload { request: Request, command: Command, payload: Payload },
    /// The data of a write that failed.
    Discarded { request: Request, left: usize, failure: Failure },
    /// Nothing more.
    Ended,
}

/// A request whose operation is complete.
struct Completed {
    request: Request,
    /// Bytes of data in progress.
    bytes: usize,
    result: Result<Answer, Failure>,
}

/// The contents of a reply.
enum Answer {
    Nothing,
    /// The data of a read.
    Data(Vec<View>),
    /// The states of ranges: length in bytes, and flags.
    Status(Vec<(u32, u32)>),
}

impl Connection {
    pub(crate) fn new(
        stream: Box<dyn ByteStream>,
        input: Input,
        device: Device,
        negotiated: Negotiated,
    ) -> Self {
        let losses = device.losses();
        Self {
            stream,
            input,
            output: Output::default(),
            device,
            negotiated,
            receiving: Receiving::Header,
            operations: FuturesUnordered::new(),
            requests: 0,
            bytes: 0,
            bulk: false,
            losses,
            unreceived: StallTimer::default(),
            unsent: StallTimer::default(),
        }
    }

    /// Receives no further request.
    pub(crate) fn stop(&mut self) {
        self.receiving = Receiving::Ended;
    }

    /// Serves the client until it disconnects, and the requests in progress are answered.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        for _ in 0..MAX_ROUNDS {
            let mut progress = false;
            while let Poll::Ready(Some(completed)) = self.operations.poll_next_unpin(cx) {
                self.complete(completed);
                progress = true;
            }
            match self.output.poll_flush(cx, &mut *self.stream) {
                // A client that has disconnected does not receive.
                Poll::Ready(Err(_)) if self.has_ended() => return Poll::Ready(Ok(())),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e.into())),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            while let Some(bytes) = self.output.next_sent() {
                (self.requests, self.bytes) = (self.requests - 1, self.bytes - bytes);
                progress = true;
            }
            progress |= self.receive(cx)?;
            if self.has_ended() && self.operations.is_empty() && self.output.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                return self.poll_stalled(cx).map(|()| Err(ConnectionError::Stalled));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when the connection waited too long for the client. Between requests, it waits without a limit.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (rt, limit) = (&self.device.rt, STALL_TIMEOUT);
        let incomplete = match self.receiving {
            Receiving::Header => self.requests < MAX_REQUESTS && !self.input.is_empty(),
            Receiving::Payload { .. } | Receiving::Discarded { .. } => true,
            Receiving::Memory { .. } | Receiving::Ended => false,
        };
        if incomplete && self.unreceived.poll(cx, rt, limit, self.input.received()).is_ready() {
            return Poll::Ready(());
        }
        if !self.output.is_empty() && self.unsent.poll(cx, rt, limit, self.output.sent()).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        matches!(self.receiving, Receiving::Ended)
    }

    /// Receives as many requests as are there and permitted. Returns whether there is progress.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut progress = false;
        loop {
            let now = mem::replace(&mut self.receiving, Receiving::Ended);
            let (next, advanced) = self.advance(now, cx)?;
            self.receiving = next;
            if !advanced {
                return Ok(progress);
            }
            progress = true;
        }
    }

    /// Receives what `now` names. Returns what follows, and whether there is progress.
    fn advance(
        &mut self,
        now: Receiving,
        cx: &mut Context<'_>,
    ) -> Result<(Receiving, bool), ConnectionError> {
        let stream = &mut *self.stream;
        match now {
            Receiving::Header if self.requests >= MAX_REQUESTS => Ok((now, false)),
            Receiving::Header => match self.input.poll_take(cx, stream, self.bulk)? {
                Poll::Pending => Ok((now, false)),
                Poll::Ready(None) => Ok((Receiving::Ended, true)),
                Poll::Ready(Some(header)) => {
                    let magic = ConnectionError::Protocol("a request without its magic number");
                    let request = Request::decode(&header).ok_or(magic)?;
                    Ok((self.request(request)?, true))
                }
            },
            Receiving::Memory { request, command, attempt } => {
                Ok(self.allocate(cx, request, command, attempt))
            }
            Receiving::Payload { request, command, mut payload } => {
                if self.input.poll_payload(cx, stream, &mut payload)?.is_pending() {
                    return Ok((Receiving::Payload { request, command, payload }, false));
                }
                self.start(request, command, payload.buffers);
                Ok((Receiving::Header, true))
            }
            Receiving::Discarded { request, left: 0, failure } => {
                self.complete(Completed { request, bytes: 0, result: Err(failure) });
                Ok((Receiving::Header, true))
            }
            Receiving::Discarded { request, left, failure } => {
                let received = self.input.poll_some(cx, stream, left)?.is_ready();
                let left = left - self.input.take(left).len();
                Ok((Receiving::Discarded { request, left, failure }, received))
            }
            Receiving::Ended => Ok((now, false)),
        }
    }

    /// Begins a request.
    fn request(&mut self, request: Request) -> Result<Receiving, ConnectionError> {
        self.bulk = request.command == command::WRITE;
        if request.command == command::DISC {
            return Ok(Receiving::Ended);
        }
        if self.bulk && request.length > MAX_PAYLOAD {
            return Err(ConnectionError::Protocol("a write exceeds the maximum payload"));
        }
        self.requests += 1;
        let command = Command::new(&request, &self.device.geometry(), self.negotiated);
        match command {
            Ok(command @ (Command::Read(_) | Command::Write { .. })) => {
                Ok(Receiving::Memory { request, command, attempt: None })
            }
            Ok(command) => {
                self.start(request, command, Vec::new());
                Ok(Receiving::Header)
            }
            Err(refusal) => Ok(self.refuse(request, refusal.into())),
        }
    }

    /// Answers a request that is not executed, after its data.
    fn refuse(&mut self, request: Request, failure: Failure) -> Receiving {
        let left = if request.command == command::WRITE { request.length as usize } else { 0 };
        Receiving::Discarded { request, left, failure }
    }

    /// Allocates memory for the data of a request.
    fn allocate(
        &mut self,
        cx: &mut Context<'_>,
        request: Request,
        command: Command,
        attempt: Option<BoxFuture<'static, Result<Vec<Buffer>, Error>>>,
    ) -> (Receiving, bool) {
        let length = request.length as usize;
        let result = match attempt {
            None if self.bytes > 0 && self.bytes + length > MAX_BYTES => {
                return (Receiving::Memory { request, command, attempt: None }, false);
            }
            None => match self.device.buffers(length) {
                Err(Error::OutOfMemory(_)) => {
                    let device = self.device.clone();
                    let attempt =
                        async move { with_memory(&device, async || device.buffers(length)).await }.boxed();
                    return (Receiving::Memory { request, command, attempt: Some(attempt) }, true);
                }
                done => done,
            },
            Some(mut attempt) => match attempt.poll_unpin(cx) {
                Poll::Pending => {
                    return (Receiving::Memory { request, command, attempt: Some(attempt) }, false);
                }
                Poll::Ready(done) => done,
            },
        };
        let next = match result {
            Ok(buffers) => {
                self.bytes += length;
                match command {
                    Command::Write { .. } => {
                        Receiving::Payload { request, command, payload: Payload::new(buffers) }
                    }
                    command => {
                        self.start(request, command, buffers);
                        Receiving::Header
                    }
                }
            }
            Err(e) => self.refuse(request, e.into()),
        };
        (next, true)
    }

    /// Starts the operation of a request. Reads and writes have buffers.
    fn start(&mut self, request: Request, command: Command, buffers: Vec<Buffer>) {
        let device = self.device.clone();
        let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        self.operations.push(Box::pin(async move {
            let done = |()| Answer::Nothing;
            let result = match command {
                Command::Read(range) => device.read(range.start, buffers).await.map(Answer::Data),
                Command::Write { range, fua } => device.write(range.start, buffers, fua).await.map(done),
                Command::Flush => device.flush().await.map(done),
                Command::Trim { range, fua } => device.trim(range, fua).await.map(done),
                Command::WriteZeroes { range, fua, punch } => {
                    device.write_zeroes(range, fua, punch).await.map(done)
                }
                Command::BlockStatus { range, one } => {
                    device.block_status(range, one).await.map(Answer::Status)
                }
            };
            Completed { request, bytes, result }
        }));
    }

    /// Answers a request.
    fn complete(&mut self, completed: Completed) {
        let Completed { request, bytes, mut result } = completed;
        let losses = self.device.losses();
        if request.command == command::FLUSH && losses != self.losses {
            self.losses = losses;
            let text = "the device was reset before completed writes were durable, so data may be lost";
            result = Err(Failure { errno: Errno::Io, text: text.into() });
        }
        let (mut head, cookie) = (Head::new(), request.cookie);
        let structured = self.negotiated.structured;
        let mut data = Vec::new();
        match result {
            Ok(Answer::Data(views)) => {
                match structured {
                    true => put_data_chunk(&mut head, cookie, request.offset, request.length),
                    false => put_simple_reply(&mut head, cookie, None),
                }
                data = views;
            }
            Ok(Answer::Status(ranges)) => put_status_chunk(&mut head, cookie, &ranges),
            Ok(Answer::Nothing) => put_simple_reply(&mut head, cookie, None),
            Err(Failure { errno, text }) => {
                tracing::debug!("request {request:?}: {text}");
                match structured {
                    true => put_error_chunk(&mut head, cookie, errno, &text),
                    false => put_simple_reply(&mut head, cookie, Some(errno)),
                }
            }
        }
        self.output.push_reply(head, data, bytes);
    }
}
