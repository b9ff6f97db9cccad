//! One end of a connection: its queues, and what it holds.

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

/// What travels. Data is not copied before it arrives: its end keeps it.
pub(super) enum Message {
    Send {
        data: Views,
        invalidate: Option<SteeringTag>,
        signaled: Option<WorkId>,
    },
    Write(WriteRequest),
    /// Is here until its response has come.
    Read(ReadRequest),
    /// To the peer's read of this number.
    Response {
        read: u64,
        from: Segment,
    },
    /// The end of the connection, after everything before it.
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

    /// Its name in traces.
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

/// A message at the port.
pub(super) struct Outgoing {
    pub(super) number: u64,
    /// Payload bytes that have left.
    pub(super) sent: u64,
}

pub(super) enum State {
    Open,
    /// Its owner has ended it: what is posted still goes.
    Disconnecting,
    /// Nothing moves any more; its owner learns why when it has had what completed before.
    Failing(ConnectionError),
    Down(ConnectionError),
}

pub(super) struct End {
    pub(super) host: usize,
    pub(super) access: Arc<RemoteAccess>,
    pub(super) state: State,
    /// Its owner has dropped the queue pair.
    pub(super) dropped: bool,
    pub(super) ord: u16,
    pub(super) receives: VecDeque<Buffer>,
    /// Receives that were used, whose completions the software has not seen: their places in the adapter are empty.
    pub(super) used_receives: u32,
    /// All messages of this end that the peer has not acknowledged, by number.
    pub(super) messages: BTreeMap<u64, Message>,
    next_number: u64,
    /// When the software has done what it was charged for: it posts no earlier.
    pub(super) software_free: u64,
    /// Posted, and not taken up by the adapter.
    pub(super) posted: VecDeque<u64>,
    /// How many of them the software has rung for.
    pub(super) rung: usize,
    /// Taken up, and on their way to the port.
    pub(super) launching: VecDeque<u64>,
    /// A fault holds up what is launched until then.
    pub(super) held_until: u64,
    pub(super) outgoing: VecDeque<Outgoing>,
    /// Has a turn at the port.
    pub(super) has_turn: bool,
    pub(super) unacknowledged: u32,
    /// Reads beyond the ORD.
    pub(super) waiting_reads: VecDeque<ReadRequest>,
    pub(super) reads_in_flight: u16,
    /// Messages of the peer that are here, and not handled: the first may wait for a receive.
    pub(super) inbound: VecDeque<u64>,
    /// Reads of the peer; the first is being served.
    pub(super) serving: VecDeque<u64>,
    /// When the last response will have left.
    pub(super) responder_free: u64,
    /// Completions that the host has not taken yet.
    pub(super) pending: VecDeque<Completion>,
    /// When the host has taken the last of them.
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
            rung: 0,
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

    /// Whether anything moves.
    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Open | State::Disconnecting)
    }

    /// Its last owner is gone, and nothing happens to it any more.
    pub(super) const fn is_over(&self) -> bool {
        self.dropped && matches!(self.state, State::Down(_))
    }

    /// Gives a message its number.
    pub(super) fn insert(&mut self, message: Message) -> u64 {
        self.next_number += 1;
        self.messages.insert(self.next_number, message);
        self.next_number
    }

    /// Releases everything; the owner's completions stay.
    pub(super) fn release(&mut self) {
        self.receives.clear();
        self.messages.clear();
        self.posted.clear();
        self.rung = 0;
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
