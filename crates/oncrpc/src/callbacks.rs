//! Calls in the reverse direction: from the server to the client of a connection, as the back channel of
//! NFSv4.1 needs them (RFC 8881 section 2.10.3.1).

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use futures::channel::oneshot;
use millrace_runtime::{RuntimeRef, sync::Mutex, timeout};
use millrace_xdr::{Decoder, Message};

use crate::{MSG_REPLY, Reply, RpcError, parse_reply};

/// Maximum number of calls in progress on a connection.
const MAX_CALLS: usize = 32;
/// Maximum size in bytes of an accepted reply: replies are not charged to the client's account.
const MAX_REPLY: usize = 4096;

/// Sends calls to the client of one connection, from any thread. Clones refer to the same connection.
#[derive(Clone)]
pub struct Callbacks(Arc<Inner>);

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callbacks").field("peer", &self.0.peer).field("open", &self.is_open()).finish()
    }
}

struct Inner {
    peer: SocketAddr,
    open: AtomicBool,
    /// Whether calls wait to be sent.
    queued: AtomicBool,
    /// Whether the next call wakes the task of the connection.
    wakes: AtomicBool,
    calls: Mutex<Calls>,
}

/// The reply to a call, or the reason why the transport has none.
type Answer = Result<Message, RpcError>;

#[derive(Default)]
struct Calls {
    last_xid: u32,
    queue: VecDeque<(u32, Message)>,
    waiting: HashMap<u32, oneshot::Sender<Answer>>,
    /// The task of the connection, unless it was woken since.
    task: Option<Waker>,
}

impl Callbacks {
    /// The calls of a connection from `peer`, which is not served yet.
    pub fn new(peer: SocketAddr) -> Self {
        Self(Arc::new(Inner {
            peer,
            open: AtomicBool::new(true),
            queued: AtomicBool::new(false),
            wakes: AtomicBool::new(false),
            calls: Mutex::default(),
        }))
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Whether both refer to the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sends a call, whose XID is replaced, and waits for its reply for up to `limit`.
    ///
    /// # Errors
    /// [`RpcError::Disconnected`], [`RpcError::TimedOut`], [`RpcError::Local`] if too many calls are in progress,
    /// or the failure of the call.
    pub async fn call(&self, message: Message, rt: &RuntimeRef, limit: Duration) -> Result<Reply, RpcError> {
        let (waiting, reply) = self.queue(message)?;
        let answered = timeout(&**rt, limit, reply).await;
        drop(waiting);
        match answered {
            Some(Ok(reply)) => parse_reply(reply?, &self.0.peer),
            Some(Err(_)) => Err(self.disconnected()),
            None => Err(RpcError::TimedOut { peer: self.0.peer.to_string(), after: limit }),
        }
    }

    fn disconnected(&self) -> RpcError {
        RpcError::Disconnected { peer: self.0.peer.to_string(), reason: "the client closed it".into() }
    }

    fn queue(&self, message: Message) -> Result<(Waiting<'_>, oneshot::Receiver<Answer>), RpcError> {
        let mut calls = self.0.calls.lock();
        if !self.is_open() {
            return Err(self.disconnected());
        }
        if calls.waiting.len() >= MAX_CALLS {
            return Err(RpcError::Local("too many callbacks are in progress; try again later".into()));
        }
        calls.last_xid = calls.last_xid.wrapping_add(1);
        let xid = calls.last_xid;
        let (sender, reply) = oneshot::channel();
        calls.waiting.insert(xid, sender);
        calls.queue.push_back((xid, message));
        self.0.queued.store(true, Ordering::Release);
        self.0.wakes.store(false, Ordering::Release);
        let task = calls.task.take();
        drop(calls);
        task.into_iter().for_each(Waker::wake);
        Ok((Waiting { inner: &self.0, xid }, reply))
    }
}

/// A call in progress.
struct Waiting<'c> {
    inner: &'c Inner,
    xid: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut calls = self.inner.calls.lock();
        calls.waiting.remove(&self.xid);
        calls.queue.retain(|(xid, _)| *xid != self.xid);
    }
}

/// The connection's end of [`Callbacks`], which its transport owns. When it is dropped, all calls fail.
pub struct CallbackQueue {
    callbacks: Callbacks,
    /// The task that was passed last.
    task: Waker,
}

impl CallbackQueue {
    /// The end of `callbacks` of the connection that sends them.
    pub fn new(callbacks: Callbacks) -> Self {
        Self { callbacks, task: Waker::noop().clone() }
    }

    /// Has the task of the connection woken when there are calls to send. Returns whether there are calls now.
    #[inline]
    pub fn poll(&mut self, task: &Waker) -> bool {
        if !self.inner().wakes.load(Ordering::Acquire) || !self.task.will_wake(task) {
            self.register(task);
        }
        self.has_calls()
    }

    #[cold]
    fn register(&mut self, task: &Waker) {
        self.task = task.clone();
        let mut calls = self.inner().calls.lock();
        calls.task = Some(task.clone());
        self.inner().wakes.store(true, Ordering::Release);
    }

    fn inner(&self) -> &Inner {
        &self.callbacks.0
    }

    /// Whether calls wait to be sent.
    #[inline]
    pub fn has_calls(&self) -> bool {
        self.inner().queued.load(Ordering::Acquire)
    }

    /// The next call to send, with its XID.
    pub fn next_call(&self) -> Option<(u32, Message)> {
        let mut calls = self.inner().calls.lock();
        let next = calls.queue.pop_front();
        self.inner().queued.store(!calls.queue.is_empty(), Ordering::Release);
        next
    }

    /// Passes a received message to the call that it answers. A reply that answers no call is dropped: the call may
    /// have timed out. A reply that is too long ends its call.
    pub fn reply(&self, message: Message) {
        let call = message.xid().and_then(|xid| self.inner().calls.lock().waiting.remove(&xid));
        let fits = message.stream_len() <= MAX_REPLY;
        match call {
            Some(call) if fits => drop(call.send(Ok(message))),
            _ => {
                tracing::debug!(peer = %self.inner().peer, "a reply dropped: it answers no callback, or is too long")
            }
        }
    }

    /// Ends the call with this XID, which the transport cannot send or the peer has rejected.
    pub fn fail(&self, xid: u32, error: RpcError) {
        if let Some(call) = self.inner().calls.lock().waiting.remove(&xid) {
            drop(call.send(Err(error)));
        }
    }
}

impl Drop for CallbackQueue {
    fn drop(&mut self) {
        let mut calls = self.inner().calls.lock();
        self.inner().open.store(false, Ordering::Release);
        self.inner().queued.store(false, Ordering::Release);
        calls.queue.clear();
        calls.waiting.clear();
        calls.task = None;
    }
}

/// Whether a message is a reply.
pub(crate) fn is_reply(message: &Message) -> bool {
    let mut d = Decoder::new(message);
    d.u32().is_ok() && d.u32() == Ok(MSG_REPLY)
}
