//! Connections and work requests: the traits that every provider implements.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use millrace_buffer::{Arena, Buffer, OutOfMemory, Views};
use millrace_runtime::{BoxFuture, ByteStream, LocalPort, RuntimeRef};

use crate::{DomainRef, Segment, SteeringTag};

/// Identifies a work request; the poster chooses it, and the completion returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// Parameters of connection setup. Each end states its own; the provider negotiates.
#[derive(Debug, Clone)]
pub struct ConnectParams {
    /// RDMA Reads of the peer that this end serves at the same time (inbound read depth).
    pub ird: u16,
    /// Requested number of RDMA Reads that this end may have in flight (outbound read depth).
    pub ord: u16,
    /// Private data of the upper layer, at most 196 bytes.
    pub private_data: Vec<u8>,
    /// Whether to request CRC32C where it is optional (iWARP).
    pub crc: bool,
    /// Maximum payload of a lower-layer frame in bytes, where it can be chosen (iWARP: of an FPDU); `None`:
    /// the provider's optimum. Used to imitate peers that limit frames to the MTU.
    pub max_frame: Option<usize>,
    /// Local port to connect from, on transports with ports.
    pub local_port: LocalPort,
    /// Time limit of connection setup.
    pub timeout: Duration,
    /// Whether the peer's Send with Invalidate may invalidate tags of this end.
    pub remote_invalidate: bool,
    /// Size in bytes of a receive that the provider posts before the peer can send; its completion is like
    /// that of any other receive. 0: none. An adapter may end a connection on which a message arrives without
    /// a posted receive, so the end that does not send first requests one. (Software iWARP needs none:
    /// messages wait in the socket.)
    pub first_receive: usize,
    /// Number of receives, each of [`first_receive`](Self::first_receive) bytes, in a shared receive queue of
    /// all connections of this process (`verbs`, on devices with memory windows other than iWARP). 0, the
    /// default: each connection has its own queue. With a shared queue, [`QueuePair::post_receive`] with a
    /// buffer of that size permits the peer one more message, and the buffer returns to its arena if it is
    /// not needed. A peer that sends more messages than permitted loses its connection; a message that finds
    /// the queue empty waits.
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

/// Capabilities of a provider on a connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// The provider's name: `iwarp`, `verbs`, `sim`.
    pub provider: &'static str,
    /// Whether Send with Invalidate is supported.
    pub send_with_invalidate: bool,
    /// Maximum number of pieces (views) of a Send, Write or Read; the provider splits requests that exceed
    /// the adapter's own limit.
    pub max_pieces: usize,
    /// Maximum size of an RDMA Read or Write in bytes.
    pub max_transfer: usize,
    /// Maximum number of pieces (views) of shared memory in one region; 1 if a region must be contiguous.
    pub max_region_pieces: usize,
    /// Maximum size of a segment of exposed memory in bytes, for every kind of registration; segments end at
    /// multiples of it. `usize::MAX`, the value of [`Self::new`], if only [`crate::RegistrationKind::Global`] splits
    /// regions, as on RDMA devices and in software.
    pub max_segment: usize,
}

impl Capabilities {
    /// Capabilities of the provider `name`, whose exposures have one segment.
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

/// Result of the negotiation at connection setup.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Local address, an IPv4-mapped one as IPv4.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// RDMA Reads that this end may have in flight.
    pub ord: u16,
    /// RDMA Reads of the peer that this end serves at the same time.
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
    /// Tag of the *peer* that the delivery of this Send invalidates (Send with Invalidate).
    pub invalidate: Option<SteeringTag>,
    /// Whether to raise a solicited event at the peer.
    pub solicited: bool,
    /// Requests a [`Completion::Sent`] when the lower layer has accepted all work up to this Send.
    pub signaled: Option<WorkId>,
}

/// An RDMA Write of `data` to `to`, memory of the peer. `to.length` must not be less than the length of the
/// data.
#[derive(Debug)]
pub struct WriteRequest {
    /// The bytes.
    pub data: Views,
    /// Destination.
    pub to: Segment,
}

/// An RDMA Read of `from` into `sink`.
#[derive(Debug)]
pub struct ReadRequest {
    /// Identifies the request in [`Completion::Read`].
    pub id: WorkId,
    /// Source, memory of the peer.
    pub from: Segment,
    /// Sink, in order: owned buffers with a total length of `from.length` bytes.
    pub sink: Vec<Buffer>,
}

/// Maximum number of pieces of a Send, Write or Read. It bounds the work of one request; the protocols have
/// no such limit. A provider splits requests that exceed a limit of its adapter.
pub const MAX_PIECES: usize = 1 << 16;
/// Maximum size of a Send, Write or Read: 1 GiB. See [`MAX_PIECES`].
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
    /// Validates the request. Providers call it before posting.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`].
    pub fn check(&self) -> Result<(), PostError> {
        check_size(self.data.iter().len(), self.data.len())
    }
}

impl WriteRequest {
    /// Validates the request. Providers call it before posting.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`], or if the data is longer than its
    /// destination.
    pub fn check(&self) -> Result<(), PostError> {
        check_size(self.data.iter().len(), self.data.len())?;
        if self.data.len() > self.to.length as usize {
            return Err(PostError::Invalid("the data of a Write is longer than its destination"));
        }
        Ok(())
    }
}

impl ReadRequest {
    /// Validates the request for a connection with the outbound read depth `ord`. Providers call it before
    /// posting.
    ///
    /// # Errors
    /// [`PostError::Invalid`] above [`MAX_PIECES`] or [`MAX_TRANSFER`], if `ord` is 0, or if the lengths of
    /// sink and source differ.
    pub fn check(&self, ord: u16) -> Result<(), PostError> {
        let length = self.from.length as usize;
        check_size(self.sink.len(), length)?;
        if ord == 0 {
            return Err(PostError::Invalid("RDMA Reads are not possible (negotiated ORD 0)"));
        }
        if self.sink.iter().map(|b| b.len()).sum::<usize>() != length {
            return Err(PostError::Invalid("the lengths of a Read's sink and source differ"));
        }
        Ok(())
    }
}

/// A completion of a queue pair.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer filled a posted receive; the length of `buffer` is that of the message.
    Received {
        /// The receive buffer.
        buffer: Buffer,
        /// The local tag that the peer invalidated with it.
        invalidated: Option<SteeringTag>,
    },
    /// A signaled Send and all work before it was passed to the lower layer.
    Sent(WorkId),
    /// An RDMA Read has placed all its data.
    Read {
        /// The id of the request.
        id: WorkId,
        /// The sink of the request, filled.
        sink: Vec<Buffer>,
    },
}

/// A work request that was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The connection has ended; the next poll returns the reason.
    #[error("the connection is down")]
    Closed,
    /// The request exceeds a limit of the provider, or its local and remote lengths do not match.
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// There is no memory for a receive.
    #[error("{0}")]
    NoMemory(OutOfMemory),
}

/// Ignores that a work request was posted on a closed connection: the next poll of the queue pair returns the reason.
///
/// # Errors
/// Other reasons why it was not accepted.
pub fn ignore_closed(posted: Result<(), PostError>) -> Result<(), ConnectionError> {
    match posted {
        Ok(()) | Err(PostError::Closed) => Ok(()),
        Err(e) => Err(ConnectionError::Local(e.to_string())),
    }
}

/// Why connection setup failed or a connection ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// The peer closed the connection in an orderly way.
    #[error("the peer closed the connection")]
    Closed,
    /// The underlying transport failed.
    #[error("{0}")]
    Io(String),
    /// Connection setup exceeded its time limit.
    #[error("connection setup timed out after {0:.0?}")]
    TimedOut(Duration),
    /// The peer rejected the connection, with this private data.
    #[error("the peer refused the connection")]
    Rejected(Vec<u8>),
    /// The peer violated the protocol. It was notified if the protocol has a message for it.
    #[error("protocol violation by the peer: {0}")]
    PeerMisbehaved(String),
    /// The peer reported an error of this end (RDMAP Terminate: layer, type, code).
    #[error("the peer terminated the connection: {0}")]
    Terminated(String),
    /// The peer requires an unsupported feature (markers, unknown revision).
    #[error("incompatible peer: {0}")]
    Incompatible(String),
    /// A local error: out of memory, invalid parameters.
    #[error("{0}")]
    Local(String),
}

/// Counters of a queue pair; they never decrease.
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
    /// RDMA Writes of the peer that were placed in local memory.
    pub peer_writes: u64,
    /// RDMA Reads of the peer that were served.
    pub peer_reads: u64,
    /// Bytes sent by RDMA Write, and in response to the peer's RDMA Reads.
    pub tagged_bytes_out: u64,
    /// Bytes received by RDMA Writes of the peer, and by local RDMA Reads.
    pub tagged_bytes_in: u64,
    /// The part of `tagged_bytes_in` that was received from the socket directly into its region.
    pub placed_directly: u64,
    /// System calls for I/O.
    pub syscalls: u64,
}

/// The queue pair of a reliable connection, owned by one task.
pub trait QueuePair: Send {
    /// Result of the negotiation at connection setup.
    fn info(&self) -> &ConnectionInfo;

    /// Capabilities of the provider.
    fn capabilities(&self) -> &Capabilities;

    /// The connection's protection domain.
    fn domain(&self) -> DomainRef;

    /// Posts a receive for one incoming Send. The *length* of `buffer` is the maximum length of the message.
    ///
    /// # Errors
    /// [`PostError`]; the buffer is dropped.
    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError>;

    /// Posts a receive for one incoming Send of at most `bytes` bytes, in memory of `arena`. A provider in software can
    /// allocate the memory when the message arrives, so that idle connections need none for it; a message for which the
    /// arena has none then waits. Others allocate it at once. Such receives may be used after those of
    /// [`Self::post_receive`] that are posted later.
    ///
    /// # Errors
    /// [`PostError`]: [`PostError::NoMemory`] if the memory is allocated at once, and the arena has none.
    fn post_empty_receive(&mut self, arena: &Arena, bytes: usize) -> Result<(), PostError> {
        let mut buffer = arena.alloc(bytes).map_err(PostError::NoMemory)?;
        buffer.set_len(bytes);
        self.post_receive(buffer)
    }

    /// Posts a Send.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError>;

    /// Posts an RDMA Write. It is placed at the peer before any Send that is posted later is delivered there.
    /// The views are released when the lower layer has accepted their bytes.
    ///
    /// # Errors
    /// [`PostError`].
    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError>;

    /// Posts an RDMA Read. Reads that exceed the ORD wait in the queue pair.
    ///
    /// # Errors
    /// [`PostError`]; the sink is dropped.
    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError>;

    /// Drives the connection: sends posted work, receives, and appends completions to `out`. Returns
    /// `Ready(Ok)` when there are completions, `Pending` when there is no work until the waker is called, and
    /// `Ready(Err)` from the end of the connection on.
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>>;

    /// Sends posted work as far as possible without waiting. Optional before [`Self::poll`], which also
    /// sends.
    fn flush(&mut self, cx: &mut Context<'_>);

    /// Closes the connection in an orderly way after posted work is sent.
    fn disconnect(&mut self);

    /// Makes the drop of the queue pair discard posted work that the peer has not received. (Without effect
    /// if an adapter holds the work: dropping discards it anyway.)
    fn abort(&mut self) {}

    /// The counters.
    fn counters(&self) -> Counters;
}

/// An RDMA provider: connects and listens.
pub trait Provider: Send + Sync + 'static {
    /// Name of the provider.
    fn name(&self) -> &'static str;

    /// Whether a peer at `peer` can invalidate tags of this end by Send with Invalidate. To be checked before
    /// support is announced to the peer.
    fn can_be_invalidated(&self, _peer: SocketAddr) -> bool {
        true
    }

    /// Connects to `addr`. The connection belongs to the reactor of the runtime that polls the future.
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
    /// The address cannot be bound.
    fn listen(&self, rt: RuntimeRef, addr: SocketAddr) -> io::Result<Box<dyn Listener>>;
}

/// Accepts connection requests.
pub trait Listener: Send {
    /// The bound address; its port is never 0.
    fn local_addr(&self) -> SocketAddr;

    /// Waits for the next connection request. Errors of single connections are not reported here.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>>;
}

/// Why a connection is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// Too many connections.
    Busy,
    /// The peer's address is not allowed.
    NotAllowed,
}

/// A connection request that is not yet bound to a reactor: it may be moved to another shard.
pub trait Incoming: Send {
    /// The peer's address, an IPv4-mapped one as IPv4.
    fn peer(&self) -> SocketAddr;

    /// Completes connection setup in the reactor of the runtime that polls the future. `params` may depend on
    /// the peer's private data.
    fn accept(
        self: Box<Self>,
        rt: RuntimeRef,
        arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>>;

    /// The stream of a peer that begins TLS (RFC 8446) on it, before the provider's protocol; `None` if the peer begins with
    /// the latter, as always if the provider uses no byte streams. Waits for the peer's first byte, in the reactor of the
    /// runtime that polls the future.
    ///
    /// # Errors
    /// Those of the stream.
    fn tls_stream(&mut self) -> BoxFuture<'_, io::Result<Option<Box<dyn ByteStream>>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Rejects the request.
    fn reject(self: Box<Self>, reason: RejectReason);
}
