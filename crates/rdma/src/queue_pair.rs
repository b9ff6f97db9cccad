//! Connections and work: the trait that every provider implements.

use std::{
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use millrace_buffer::{Arena, Buffer, Views};
use millrace_runtime::{BoxFuture, LocalPort, RuntimeRef};

use crate::{DomainRef, Segment, SteeringTag};

/// Chosen by whoever posts work; comes back in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// How a connection is set up. Both ends state theirs; the provider negotiates.
#[derive(Debug, Clone)]
pub struct ConnectParams {
    /// RDMA Reads of the peer that we serve at once (inbound read depth).
    pub ird: u16,
    /// RDMA Reads that we want in flight (outbound read depth).
    pub ord: u16,
    /// Private data of the upper layer, at most 196 bytes.
    pub private_data: Vec<u8>,
    /// Ask for CRC32C in the lower layer, where that is a choice (iWARP).
    pub crc: bool,
    /// The most payload bytes in one lower-layer frame, where that is a choice (iWARP: FPDU payload); `None` = the
    /// provider's best. Lets a peer imitate one that frames by MTU.
    pub max_frame: Option<usize>,
    /// The port that we connect from, where connections have ports.
    pub local_port: LocalPort,
    /// Limit of the whole set-up.
    pub timeout: Duration,
    /// Whether the peer's Send with Invalidate may invalidate our tags.
    pub remote_invalidate: bool,
    /// Bytes of a receive that the provider posts itself, before the peer can send, and that comes back like any
    /// other; 0 for none. An adapter may end a connection on which a message comes before there is a receive for it,
    /// so the end that does not speak first asks for one. (iWARP in user space needs none: there messages wait.)
    pub first_receive: usize,
    /// Receives that the connections of this process have in common, each of [`first_receive`](Self::first_receive)
    /// bytes, where that is a choice (`verbs`, on devices with memory windows that are not iWARP); 0, the default: each
    /// connection has its own. Then [`QueuePair::post_receive`] with a buffer of that size means that the peer may send
    /// one message more, and the buffer goes back to its arena if it is not needed; a peer that sends more messages than
    /// that loses its connection, and peers whose messages find no receive wait for one.
    pub shared_receives: usize,
}

impl Default for ConnectParams {
    fn default() -> Self {
        Self {
            ird: 32,
            ord: 32,
            private_data: Vec::new(),
            crc: false,
            max_frame: None,
            local_port: LocalPort::Any,
            timeout: Duration::from_secs(10),
            remote_invalidate: true,
            first_receive: 0,
            shared_receives: 0,
        }
    }
}

/// What a provider can do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// The provider's name: `iwarp`, `verbs`, `sim`.
    pub provider: &'static str,
    /// Whether Send with Invalidate can be sent.
    pub send_with_invalidate: bool,
    /// The most pieces (views) of one Send, Write or Read; the provider splits what exceeds an adapter's own limit.
    pub max_pieces: usize,
    /// The most bytes of one RDMA Read or Write.
    pub max_transfer: usize,
    /// The most pieces (views) of shared memory that one region may have: 1 where a region must be contiguous.
    pub max_region_pieces: usize,
    /// The most bytes of one segment of exposed memory, by whatever means: segments end at borders of so many bytes.
    /// `usize::MAX`, which [`Self::new`] gives, where only [`crate::Means::Global`] cuts memory (as on RDMA devices and
    /// in software, where a registration or a window has one segment).
    pub max_segment: usize,
}

impl Capabilities {
    /// Capabilities of the provider `name`, whose registrations have one segment.
    pub fn new(
        name: &'static str,
        send_with_invalidate: bool,
        max_pieces: usize,
        max_transfer: usize,
        max_region_pieces: usize,
    ) -> Self {
        let max_segment = usize::MAX;
        Self {
            provider: name,
            send_with_invalidate,
            max_pieces,
            max_transfer,
            max_region_pieces,
            max_segment,
        }
    }
}

/// What was agreed at set-up.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// RDMA Reads that we may have in flight.
    pub ord: u16,
    /// RDMA Reads of the peer that we serve at once.
    pub ird: u16,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// Whether the lower layer checks a CRC.
    pub crc: bool,
}

/// A Send (RFC 5040 section 5.2).
#[derive(Debug)]
pub struct SendRequest {
    /// The message.
    pub data: Views,
    /// A tag of the *peer's* to invalidate when it is delivered (Send with Invalidate).
    pub invalidate: Option<SteeringTag>,
    /// Raise a solicited event at the peer.
    pub solicited: bool,
    /// Give a [`Completion::Sent`] when the lower layer has taken everything up to this Send.
    pub signaled: Option<WorkId>,
}

/// An RDMA Write of `data` to the peer's `to` (at its offset; `to.length` is not less than the data).
#[derive(Debug)]
pub struct WriteRequest {
    /// The bytes.
    pub data: Views,
    /// Where they go.
    pub to: Segment,
}

/// An RDMA Read of `from` into `sink`.
#[derive(Debug)]
pub struct ReadRequest {
    /// Comes back in [`Completion::Read`].
    pub id: WorkId,
    /// Where the bytes come from.
    pub from: Segment,
    /// Where they go, in order: owned buffers with `from.length` bytes in all.
    pub sink: Vec<Buffer>,
}

/// The most pieces of one Send, Write or Read. No protocol has such a limit; it bounds the work of one request. A
/// provider splits a request that exceeds a limit of its adapter.
pub const MAX_PIECES: usize = 1 << 16;
/// The most bytes of one Send, Write or Read: 1 GiB. See [`MAX_PIECES`].
pub const MAX_TRANSFER: usize = 1 << 30;

fn check_size(pieces: usize, bytes: usize) -> Result<(), PostError> {
    if pieces > MAX_PIECES {
        return Err(PostError::Invalid("too many pieces"));
    }
    if bytes > MAX_TRANSFER {
        return Err(PostError::Invalid("more than 1 GiB in one request"));
    }
    Ok(())
}

impl SendRequest {
    /// Validates the request; every provider does so before it posts.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`].
    pub fn check(&self) -> Result<(), PostError> {
        check_size(self.data.iter().len(), self.data.len())
    }
}

impl WriteRequest {
    /// Validates the request; every provider does so before it posts.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`], or when the data is longer than its target.
    pub fn check(&self) -> Result<(), PostError> {
        check_size(self.data.iter().len(), self.data.len())?;
        if self.data.len() > self.to.length as usize {
            return Err(PostError::Invalid("a Write longer than its target"));
        }
        Ok(())
    }
}

impl ReadRequest {
    /// Validates the request for a connection with the outbound read depth `ord`; every provider does so before it
    /// posts.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`], when `ord` is 0, or when sink and source differ
    /// in length.
    pub fn check(&self, ord: u16) -> Result<(), PostError> {
        let length = self.from.length as usize;
        check_size(self.sink.len(), length)?;
        if ord == 0 {
            return Err(PostError::Invalid("no RDMA Reads were agreed on (ORD 0)"));
        }
        if self.sink.iter().map(|b| b.len()).sum::<usize>() != length {
            return Err(PostError::Invalid("the sink of a Read is not as long as its source"));
        }
        Ok(())
    }
}

/// What has happened on a queue pair.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer filled a posted receive: `buffer`'s length is the message's.
    Received {
        /// The receive buffer.
        buffer: Buffer,
        /// The tag of ours that the peer invalidated with it.
        invalidated: Option<SteeringTag>,
    },
    /// A signaled Send, and all work before it, was handed over.
    Sent(WorkId),
    /// An RDMA Read has placed all its bytes.
    Read {
        /// From the request.
        id: WorkId,
        /// From the request, filled.
        sink: Vec<Buffer>,
    },
}

/// Why work was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The connection is down; the next poll says why.
    #[error("the connection is down")]
    Closed,
    /// The request breaks a limit of the provider or does not add up (sink size against read size).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
}

/// Why a connection was not made, or ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// The peer ended it in the ordinary way.
    #[error("the peer closed the connection")]
    Closed,
    /// The transport below failed.
    #[error("{0}")]
    Io(String),
    /// Set-up took too long.
    #[error("connection set-up timed out after {0:?}")]
    TimedOut(Duration),
    /// The peer refused, with this private data.
    #[error("the peer refused the connection")]
    Rejected(Vec<u8>),
    /// The peer broke the protocol (and was told so, where the protocol allows).
    #[error("protocol violation by the peer: {0}")]
    PeerMisbehaved(String),
    /// The peer reported an error of ours (RDMAP Terminate; layer, type, code).
    #[error("the peer terminated the connection: {0}")]
    Terminated(String),
    /// We cannot do what the peer wants (markers, unknown revision).
    #[error("incompatible peer: {0}")]
    Incompatible(String),
    /// Out of memory, bad parameters.
    #[error("{0}")]
    Local(String),
}

/// Counters of a queue pair, monotonic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends posted.
    pub sends: u64,
    /// Sends received.
    pub receives: u64,
    /// RDMA Writes posted.
    pub writes: u64,
    /// RDMA Reads posted.
    pub reads: u64,
    /// RDMA Writes of the peer that were placed here.
    pub peer_writes: u64,
    /// RDMA Reads of the peer that were served.
    pub peer_reads: u64,
    /// Bytes sent by RDMA Write, or served to the peer's RDMA Reads.
    pub tagged_bytes_out: u64,
    /// Bytes received by RDMA Write of the peer, or by our RDMA Reads.
    pub tagged_bytes_in: u64,
    /// Of `tagged_bytes_in`, those that went from the socket straight into their region.
    pub placed_directly: u64,
    /// System calls for I/O.
    pub syscalls: u64,
}

/// A reliable connection, owned by one task.
pub trait QueuePair: Send {
    /// What was agreed at set-up.
    fn info(&self) -> &ConnectionInfo;

    /// What the provider can do.
    fn capabilities(&self) -> &Capabilities;

    /// The connection's protection domain.
    fn domain(&self) -> DomainRef;

    /// Gives memory for one incoming Send; its *capacity up to its length* is the largest message it takes.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError>;

    /// Posts a Send.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError>;

    /// Posts an RDMA Write. It is placed at the peer before any Send that is posted later is delivered there. Views
    /// are released when their bytes have been handed over.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError>;

    /// Posts an RDMA Read; beyond the ORD it waits inside the queue pair.
    ///
    /// # Errors
    /// [`PostError`]; the sink is dropped then.
    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError>;

    /// Drives the connection: sends what is posted, takes what has come, and appends completions to `out`. `Ready(Ok)`
    /// when there are completions to handle; `Pending` when there is nothing more to do until the waker is called;
    /// `Ready(Err)` when the connection is down (every time from then on).
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>>;

    /// Pushes posted work to the peer as far as it goes without waiting. Optional before [`Self::poll`], which does
    /// it too.
    fn flush(&mut self, cx: &mut Context<'_>);

    /// Ends the connection in the ordinary way once posted work is sent.
    fn disconnect(&mut self);

    /// Sees to it that dropping the queue pair discards posted work that the peer has not received. (Where an adapter
    /// holds the work, dropping does so anyway.)
    fn abort(&mut self) {}

    /// The counters.
    fn counters(&self) -> Counters;
}

/// Connects and listens.
pub trait Provider: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Whether the Send with Invalidate of a peer at `peer` can invalidate what we expose to it. To be asked before
    /// the peer is promised so.
    fn can_be_invalidated(&self, _peer: SocketAddr) -> bool {
        true
    }

    /// Connects to `addr`. Runs in the reactor of the runtime that polls it.
    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>>;

    /// Listens on `addr` (port 0: any free port).
    ///
    /// # Errors
    /// When the address cannot be bound.
    fn listen(&self, rt: RuntimeRef, addr: SocketAddr) -> std::io::Result<Box<dyn Listener>>;
}

/// Waits for connections.
pub trait Listener: Send {
    /// The address, with the real port.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection request. Errors of single connections are not errors here.
    fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Box<dyn Incoming>>>;
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// Too many connections.
    Busy,
    /// The peer's address is not allowed.
    NotAllowed,
}

/// A connection request, not yet in any reactor: it may be moved to the shard that shall own it.
pub trait Incoming: Send {
    /// The peer's address.
    fn peer(&self) -> SocketAddr;

    /// Completes the set-up in the reactor of the runtime that polls it. `params` may depend on the peer's private
    /// data.
    fn accept(
        self: Box<Self>,
        rt: RuntimeRef,
        arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>>;

    /// Refuses.
    fn reject(self: Box<Self>, reason: RejectReason);
}
