//! The connections of one client, and calls over them, with reconnection and retransmission
//! ([`crate::retransmission`]).

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{channel::oneshot, future::select};
use millrace_buffer::{Arena, Buffer};
use millrace_oncrpc::{
    CallClass, CallbackHandler, EncodedCredential, Reply, ReplySpec, Request, RpcError, Sampler, Stage,
    Stages, Transport,
};
use millrace_runtime::{Instant, RuntimeExt, RuntimeRef, sync::Mutex, timeout, tokio_rt::busy_poll};
use millrace_xdr::{Encode, Encoder};

use crate::{
    Connection, Connector, Error, Options, RetryPolicy, Stats,
    stats::{Counts, add},
};

/// Time after which an allocation fails if the memory is exhausted all the time.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// The properties of a procedure's calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallSpec {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) name: &'static str,
    /// Maximum size of the reply in bytes, without payload.
    pub(crate) max_head: usize,
    /// As in [`ReplySpec`].
    pub(crate) payload_offset: usize,
    /// Whether a retransmission keeps the XID, so that the server's duplicate request cache recognises it.
    pub(crate) keep_xid: bool,
    pub(crate) class: CallClass,
}

/// The reply to a call.
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    /// The connection of the reply.
    pub(crate) transport: Arc<dyn Transport>,
    /// Whether the call was retransmitted: the server may have executed it twice.
    pub(crate) resent: bool,
    /// The time stamps of the call's stages, up to its reply.
    pub(crate) stages: Stages,
}

/// A slot for a connection.
#[derive(Default)]
struct Slot {
    current: Mutex<Option<Connection>>,
    /// Whether the slot has had a connection.
    used: AtomicBool,
}

/// Maximum number of concurrent connection setups of one client. A larger burst can overflow a server's
/// backlog: the RDMA listener of Linux 7.3 with siw (backlog 10) fails permanently after 11 simultaneous
/// requests.
const SETUPS: usize = 4;

impl Slot {
    fn live(&self) -> Option<Arc<dyn Transport>> {
        let current = self.current.lock();
        let transport = &current.as_ref()?.transport;
        transport.failure().is_none().then(|| Arc::clone(transport))
    }

    /// Removes a connection that must not be used any more.
    fn discard(&self, transport: &Arc<dyn Transport>) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(&c.transport, transport)) {
            *current = None;
        }
    }
}

pub(crate) struct Pool {
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) counts: Counts,
    pub(crate) sampler: Sampler,
    connector: Arc<dyn Connector>,
    server: String,
    retry: RetryPolicy,
    /// Time limit of the first call on a connection.
    first_answer: Duration,
    slots: Box<[Slot]>,
    /// Locks held during the setup of a connection; slots share them.
    setups: [futures::lock::Mutex<()>; SETUPS],
    next: AtomicUsize,
    closed: AtomicBool,
    /// Answers the calls of the server.
    callbacks: Mutex<Option<Arc<dyn CallbackHandler>>>,
    /// Whether connecting has failed since the last success. Limits the log to one warning.
    unreachable: AtomicBool,
    /// Ends the task that polls for replies when it is dropped.
    _busy_poll: Option<oneshot::Sender<Infallible>>,
}

/// Starts to poll for replies on the thread of `rt`, until the result is dropped.
fn start_busy_poll(rt: &RuntimeRef, limit: Duration) -> Option<oneshot::Sender<Infallible>> {
    if limit.is_zero() || rt.is_virtual() {
        return None;
    }
    let (client, ended) = oneshot::channel();
    let poll = async move { drop(select(pin!(busy_poll(limit)), ended).await) };
    rt.spawn("busy poll", Box::pin(poll));
    Some(client)
}

impl Pool {
    pub(crate) fn new(
        rt: RuntimeRef,
        arena: Arena,
        connector: Arc<dyn Connector>,
        options: &Options,
    ) -> Self {
        let counts = Counts::default();
        Self {
            sampler: Sampler::new(
                Arc::clone(&rt),
                "client",
                options.sample_stages,
                Arc::clone(&counts.stages),
            ),
            _busy_poll: start_busy_poll(&rt, options.busy_poll),
            rt,
            arena,
            counts,
            server: connector.server(),
            connector,
            retry: options.retry,
            first_answer: options.connect_timeout,
            slots: (0..options.nconnect.clamp(1, crate::url::MAX_CONNECTIONS))
                .map(|_| Slot::default())
                .collect(),
            setups: std::array::from_fn(|_| futures::lock::Mutex::new(())),
            next: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            callbacks: Mutex::default(),
            unreachable: AtomicBool::new(false),
        }
    }

    /// Name of the server in messages.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Sets up all connections, each with one attempt.
    pub(crate) async fn connect_all(&self) -> Result<(), Error> {
        let connect = |(i, slot): (usize, _)| async move {
            let _turn = self.setups[i % SETUPS].lock().await;
            self.connect_slot(slot).await.map(drop)
        };
        futures::future::try_join_all(self.slots.iter().enumerate().map(connect)).await.map(drop)
    }

    /// Returns an established connection, if there is one.
    pub(crate) fn any_transport(&self) -> Option<Arc<dyn Transport>> {
        self.slots.iter().find_map(Slot::live)
    }

    /// Has `handler` answer the calls of the server on all connections.
    pub(crate) fn handle_callbacks(&self, handler: Arc<dyn CallbackHandler>) {
        let mut callbacks = self.callbacks.lock();
        let handler = callbacks.insert(handler);
        self.slots.iter().filter_map(Slot::live).for_each(|transport| transport.handle_callbacks(handler));
    }

    /// Maximum payload of one call that all established connections support, in bytes.
    pub(crate) fn max_payload(&self) -> usize {
        self.slots.iter().filter_map(Slot::live).map(|t| t.max_payload()).min().unwrap_or(usize::MAX)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counts.snapshot();
        let current = self.slots.iter().filter_map(|s| s.current.lock().clone());
        stats.connections = current.map(|c| (c.stats)()).collect();
        stats
    }

    pub(crate) fn close(&self) {
        self.take().iter().for_each(|c| c.transport.close());
    }

    /// Closes the client for later calls, and returns its connections, which the caller closes.
    pub(crate) fn take(&self) -> Vec<Connection> {
        self.closed.store(true, Ordering::Release);
        self.slots.iter().filter_map(|slot| slot.current.lock().take()).collect()
    }

    async fn connect_slot(&self, slot: &Slot) -> Result<Arc<dyn Transport>, Error> {
        let connection = self.connector.connect().await?;
        let transport = Arc::clone(&connection.transport);
        self.unreachable.store(false, Ordering::Release);
        let old = slot.current.lock().replace(connection);
        if let Some(old) = old {
            old.transport.close();
        }
        if let Some(handler) = &*self.callbacks.lock() {
            transport.handle_callbacks(handler);
        }
        if slot.used.swap(true, Ordering::AcqRel) {
            add(&self.counts.reconnects, 1);
            tracing::info!(server = self.server, "reconnected");
        }
        // `close` may have run concurrently.
        if self.closed.load(Ordering::Acquire) {
            transport.close();
            return Err(Error::Closed);
        }
        Ok(transport)
    }

    /// Returns an established connection. Reconnects if necessary, until `attempt` expires.
    async fn transport(&self, attempt: &mut Attempt<'_>) -> Result<Arc<dyn Transport>, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let (slot, setup) = (&self.slots[i], &self.setups[i % SETUPS]);
        if let Some(t) = slot.live() {
            return Ok(t);
        }
        let _turn = match setup.try_lock() {
            Some(guard) => guard,
            // Another task is connecting: use any established connection.
            None => {
                if let Some(t) = self.slots.iter().find_map(Slot::live) {
                    return Ok(t);
                }
                // The wait is bounded, because the holder's attempt expires.
                setup.lock().await
            }
        };
        loop {
            if let Some(t) = slot.live() {
                return Ok(t);
            }
            match self.connect_slot(slot).await {
                Ok(t) => return Ok(t),
                Err(e @ (Error::Closed | Error::OutOfMemory(_) | Error::Local(_))) => return Err(e),
                Err(e) => {
                    let why = e.to_string();
                    attempt.pause(why.clone()).await?;
                    if !self.unreachable.swap(true, Ordering::AcqRel) {
                        tracing::warn!("{why}; retrying until the server answers");
                    }
                }
            }
        }
    }

    /// Makes a call. `payload` is the buffer for the reply's payload; a retransmission after a lost
    /// connection allocates a new buffer of the same length.
    pub(crate) async fn call<A: Encode>(
        &self,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
        mut payload: Option<Buffer>,
    ) -> Result<Answered, Error> {
        let payload_len = payload.as_ref().map(|b| b.len());
        let mut attempt = Attempt::new(self, spec.name);
        let (mut first_xid, mut resent) = (None, false);
        loop {
            let transport = self.transport(&mut attempt).await?;
            let payload = self.take_payload(&mut payload, payload_len).await?;
            // Retransmissions are not sampled, because the loss of the connection dominates their time.
            let stages = if resent { Stages::NONE } else { self.sampler.next_call(None) };
            let kept_xid = first_xid.filter(|_| spec.keep_xid);
            let message = self.encode(spec, credential, args)?;
            stages.set_class(spec.class);
            stages.end(Stage::Encode);
            let request = Request {
                message,
                reply: ReplySpec { max_head: spec.max_head, payload, payload_offset: spec.payload_offset },
                xid: kept_xid,
                stages: stages.clone(),
            };
            let mut pending = transport.submit(request);
            let result = (&mut pending).await;
            // `None` if the call was never sent, so that the server cannot have executed it.
            let xid = pending.xid();
            match result {
                Ok(reply) => {
                    add(&self.counts.calls, 1);
                    stages.set_xid(xid.unwrap_or_default());
                    return Ok(Answered { reply, transport, resent, stages });
                }
                Err(e @ (RpcError::Disconnected { .. } | RpcError::TimedOut { .. })) => {
                    // After a timeout the peer may be unresponsive: discard the connection.
                    transport.close();
                    self.slots.iter().for_each(|s| s.discard(&transport));
                    attempt.pause(e.to_string()).await?;
                }
                // Another call on the new connection has the same XID: wait for its reply.
                Err(RpcError::Local(why)) if kept_xid.is_some() => attempt.pause(why).await?,
                Err(error) => return Err(self.rpc_error(spec.name, error)),
            }
            if xid.is_some() {
                resent = true;
                first_xid = first_xid.or(xid);
                add(&self.counts.retransmits, 1);
            }
        }
    }

    /// The buffer for the payload of the next reply: the given one for the first transmission, then new ones of `len` bytes.
    ///
    /// # Errors
    /// Those of [`Self::wait_for_buffer`].
    pub(crate) async fn take_payload(
        &self,
        given: &mut Option<Buffer>,
        len: Option<usize>,
    ) -> Result<Option<Buffer>, Error> {
        match (given.take(), len) {
            (None, Some(len)) => Ok(Some(self.wait_for_buffer(len).await?)),
            (given, _) => Ok(given),
        }
    }

    /// Allocates a buffer of `len` bytes. Waits if other calls use the memory, because they return it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] after [`MEMORY_TIMEOUT`], or at once if the arena has no buffers of this length.
    pub(crate) async fn wait_for_buffer(&self, len: usize) -> Result<Buffer, Error> {
        let full = match self.arena.alloc(len) {
            Ok(buffer) => return Ok(buffer),
            Err(full) => full,
        };
        let waiting = self.arena.wait_for(|arena| arena.alloc(len));
        Ok(timeout(&*self.rt, MEMORY_TIMEOUT, waiting).await.unwrap_or(Err(full))?)
    }

    /// As [`Self::call_on`], for the first call on a connection. The time limit is that of the setup of a connection, because
    /// another service may listen on the port.
    ///
    /// # Errors
    /// [`Error::NoAnswer`]; those of [`Self::call_on`].
    pub(crate) async fn first_call<A: Encode>(
        &self,
        transport: &Arc<dyn Transport>,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
    ) -> Result<Reply, Error> {
        let call = self.call_on(transport, spec, credential, args);
        let answered = timeout(&*self.rt, self.first_answer, call).await;
        let (server, procedure, after) = (self.server.clone(), spec.name, self.first_answer);
        answered.unwrap_or(Err(Error::NoAnswer { server, procedure, after }))
    }

    /// Makes a call on one connection, without retransmission.
    pub(crate) async fn call_on<A: Encode>(
        &self,
        transport: &Arc<dyn Transport>,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
    ) -> Result<Reply, Error> {
        let request = self.request(spec, credential, args)?;
        transport.submit(request).await.map_err(|e| self.rpc_error(spec.name, e))
    }

    /// Encodes a call without payload in its reply.
    pub(crate) fn request<A: Encode>(
        &self,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
    ) -> Result<Request, Error> {
        let message = self.encode(spec, credential, args)?;
        Ok(Request::new(message, ReplySpec { max_head: spec.max_head, ..ReplySpec::default() }))
    }

    /// Whether the client was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn encode<A: Encode>(
        &self,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
    ) -> Result<millrace_oncrpc::Message, Error> {
        // Sufficient for an AUTH_SYS header with all groups and most calls; longer calls grow the buffer.
        let mut e = Encoder::new(&self.arena, 384);
        millrace_oncrpc::call_header(&mut e, spec.program, spec.version, spec.procedure, credential);
        e.put(args);
        Ok(e.finish()?)
    }

    fn rpc_error(&self, procedure: &'static str, error: RpcError) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return Error::Closed;
        }
        Error::Rpc { server: self.server.clone(), procedure, error }
    }

    /// Returns the error for an invalid reply.
    pub(crate) fn bad_reply(&self, procedure: &'static str, reason: impl ToString) -> Error {
        Error::BadReply { server: self.server.clone(), procedure, reason: reason.to_string() }
    }
}

/// Retry timer of a call.
pub(crate) struct Attempt<'p> {
    pool: &'p Pool,
    name: &'static str,
    started: Instant,
    delay: Duration,
}

impl<'p> Attempt<'p> {
    pub(crate) fn new(pool: &'p Pool, name: &'static str) -> Self {
        Self { pool, name, started: pool.rt.now(), delay: pool.retry.first_delay }
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// [`Error::Unreachable`] with the reason `last` if the retry policy permits no further attempt;
    /// [`Error::Closed`].
    pub(crate) async fn pause(&mut self, last: String) -> Result<(), Error> {
        self.pause_within(self.pool.retry.max_elapsed, last).await
    }

    /// As [`Self::pause`], where the time for attempts is at least `limit`, unless the retry policy permits none.
    pub(crate) async fn pause_at_least(&mut self, limit: Duration, last: &str) -> Result<(), Error> {
        let most = self.pool.retry.max_elapsed;
        let limit = if most.is_zero() { most } else { most.max(limit) };
        self.pause_within(limit, last.to_owned()).await
    }

    /// As [`Self::pause`], where the time for attempts is `limit` instead of that of the retry policy.
    async fn pause_within(&mut self, limit: Duration, last: String) -> Result<(), Error> {
        let Pool { rt, retry, server, .. } = self.pool;
        let elapsed = rt.now().duration_since(self.started);
        // A random part of the delay, half or more, so that clients do not retry simultaneously.
        let delay = self.delay / 2
            + self.delay.mul_f64(f64::from(rt.random_u64() as u32) / 2.0 / f64::from(u32::MAX));
        if self.pool.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if elapsed + delay >= limit {
            return Err(Error::Unreachable {
                server: server.clone(),
                procedure: self.name,
                after: elapsed,
                last,
            });
        }
        tracing::debug!(server, procedure = self.name, ?delay, last, "retrying");
        self.delay = (self.delay * 2).min(retry.max_delay);
        rt.sleep(delay).await;
        Ok(())
    }
}
