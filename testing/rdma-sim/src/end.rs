//! One end of a connection: its queues and its resources.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use millrace_buffer::{Buffer, Views};
use millrace_rdma::{
    Completion, ConnectionError, Counters, ReadRequest, Segment, SteeringTag, WorkId, WriteRequest,
};

use super::access::RemoteAccess;

/// A message. Its data is copied at the arrival; until then the sender keeps it.
pub(super) enum Message {
    Send {
        data: Views,
        invalidate: Option<SteeringTag>,
        signaled: Option<WorkId>,
    },
    Write(WriteRequest),
    /// A Read Request; kept until the response has arrived.
    Read(ReadRequest),
    /// The response to the peer's read with this number.
    Response {
        read: u64,
        from: Segment,
    },
    /// The end of the connection, after all earlier messages.
    Fin,
}

impl Message {
    /// Payload bytes on the wire.
    pub(super) fn payload(&self) -> u64 {
        match self {
            Self::Send { data, .. } => data.len() as u64,
            Self::Write(w) => w.data.len() as u64,
            Self::Response { from, .. } => from.length.into(),
            Self::Read(_) | Self::Fin => 0,
        }
    }

    /// Name in traces.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Write(_) => "write",
            Self::Read(_) => "read",
            Self::Response { .. } => "response",
            Self::Fin => "fin",
        }
    }
}

/// A message that is queued at the port.
pub(super) struct Outgoing {
    pub(super) number: u64,
    /// Payload bytes sent so far.
    pub(super) sent: u64,
}

pub(super) enum State {
    Open,
    /// The owner of the end has disconnected it; posted work is still sent.
    Disconnecting,
    /// Nothing is sent or received any more; the owner gets the error after the earlier completions.
    Failing(ConnectionError),
    Down(ConnectionError),
}

pub(super) struct End {
    pub(super) host: usize,
    pub(super) access: Arc<RemoteAccess>,
    pub(super) state: State,
    /// Whether its owner has dropped the queue pair.
    pub(super) dropped: bool,
    pub(super) ord: u16,
    pub(super) receives: VecDeque<Buffer>,
    /// Receives that were used, but whose completions the software has not seen; they occupy the adapter's
    /// receive queue.
    pub(super) used_receives: u32,
    /// Messages of this end that the peer has not acknowledged, by number.
    pub(super) messages: BTreeMap<u64, Message>,
    next_number: u64,
    /// Time at which the software has finished the work that it was charged for; it posts no earlier.
    pub(super) software_free: u64,
    /// Posted messages that the adapter has not fetched.
    pub(super) posted: VecDeque<u64>,
    /// Number of posted messages for which the software has rung the doorbell.
    pub(super) doorbells: usize,
    /// Fetched messages that have not reached the port yet.
    pub(super) launching: VecDeque<u64>,
    /// Time until which a fault delays the launch.
    pub(super) held_until: u64,
    pub(super) outgoing: VecDeque<Outgoing>,
    /// Whether it is in the queue of the port.
    pub(super) has_turn: bool,
    pub(super) unacknowledged: u32,
    /// Reads that wait because of the ORD.
    pub(super) waiting_reads: VecDeque<ReadRequest>,
    pub(super) reads_in_flight: u16,
    /// Received messages that are not processed: the first may wait for a receive.
    pub(super) inbound: VecDeque<u64>,
    /// Reads of the peer; the first is being served.
    pub(super) serving: VecDeque<u64>,
    /// Time at which the last response is completely sent.
    pub(super) responder_free: u64,
    /// Completions that the host has not processed.
    pub(super) pending: VecDeque<Completion>,
    /// Time at which the host has processed the last pending completion.
    pub(super) visible_at: u64,
    pub(super) completions: VecDeque<Completion>,
    pub(super) waker: Option<Waker>,
    pub(super) counters: Counters,
}

impl End {
    pub(super) fn new(
        host: usize,
        access: Arc<RemoteAccess>,
        ord: u16,
        first_receive: Option<Buffer>,
    ) -> Self {
        Self {
            host,
            access,
            state: State::Open,
            dropped: false,
            ord,
            receives: first_receive.into_iter().collect(),
            used_receives: 0,
            messages: BTreeMap::new(),
            next_number: 0,
            software_free: 0,
            posted: VecDeque::new(),
            doorbells: 0,
            launching: VecDeque::new(),
            held_until: 0,
            outgoing: VecDeque::new(),
            has_turn: false,
            unacknowledged: 0,
            waiting_reads: VecDeque::new(),
            reads_in_flight: 0,
            inbound: VecDeque::new(),
            serving: VecDeque::new(),
            responder_free: 0,
            pending: VecDeque::new(),
            visible_at: 0,
            completions: VecDeque::new(),
            waker: None,
            counters: Counters::default(),
        }
    }

    /// Whether the end sends and receives.
    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Open | State::Disconnecting)
    }

    /// Whether the owner is gone, and no more events concern the end.
    pub(super) const fn is_over(&self) -> bool {
        self.dropped && matches!(self.state, State::Down(_))
    }

    /// Assigns a number to a message.
    pub(super) fn insert(&mut self, message: Message) -> u64 {
        self.next_number += 1;
        self.messages.insert(self.next_number, message);
        self.next_number
    }

    /// Releases all memory except the owner's completions.
    pub(super) fn release(&mut self) {
        self.receives.clear();
        self.messages.clear();
        self.posted.clear();
        self.doorbells = 0;
        self.launching.clear();
        self.outgoing.clear();
        self.waiting_reads.clear();
        self.inbound.clear();
        self.serving.clear();
        self.pending.clear();
        self.access.close();
    }

    pub(super) fn wake(&mut self) {
        if let Some(w) = self.waker.take() {
            w.wake();
        }
    }
}
