//! The queue pair: posted work, transmitter and receiver over one byte stream, and the end of the connection.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_buffer::{Arena, Buffer, Views};
use millrace_rdma::{
    Capabilities, Completion, ConnectParams, ConnectionError, ConnectionInfo, Counters, DomainRef,
    MAX_PIECES, MAX_TRANSFER, PostError, QueuePair, ReadRequest, SendRequest, WriteRequest,
    stag::{StagDomain, StagTables},
};
use millrace_runtime::{ByteStream, RuntimeExt, RuntimeRef, Sleep};

use super::{
    fault::Fault,
    nudge::Nudge,
    reads::{Reads, SentRead},
    receives::Receives,
    rx::{LazyTable, Rx, RxContext},
    setup::Negotiated,
    tx::{Flushed, Tx},
    wire::rdmap::ReadRequestBody,
};

/// Maximum number of stream reads per `poll`, so that one connection cannot monopolise a shard.
const READS_PER_POLL: usize = 16;
/// Time limit, at the end of a connection, for the peer to receive the last bytes and close.
const LINGER: Duration = Duration::from_secs(1);

enum State {
    /// Connected.
    Open,
    /// `disconnect` was called; posted work is still being sent.
    Disconnecting,
    /// All work is sent and the sending direction is closed; waits for the peer to close, up to the time
    /// limit.
    Lingering(Sleep),
    /// An error has occurred; the Terminate that reports it is being sent, up to the time limit.
    Failing(ConnectionError, Sleep),
    /// The connection has ended.
    Down(ConnectionError),
}

/// A connection of the iWARP provider.
pub(crate) struct IwarpQp {
    stream: Box<dyn ByteStream>,
    rt: RuntimeRef,
    domain: Arc<StagDomain>,
    tx: Tx,
    rx: Rx,
    receives: Receives,
    reads: Reads,
    info: ConnectionInfo,
    capabilities: Capabilities,
    counters: Counters,
    state: State,
    /// Completions of work that `flush` sent.
    done: Vec<Completion>,
    /// Why the stream accepts no more bytes. Data that the peer sent before is still read, as it may contain
    /// a Terminate.
    unwritable: Option<ConnectionError>,
    waker: Option<Waker>,
    /// Present on an initiator until the first FPDU arrives.
    nudge: Option<Nudge>,
}

impl IwarpQp {
    /// Creates a queue pair over `stream` with the result of MPA startup.
    pub(crate) fn new(
        rt: RuntimeRef,
        stream: Box<dyn ByteStream>,
        params: &ConnectParams,
        negotiated: Negotiated,
        tags: StagTables,
    ) -> Self {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let info = ConnectionInfo {
            local: stream.local_addr().unwrap_or(unspecified),
            peer: stream.peer_addr().unwrap_or(unspecified),
            ord: negotiated.ord,
            ird: negotiated.ird,
            private_data: negotiated.private,
            crc: negotiated.crc,
        };
        Self {
            stream,
            domain: Arc::new(tags.domain(Arc::clone(&rt))),
            rt,
            tx: Tx::new(negotiated.crc, params.max_frame, negotiated.responder),
            rx: Rx::new(negotiated.crc, usize::from(negotiated.ird), negotiated.rtr_send),
            receives: Receives::default(),
            reads: Reads { ord: usize::from(negotiated.ord), ..Reads::default() },
            info,
            capabilities: Capabilities::new("iwarp", true, MAX_PIECES, MAX_TRANSFER, usize::MAX),
            counters: Counters::default(),
            state: State::Open,
            done: Vec::new(),
            unwritable: None,
            waker: None,
            nudge: (!negotiated.responder).then(Nudge::default),
        }
    }

    fn check_open(&self) -> Result<(), PostError> {
        match self.state {
            State::Open => Ok(()),
            _ => Err(PostError::Closed),
        }
    }

    /// Passes waiting reads to the transmitter up to the ORD.
    fn start_reads(&mut self) -> Result<(), Fault> {
        while let Some(r) = self.reads.next_to_start() {
            let Some(tag) = self.domain.reserve_sink() else {
                return Err(Fault::without_terminate(ConnectionError::Local("no free steering tag".into())));
            };
            self.tx.read(&ReadRequestBody {
                sink_tag: tag,
                sink_offset: 0,
                size: r.from.length,
                source_tag: r.from.handle.0,
                source_offset: r.from.offset,
            });
            let size = r.from.length as usize;
            self.reads.sent.push_back(SentRead { id: r.id, tag, size, placed: 0, sink: r.sink });
        }
        Ok(())
    }

    /// Sends. `Ready(true)` if work remains that the stream could accept now.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.unwritable.is_some() {
            return Poll::Ready(false);
        }
        if let Err(fault) = self.start_reads() {
            self.fail(fault);
            return Poll::Ready(false);
        }
        let Self { tx, stream, domain, done, counters, .. } = self;
        match tx.flush(cx, &mut **stream, domain, done, counters) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Flushed::All)) => Poll::Ready(false),
            Poll::Ready(Ok(Flushed::Some)) => Poll::Ready(true),
            Poll::Ready(Err(fault)) if fault.terminate.is_some() => {
                self.fail(fault);
                Poll::Ready(false)
            }
            Poll::Ready(Err(fault)) => {
                self.unwritable = Some(fault.error);
                self.tx.clear();
                Poll::Ready(false)
            }
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Fault>> {
        let Self { rx, stream, domain, receives, reads, tx, counters, .. } = self;
        let table = LazyTable::new(domain);
        rx.receive(cx, &mut **stream, &mut RxContext { table, receives, reads, tx, out, counters })
    }

    /// Ready when memory for a received message is to be allocated again; pending if none waits.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.rx.waits_for_memory() { self.receives.poll_memory(cx) } else { Poll::Pending }
    }

    /// Ends the connection because of `fault`.
    fn fail(&mut self, fault: Fault) {
        tracing::debug!(peer = %self.info.peer, error = %fault.error, "connection ends");
        match fault.terminate {
            Some(t) if !matches!(self.state, State::Failing(..)) && self.unwritable.is_none() => {
                self.tx.release();
                self.tx.terminate(&t);
                self.state = State::Failing(fault.error, self.rt.sleep(LINGER));
            }
            _ => self.down(fault.error),
        }
    }

    /// Ends the connection and releases all its memory.
    fn down(&mut self, error: ConnectionError) {
        self.stream.shutdown();
        self.domain.close();
        self.tx.clear();
        self.reads.clear();
        self.receives.clear();
        self.state = State::Down(error);
    }

    /// Sends the Terminate.
    fn drive_failing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { tx, stream, domain, done, counters, state, .. } = self;
        let State::Failing(error, limit) = state else { return Poll::Ready(()) };
        let (error, late) = (error.clone(), limit.as_mut().poll(cx).is_ready());
        match tx.flush(cx, &mut **stream, domain, done, counters) {
            Poll::Pending if !late => return Poll::Pending,
            _ => {}
        }
        self.stream.shutdown();
        self.drain(cx);
        self.down(error);
        Poll::Ready(())
    }

    /// Reads and discards pending input. Closing a socket with unread bytes resets the connection, and the
    /// peer might lose the Terminate.
    fn drain(&mut self, cx: &mut Context<'_>) {
        let mut rest = [0; 16 << 10];
        for _ in 0..64 {
            let read = self.stream.poll_read(cx, &mut [std::io::IoSliceMut::new(&mut rest)]);
            if !matches!(read, Poll::Ready(Ok(n)) if n > 0) {
                break;
            }
        }
    }

    /// Whether the peer may have missed the first message.
    fn is_unanswered(&self) -> bool {
        let c = &self.counters;
        self.nudge.is_some() && !self.rx.has_received() && c.sends + c.writes + c.reads > 0
    }

    /// Queues an empty Write if the peer may have missed the first message. Returns whether a Write was
    /// queued.
    fn nudge(&mut self, cx: &mut Context<'_>) -> bool {
        if self.rx.has_received() || !matches!(self.state, State::Open) {
            self.nudge = None;
        }
        if !self.is_unanswered() {
            return false;
        }
        match self.nudge.as_mut().map(|n| n.poll(cx, &self.rt)) {
            Some(Poll::Ready(true)) => {
                tracing::debug!(peer = %self.info.peer, "no answer to the first message: sending an empty RDMA Write");
                self.tx.write(Views::new(), 0, 0);
                true
            }
            Some(Poll::Ready(false)) => {
                self.nudge = None;
                false
            }
            _ => false,
        }
    }

    /// Sends and receives as far as possible. `Ready` if the connection has ended or `out` has more than the
    /// `had` completions that it had before.
    fn drive(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<Completion>,
        had: usize,
    ) -> Poll<Result<(), ConnectionError>> {
        for _ in 0..READS_PER_POLL {
            if let State::Down(error) = &self.state {
                // Completions are reported before the error.
                return Poll::Ready(if out.len() == had { Err(error.clone()) } else { Ok(()) });
            }
            if let State::Failing(..) = self.state {
                match self.drive_failing(cx) {
                    Poll::Pending if out.len() == had => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(Ok(())),
                    Poll::Ready(()) => continue,
                }
            }
            let sent = self.send(cx);
            out.append(&mut self.done);
            if matches!(self.state, State::Disconnecting) && self.tx.is_idle() {
                self.stream.shutdown();
                self.state = State::Lingering(self.rt.sleep(LINGER));
            }
            if out.len() > had {
                return Poll::Ready(Ok(()));
            }
            if matches!(self.state, State::Failing(..)) {
                continue;
            }
            match self.receive(cx, out) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(fault)) => self.fail(fault),
                Poll::Pending => {
                    if let Some(error) = self.unwritable.clone() {
                        self.down(error);
                        continue;
                    }
                    if let State::Lingering(limit) = &mut self.state
                        && limit.as_mut().poll(cx).is_ready()
                    {
                        self.down(ConnectionError::Closed);
                        continue;
                    }
                    if self.nudge(cx) || self.poll_memory(cx).is_ready() {
                        continue;
                    }
                    if sent == Poll::Ready(true) {
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
        if out.len() == had {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl QueuePair for IwarpQp {
    fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn domain(&self) -> DomainRef {
        Arc::clone(&self.domain) as DomainRef
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.check_open()?;
        self.receives.push(buffer);
        Ok(())
    }

    fn post_empty_receive(&mut self, arena: &Arena, bytes: usize) -> Result<(), PostError> {
        self.check_open()?;
        self.receives.push_empty(arena, bytes)
    }

    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check()?;
        self.counters.sends += 1;
        self.tx.send(request.data, request.invalidate.map(|t| t.0), request.solicited, request.signaled);
        Ok(())
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check()?;
        self.counters.writes += 1;
        self.tx.write(request.data, request.to.handle.0, request.to.offset);
        Ok(())
    }

    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check(self.info.ord)?;
        self.counters.reads += 1;
        self.reads.waiting.push_back(request);
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        let had = out.len();
        out.append(&mut self.done);
        self.drive(cx, out, had)
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        if matches!(self.state, State::Open | State::Disconnecting) {
            let _ = self.send(cx);
            if self.is_unanswered() && self.nudge.as_ref().is_some_and(|n| !n.is_armed()) {
                // `poll` starts the timer.
                cx.waker().wake_by_ref();
            }
        }
    }

    fn disconnect(&mut self) {
        if !matches!(self.state, State::Open) {
            return;
        }
        self.state = State::Disconnecting;
        // The owner continues to poll until the end, or drops the queue pair; in that case the work that the
        // stream accepts now is still sent.
        let waker = self.waker.clone().unwrap_or_else(|| Waker::noop().clone());
        let _ = self.send(&mut Context::from_waker(&waker));
        waker.wake();
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for IwarpQp {
    fn drop(&mut self) {
        self.domain.close();
    }
}
