//! The connections of one client, and calls over them: made again and sent again as [`crate::retransmission`] says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_buffer::{Arena, Buffer};
use millrace_oncrpc::{
    CallClass, EncodedCredential, Reply, ReplySpec, Request, RpcError, Sampler, Stage, Stages, Transport,
};
use millrace_runtime::{Instant, RuntimeExt, RuntimeRef};
use millrace_xdr::{Encode, Encoder};
use parking_lot::Mutex;

use crate::{
    Connection, Connector, Error, RetryPolicy, Stats,
    stats::{Counts, add},
};

/// A call's fixed part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallSpec {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) name: &'static str,
    /// The most bytes of the reply, payload excluded.
    pub(crate) max_head: usize,
    /// Sent again with its XID, so that the server's duplicate request cache answers.
    pub(crate) keep_xid: bool,
    pub(crate) class: CallClass,
}

/// An answered call.
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    /// It was sent before, on a connection that was lost: the server may have executed it twice.
    pub(crate) resent: bool,
    /// The call's stamps, up to its reply.
    pub(crate) stages: Stages,
}

/// One place for a connection.
#[derive(Default)]
struct Slot {
    current: Mutex<Option<Connection>>,
    /// There was a connection in this place.
    used: AtomicBool,
}

/// Connections of one client that are being set up at once. More come in a burst that a server with a short queue of
/// connection requests does not survive: the RDMA listener of Linux (siw of 7.3, queue of 10) is gone for good after 11.
const SETUPS: usize = 4;

impl Slot {
    fn live(&self) -> Option<Arc<dyn Transport>> {
        let current = self.current.lock();
        let transport = &current.as_ref()?.transport;
        transport.failure().is_none().then(|| Arc::clone(transport))
    }

    /// Forgets a connection that shall not be used again.
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
    slots: Box<[Slot]>,
    /// The one for a slot is held by whoever sets up its connection.
    setups: [futures::lock::Mutex<()>; SETUPS],
    next: AtomicUsize,
    closed: AtomicBool,
    /// Connecting has failed since it last succeeded; that was said.
    unreachable: AtomicBool,
}

impl Pool {
    pub(crate) fn new(
        rt: RuntimeRef,
        arena: Arena,
        connector: Arc<dyn Connector>,
        retry: RetryPolicy,
        connections: usize,
        sample: u32,
    ) -> Self {
        let counts = Counts::default();
        Self {
            sampler: Sampler::new(Arc::clone(&rt), "client", sample, Arc::clone(&counts.stages)),
            rt,
            arena,
            counts,
            server: connector.server(),
            connector,
            retry,
            slots: (0..connections.clamp(1, crate::url::MAX_CONNECTIONS)).map(|_| Slot::default()).collect(),
            setups: std::array::from_fn(|_| futures::lock::Mutex::new(())),
            next: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
        }
    }

    /// The server, for messages.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Makes all connections, each with one try.
    pub(crate) async fn connect_all(&self) -> Result<(), Error> {
        let connect = |(i, slot): (usize, _)| async move {
            let _turn = self.setups[i % SETUPS].lock().await;
            self.connect_slot(slot).await.map(drop)
        };
        futures::future::try_join_all(self.slots.iter().enumerate().map(connect)).await.map(drop)
    }

    /// A connection that is up, if there is one.
    pub(crate) fn any_transport(&self) -> Option<Arc<dyn Transport>> {
        self.slots.iter().find_map(Slot::live)
    }

    /// The most payload that one call can carry on every connection that is up.
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
        self.closed.store(true, Ordering::Release);
        for slot in &*self.slots {
            if let Some(c) = slot.current.lock().take() {
                c.transport.close();
            }
        }
    }

    async fn connect_slot(&self, slot: &Slot) -> Result<Arc<dyn Transport>, Error> {
        let connection = self.connector.connect().await?;
        let transport = Arc::clone(&connection.transport);
        self.unreachable.store(false, Ordering::Release);
        let old = slot.current.lock().replace(connection);
        if let Some(old) = old {
            old.transport.close();
        }
        if slot.used.swap(true, Ordering::AcqRel) {
            add(&self.counts.reconnects, 1);
            tracing::info!(server = self.server, "connected again");
        }
        // `close` may have run between.
        if self.closed.load(Ordering::Acquire) {
            transport.close();
            return Err(Error::Closed);
        }
        Ok(transport)
    }

    /// A connection that is up, made again if need be until `attempt` is over.
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
            // Others are being made; meanwhile any that is up will do.
            None => {
                if let Some(t) = self.slots.iter().find_map(Slot::live) {
                    return Ok(t);
                }
                // Every holder gives up when its own attempt is over, so the wait is bounded.
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
                        tracing::warn!("{why}; trying again until it answers");
                    }
                }
            }
        }
    }

    /// Makes a call. `payload`: memory for the reply's payload; when a connection is lost with it, a call that is sent
    /// again gets fresh memory of the same length.
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
            let payload = match (payload.take(), payload_len) {
                (None, Some(len)) => Some(self.arena.alloc(len)?),
                (given, _) => given,
            };
            // A call that is sent again is not sampled: its time is that of the connection's loss.
            let stages = if resent { Stages::NONE } else { self.sampler.next_call(None) };
            let kept_xid = first_xid.filter(|_| spec.keep_xid);
            let message = self.encode(spec, credential, args)?;
            stages.set_class(spec.class);
            stages.end(Stage::Encode);
            let request = Request {
                message,
                reply: ReplySpec { max_head: spec.max_head, payload },
                xid: kept_xid,
                stages: stages.clone(),
            };
            let mut pending = transport.submit(request);
            let result = (&mut pending).await;
            // None for a call that was never sent, which the server cannot have executed.
            let xid = pending.xid();
            match result {
                Ok(reply) => {
                    add(&self.counts.calls, 1);
                    stages.set_xid(xid.unwrap_or_default());
                    return Ok(Answered { reply, resent, stages });
                }
                Err(e @ (RpcError::Disconnected { .. } | RpcError::TimedOut { .. })) => {
                    // After a time-out the connection may be up and mute: it is not used again.
                    transport.close();
                    self.slots.iter().for_each(|s| s.discard(&transport));
                    attempt.pause(e.to_string()).await?;
                }
                // By a rare chance another call of the new connection has the XID; soon it will have its answer.
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

    fn encode<A: Encode>(
        &self,
        spec: CallSpec,
        credential: &EncodedCredential,
        args: &A,
    ) -> Result<millrace_oncrpc::Message, Error> {
        // Room for an AUTH_SYS header with all groups and a call with a name; longer ones grow.
        let mut e = Encoder::new(&self.arena, 512);
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

    /// The error for a reply that cannot be decoded.
    pub(crate) fn bad_reply(&self, procedure: &'static str, reason: impl ToString) -> Error {
        Error::BadReply { server: self.server.clone(), procedure, reason: reason.to_string() }
    }
}

/// Keeps the time of a call that is tried more than once.
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

    /// Waits before the next try.
    ///
    /// # Errors
    /// When there is no time for another one; `last` is what the last try ended with.
    pub(crate) async fn pause(&mut self, last: String) -> Result<(), Error> {
        let Pool { rt, retry, server, .. } = self.pool;
        let elapsed = rt.now().duration_since(self.started);
        // Between half and all of the delay, so that many clients do not come back at one moment.
        let delay = self.delay / 2
            + self.delay.mul_f64(f64::from(rt.random_u64() as u32) / 2.0 / f64::from(u32::MAX));
        if self.pool.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if elapsed + delay >= retry.max_elapsed {
            return Err(Error::Unreachable {
                server: server.clone(),
                procedure: self.name,
                after: elapsed,
                last,
            });
        }
        tracing::debug!(server, procedure = self.name, ?delay, last, "trying again");
        self.delay = (self.delay * 2).min(retry.max_delay);
        rt.sleep(delay).await;
        Ok(())
    }
}
