//! The connections of one client, single transmissions on them, and the deadlines of calls.

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{channel::oneshot, future::select, lock::MutexGuard};
use millrace_buffer::{Arena, Buffer};
use millrace_nfs::v3;
use millrace_oncrpc::{
    CallClass, CallbackHandler, Reply, ReplySpec, Request, RpcError, Sampler, Transport,
    gss::{CallSeal, GssError},
};
use millrace_runtime::{Instant, Runtime, RuntimeExt, RuntimeRef, sync::Mutex, timeout, tokio_rt::busy_poll};
use millrace_xdr::{Encode, Encoder};

use crate::{
    Connection, Connector, Error, Options, RetryPolicy, Stats,
    credential::{CallCredential, Callers},
    retry::{Clock, Event, Moment, Next, State},
    stats::{Counts, add},
};

/// Time after which an allocation fails if the memory is exhausted all the time.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum duration of the last calls of a client, so that an unresponsive server does not delay the end of a program.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends requests one after another, for at most [`END_TIMEOUT`]. Without them, the server ends what they end at its own time.
pub(crate) async fn submit_all(rt: &dyn Runtime, transport: &dyn Transport, requests: Vec<Request>) {
    let submit = async {
        for request in requests {
            drop(transport.submit(request).await);
        }
    };
    let _ = timeout(rt, END_TIMEOUT, submit).await;
}

/// Connections that are closed when the value is dropped.
struct ClosedOnDrop(Vec<Connection>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| c.transport.close());
    }
}

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

impl CallSpec {
    /// Encodes the header of a call.
    pub(crate) fn put_header(&self, e: &mut Encoder, credential: &CallCredential) {
        millrace_oncrpc::call_header(e, self.program, self.version, self.procedure, credential);
    }
}

/// A slot for a connection.
#[derive(Default)]
struct Slot {
    current: Mutex<Option<Connection>>,
    /// Whether the slot has had a connection.
    used: AtomicBool,
}

/// The right of a call to set up the connection of a slot, over its attempts.
pub(crate) struct Turn<'p> {
    slot: &'p Slot,
    _setup: MutexGuard<'p, ()>,
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
    /// Empty before its first use, at which the connector has the port.
    server: OnceLock<String>,
    retry: RetryPolicy,
    /// Time limit of the first call on a connection.
    first_answer: Duration,
    /// Time limit of a call on one connection.
    pub(crate) timeout: Duration,
    slots: Box<[Slot]>,
    /// Locks held during the setup of a connection; slots share them.
    setups: [futures::lock::Mutex<()>; SETUPS],
    next: AtomicUsize,
    closed: AtomicBool,
    /// The callers, with their security contexts.
    pub(crate) callers: Callers,
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
            callers: Callers::new(options.sec, connector.host(), Arc::clone(&rt), arena.clone()),
            rt,
            arena,
            counts,
            server: OnceLock::new(),
            connector,
            retry: options.retry,
            first_answer: options.connect_timeout,
            timeout: options.timeout,
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

    /// Name of the server in messages: of the first use, which follows the choice of the transport and its port.
    pub(crate) fn server(&self) -> &str {
        self.server.get_or_init(|| self.connector.server())
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
        let connections = self.take();
        let requests = self.callers.end((v3::PROGRAM, v3::VERSION));
        if requests.is_empty() {
            connections.iter().for_each(|c| c.transport.close());
        } else {
            self.rt.spawn("end security contexts", Box::pin(self.finish(connections, requests)));
        }
    }

    /// Sends the last requests of the client on one of its connections, and closes these, within [`END_TIMEOUT`].
    pub(crate) fn finish(
        &self,
        connections: Vec<Connection>,
        requests: Vec<Request>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let rt = Arc::clone(&self.rt);
        let transport = connections.first().map(|c| Arc::clone(&c.transport));
        let closed = ClosedOnDrop(connections);
        async move {
            let _closed = closed;
            if let Some(transport) = transport {
                submit_all(&*rt, &*transport, requests).await;
            }
        }
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
            tracing::info!(server = self.server(), "reconnected");
        }
        // `close` may have run concurrently.
        if self.closed.load(Ordering::Acquire) {
            transport.close();
            return Err(Error::Closed);
        }
        Ok(transport)
    }

    /// Index of the connection for the next call, and the connection if it is established.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) fn next_connection(&self) -> Result<(usize, Option<Arc<dyn Transport>>), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        Ok((next, self.slots[next].live()))
    }

    /// Returns an established connection: that of index `next`, or another one while it is set up. If there is none, sets one
    /// up, once, while no other call does so; returns why that has failed.
    ///
    /// # Errors
    /// Those that end the call.
    pub(crate) async fn transport<'p>(
        &'p self,
        turn: &mut Option<Turn<'p>>,
        next: usize,
        retry: &Retry<'_>,
    ) -> Result<Result<Arc<dyn Transport>, String>, Error> {
        let slot = match turn {
            Some(turn) => turn.slot,
            None => {
                let (slot, setup) = (&self.slots[next], &self.setups[next % SETUPS]);
                let setup = match setup.try_lock() {
                    Some(guard) => guard,
                    // Another task is connecting: use any established connection.
                    None => {
                        if let Some(t) = self.any_transport() {
                            return Ok(Ok(t));
                        }
                        retry.within("another call sets up the connection", setup.lock()).await?
                    }
                };
                // The call may have waited for its turn, or for a slot of the session, until its deadline.
                if retry.left() == Some(Duration::ZERO) {
                    return Err(retry.expired("there is no connection"));
                }
                turn.insert(Turn { slot, _setup: setup }).slot
            }
        };
        let connected = match slot.live() {
            Some(t) => Ok(t),
            None => self.connect_slot(slot).await,
        };
        match connected {
            Ok(t) => {
                *turn = None;
                Ok(Ok(t))
            }
            Err(e @ (Error::Closed | Error::OutOfMemory(_) | Error::Local(_))) => Err(e),
            Err(e) => {
                let why = e.to_string();
                if retry.left().is_some() && !self.unreachable.swap(true, Ordering::AcqRel) {
                    tracing::warn!("{why}; retrying until the server answers");
                }
                Ok(Err(why))
            }
        }
    }

    /// Closes a connection on which a call got no reply: the peer may be unresponsive.
    pub(crate) fn abandon(&self, transport: &Arc<dyn Transport>) {
        transport.close();
        self.slots.iter().for_each(|s| s.discard(transport));
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
        // Boxed, because it is rare and would enlarge every call.
        let waiting = Box::pin(self.arena.wait_for(|arena| arena.alloc(len)));
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
        credential: &CallCredential,
        args: &A,
    ) -> Result<Reply, Error> {
        let (server, procedure, after) = (self.server().to_owned(), spec.name, self.first_answer);
        let no_answer = move || Error::NoAnswer { server, procedure, after };
        let started = self.rt.now();
        // A key distribution center that is slow is not at the port.
        let seal = match credential.seal(transport, (spec.program, spec.version), || after).await {
            Err(GssError::NoAnswer { .. }) => return Err(no_answer()),
            seal => seal.map_err(|e| self.gss_error(spec.name, e))?,
        };
        let call = transport.submit(self.request(spec, credential, args, seal)?);
        let left = after.saturating_sub(self.rt.now().duration_since(started));
        match timeout(&*self.rt, left, call).await {
            Some(answered) => answered.map_err(|e| self.rpc_error(spec.name, e)),
            None => Err(no_answer()),
        }
    }

    /// Makes a call on one connection, without retransmission.
    pub(crate) async fn call_on<A: Encode>(
        &self,
        transport: &Arc<dyn Transport>,
        spec: CallSpec,
        credential: &CallCredential,
        args: &A,
    ) -> Result<Reply, Error> {
        let seal = credential.seal(transport, (spec.program, spec.version), || self.timeout).await;
        let seal = seal.map_err(|e| self.gss_error(spec.name, e))?;
        let request = self.request(spec, credential, args, seal)?;
        transport.submit(request).await.map_err(|e| self.rpc_error(spec.name, e))
    }

    /// Encodes a call without payload in its reply, which `seal` protects.
    pub(crate) fn request<A: Encode>(
        &self,
        spec: CallSpec,
        credential: &CallCredential,
        args: &A,
        seal: Option<CallSeal>,
    ) -> Result<Request, Error> {
        let message = self.encode(|e| {
            spec.put_header(e, credential);
            e.put(args);
        })?;
        let reply = ReplySpec { max_head: spec.max_head, ..ReplySpec::default() };
        Ok(Request { seal, ..Request::new(message, reply) })
    }

    /// Whether the client was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Encodes a call: its header and arguments.
    pub(crate) fn encode(&self, put: impl FnOnce(&mut Encoder)) -> Result<millrace_oncrpc::Message, Error> {
        // Sufficient for an AUTH_SYS header with all groups and most calls; longer calls grow the buffer.
        let mut e = Encoder::new(&self.arena, 384);
        put(&mut e);
        Ok(e.finish()?)
    }

    pub(crate) fn rpc_error(&self, procedure: &'static str, error: RpcError) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return Error::Closed;
        }
        Error::Rpc { server: self.server().to_owned(), procedure, error }
    }

    /// The error of a call whose caller has no security context.
    pub(crate) fn gss_error(&self, procedure: &'static str, error: GssError) -> Error {
        match error {
            GssError::Call(error) => self.rpc_error(procedure, error),
            error => Error::Kerberos { server: self.server().to_owned(), error },
        }
    }

    /// Returns the error for an invalid reply.
    pub(crate) fn bad_reply(&self, procedure: &'static str, reason: impl ToString) -> Error {
        Error::BadReply { server: self.server().to_owned(), procedure, reason: reason.to_string() }
    }
}

/// The retries of a call, or of the calls of one recovery, with one deadline ([`Clock`]).
pub(crate) struct Retry<'p> {
    pool: &'p Pool,
    name: &'static str,
    started: Instant,
    clock: Clock,
}

impl<'p> Retry<'p> {
    pub(crate) fn new(pool: &'p Pool, name: &'static str) -> Self {
        Self { pool, name, started: pool.rt.now(), clock: Clock::new(&pool.retry) }
    }

    fn elapsed(&self) -> Duration {
        self.pool.rt.now().duration_since(self.started)
    }

    /// What to do after `event`.
    pub(crate) fn next(&mut self, state: &mut State, event: Event) -> Next {
        let Self { pool, started, clock, .. } = self;
        state.next(clock, event, || Moment::now(&*pool.rt, *started))
    }

    /// The time until the deadline; `None` without retries.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.clock.left(self.elapsed())
    }

    /// The error of a call that no further attempt follows. `last`: the reason of the last retry.
    pub(crate) fn expired(&self, last: &str) -> Error {
        let (server, last) = (self.pool.server().to_owned(), last.to_owned());
        Error::Unreachable { server, procedure: self.name, after: self.elapsed(), last }
    }

    /// Waits before the next attempt, after an answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the policy permits no further attempt; [`Error::Closed`].
    pub(crate) async fn pause(&mut self, last: &str) -> Result<(), Error> {
        match self.clock.delay(true, Moment::now(&*self.pool.rt, self.started)) {
            Some(delay) => self.sleep(delay, last).await,
            None => Err(self.expired(last)),
        }
    }

    /// Waits for `delay` before the next attempt.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) async fn sleep(&self, delay: Duration, last: &str) -> Result<(), Error> {
        if self.pool.is_closed() {
            return Err(Error::Closed);
        }
        if !delay.is_zero() {
            tracing::debug!(server = self.pool.server(), procedure = self.name, ?delay, last, "retrying");
            self.pool.rt.sleep(delay).await;
        }
        Ok(())
    }

    /// Waits for what another task or a recovery does, until the deadline.
    ///
    /// # Errors
    /// [`Error::Unreachable`] with the reason `what`.
    pub(crate) async fn within<T>(&self, what: &str, other: impl Future<Output = T>) -> Result<T, Error> {
        let Some(left) = self.left() else { return Ok(other.await) };
        let ended = timeout(&*self.pool.rt, left, other).await;
        ended.ok_or_else(|| self.expired(what))
    }
}
