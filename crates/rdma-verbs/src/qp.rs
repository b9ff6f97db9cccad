//! The queue pair: drives the adapter's queues and handles the end of the connection.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_buffer::{Arena, Buffer, Views};
use millrace_rdma::{
    Capabilities, Completion, ConnectionError, ConnectionInfo, Counters, DomainRef, PostError, QueuePair,
    ReadRequest, SendRequest, WriteRequest,
};
use millrace_runtime::{Readiness, RuntimeExt, RuntimeRef, Sleep};

use super::{
    cm::Event,
    fault,
    ffi::cm::{RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED},
    queues::{Inner, Shared},
    send::Work,
};

/// Maximum number of rounds per `poll`, so that one connection cannot monopolise a shard.
const ROUNDS: usize = 16;
/// Time limit at the end of a connection: for the peer to close it, and for the event that states why the
/// queues were flushed.
const LINGER: Duration = Duration::from_secs(1);

enum State {
    Open,
    /// `disconnect` was called; posted work is still being sent.
    Disconnecting,
    /// The peer was notified; waits for its response, up to the time limit.
    Lingering(Sleep),
    /// The adapter has flushed work; waits for the cause, up to the time limit.
    Flushed(Sleep),
    Down(ConnectionError),
}

/// A connection of the verbs provider.
pub(super) struct VerbsQp {
    shared: Arc<Shared>,
    rt: RuntimeRef,
    arena: Arena,
    info: ConnectionInfo,
    capabilities: Capabilities,
    /// Maximum number of pieces of a Send.
    send_pieces: usize,
    completions: Box<dyn Readiness>,
    events: Box<dyn Readiness>,
    state: State,
    waker: Option<Waker>,
}

/// The parts of a queue pair besides its queues.
pub(super) struct Parts {
    pub(super) rt: RuntimeRef,
    pub(super) arena: Arena,
    pub(super) info: ConnectionInfo,
    pub(super) capabilities: Capabilities,
    pub(super) send_pieces: usize,
    pub(super) completions: Box<dyn Readiness>,
    pub(super) events: Box<dyn Readiness>,
}

/// Next step after processing the queues.
enum Next {
    Again,
    Wait,
}

impl VerbsQp {
    pub(super) fn new(shared: Arc<Shared>, parts: Parts) -> Self {
        let Parts { rt, arena, info, capabilities, send_pieces, completions, events } = parts;
        Self {
            shared,
            rt,
            arena,
            info,
            capabilities,
            send_pieces,
            completions,
            events,
            state: State::Open,
            waker: None,
        }
    }

    fn check_open(&self) -> Result<(), PostError> {
        match self.state {
            State::Open => Ok(()),
            _ => Err(PostError::Closed),
        }
    }

    /// Returns a message in at most as many pieces as the adapter supports; with more pieces it is copied.
    fn limit_pieces(&self, data: Views) -> Result<Views, PostError> {
        if data.iter().len() <= self.send_pieces {
            return Ok(data);
        }
        let no_memory = |_| {
            PostError::Invalid(
                "a Send has more pieces than the adapter supports, and there is no memory to copy it",
            )
        };
        let mut whole = self.arena.alloc(data.len()).map_err(no_memory)?;
        let mut at = 0;
        for v in data.iter() {
            millrace_buffer::copy(&mut whole[at..at + v.len()], v);
            at += v.len();
        }
        Ok(Views::from(whole.freeze()))
    }

    /// Ends the connection and releases all its memory.
    fn down(&mut self, inner: &mut Inner, error: ConnectionError) {
        tracing::debug!(peer = %self.info.peer, %error, "connection ends");
        inner.close();
        self.state = State::Down(error);
    }

    /// Posts work, takes completions, and updates the state.
    fn step(&mut self, out: &mut Vec<Completion>, had: usize) -> Poll<Result<Next, ConnectionError>> {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.0.lock();
        inner.post();
        inner.reap();
        out.append(&mut inner.done);
        if out.len() > had {
            inner.post();
            return Poll::Ready(Ok(Next::Again));
        }
        if let State::Down(error) = &self.state {
            return Poll::Ready(Err(error.clone()));
        }
        if inner.queues.is_none() {
            // A revocation has closed the queues.
            let error = inner.fault.take().unwrap_or_else(fault::flushed);
            self.down(&mut inner, error);
        } else if let Some(error) = inner.fault.take() {
            self.down(&mut inner, error);
        } else if inner.flushed && matches!(self.state, State::Open | State::Disconnecting) {
            self.state = State::Flushed(self.rt.sleep(LINGER));
        } else if matches!(self.state, State::Disconnecting)
            && let Some(q) = &inner.queues
            && q.sends.is_idle()
        {
            let _ = q.hardware.id.disconnect(); // An error means that the connection has ended, which an event reports.
            self.state = State::Lingering(self.rt.sleep(LINGER));
        } else if !inner.arm(matches!(self.state, State::Disconnecting)) {
            return Poll::Ready(Ok(Next::Wait));
        }
        Poll::Pending
    }

    /// Takes events of the adapter and of the connection manager. `Ready` if there was one.
    fn take_events(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.shared;
        let mut take = || match &mut shared.0.lock().queues {
            Some(q) => q.hardware.take_event(),
            None => Ok(()),
        };
        if let Poll::Ready(result) = self.completions.poll_io(cx, &mut take) {
            let mut inner = self.shared.0.lock();
            inner.counters.syscalls += 1;
            if let Err(e) = result {
                inner.fault = Some(fault::of_call("wait for the RDMA device", &e));
            }
            return Poll::Ready(());
        }
        let mut event = None;
        let mut take = || {
            if let Some(q) = &mut shared.0.lock().queues {
                event = Some(q.hardware.id.next_event()?);
            }
            Ok(())
        };
        if let Poll::Ready(result) = self.events.poll_io(cx, &mut take) {
            let error = match result {
                Ok(()) => event.and_then(|e| self.ended_by(&e)),
                Err(e) => Some(fault::of_call("wait for the connection manager", &e)),
            };
            if let Some(error) = error {
                self.shared.0.lock().end(error);
            }
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// The error if an event of the connection manager ends the connection.
    fn ended_by(&self, event: &Event) -> Option<ConnectionError> {
        match event.kind {
            RDMA_CM_EVENT_DISCONNECTED => Some(ConnectionError::Closed),
            RDMA_CM_EVENT_DEVICE_REMOVAL => Some(ConnectionError::Io(format!(
                "the RDMA device of {} was removed; reconnect when it is available, or through another device",
                self.info.local
            ))),
            _ => None,
        }
    }

    /// `Ready` after the time limit for the end of the connection.
    fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        match &mut self.state {
            State::Lingering(limit) => limit.as_mut().poll(cx).map(|()| ConnectionError::Closed),
            State::Flushed(limit) => limit.as_mut().poll(cx).map(|()| fault::flushed()),
            _ => Poll::Pending,
        }
    }
}

impl QueuePair for VerbsQp {
    fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn domain(&self) -> DomainRef {
        Arc::clone(&self.shared) as DomainRef
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.check_open()?;
        let mut inner = self.shared.0.lock();
        inner.queues.as_mut().ok_or(PostError::Closed)?.receives.push(buffer);
        Ok(())
    }

    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check()?;
        if request.invalidate.is_some() && !self.capabilities.send_with_invalidate {
            return Err(PostError::Invalid("the adapter does not support Send with Invalidate"));
        }
        let data = self.limit_pieces(request.data)?;
        let mut inner = self.shared.0.lock();
        inner.queues.as_mut().ok_or(PostError::Closed)?.sends.push(Work::Send {
            data,
            invalidate: request.invalidate.map(|t| t.0),
            solicited: request.solicited,
            signaled: request.signaled,
        });
        inner.counters.sends += 1;
        Ok(())
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check()?;
        let mut inner = self.shared.0.lock();
        inner.counters.writes += 1;
        inner.counters.tagged_bytes_out += request.data.len() as u64;
        let sends = &mut inner.queues.as_mut().ok_or(PostError::Closed)?.sends;
        if !request.data.is_empty() {
            let (rkey, offset) = (request.to.handle.0, request.to.offset);
            sends.push(Work::Write { data: request.data, at: 0, rkey, offset });
        }
        Ok(())
    }

    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError> {
        self.check_open()?;
        request.check(self.info.ord)?;
        let length = request.from.length as usize;
        let mut inner = self.shared.0.lock();
        inner.counters.reads += 1;
        inner.counters.tagged_bytes_in += length as u64;
        inner.counters.placed_directly += length as u64;
        match &mut inner.queues {
            None => return Err(PostError::Closed),
            Some(q) if length > 0 => q.sends.push_read(request),
            Some(_) => inner.done.push(Completion::Read { id: request.id, sink: request.sink }),
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        let had = out.len();
        for _ in 0..ROUNDS {
            match self.step(out, had) {
                Poll::Ready(Ok(Next::Again)) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => continue,
                Poll::Ready(Ok(Next::Wait)) => {}
            }
            if self.take_events(cx).is_ready() {
                continue;
            }
            match self.poll_limit(cx) {
                Poll::Ready(error) => self.shared.0.lock().end(error),
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn flush(&mut self, _: &mut Context<'_>) {
        self.shared.0.lock().post();
    }

    fn disconnect(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Disconnecting;
            self.shared.0.lock().post();
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    fn counters(&self) -> Counters {
        self.shared.0.lock().counters
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.shared.0.lock().close();
    }
}

/// The placeholder for an unknown address.
pub(super) fn unspecified_addr() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}
