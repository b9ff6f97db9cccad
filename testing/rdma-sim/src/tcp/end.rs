//! The ends of TCP connections.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    task::Waker,
};

use super::{
    event::Segment,
    framing::{Framing, Messages},
};
use crate::{event::EndId, listeners::Listeners};

/// A connection that was not accepted yet: the passive end, its address and the peer's.
pub(super) type Waiting = (EndId, (SocketAddr, SocketAddr));

/// The TCP state of a simulated network.
#[derive(Default)]
pub(crate) struct Tcp {
    pub(crate) connections: BTreeMap<u64, [End; 2]>,
    pub(super) listeners: Listeners<Waiting>,
}

impl Tcp {
    pub(super) fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connections.get_mut(&id.0).map(|c| &mut c[id.1])
    }

    /// Returns an end that has not failed.
    pub(super) fn alive(&mut self, id: EndId) -> Option<&mut End> {
        self.end(id).filter(|e| e.failure.is_none())
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(super) host: usize,
    /// The error of a failed end, which sends and receives nothing any more.
    pub(super) failure: Option<io::ErrorKind>,
    /// Whether the owner has dropped the stream.
    pub(super) dropped: bool,

    /// Written data that is in no segment.
    pub(super) unsent: VecDeque<u8>,
    /// Number of write calls whose cost is not yet charged.
    pub(super) calls: u64,
    /// Whether the writer has ended its direction, and whether the segment with FIN was created.
    pub(super) ended: (bool, bool),
    /// The segment that a core is processing.
    pub(super) making: Option<Segment>,
    /// Segments that have not reached the port yet.
    pub(super) launching: VecDeque<Segment>,
    /// Time until which a fault delays the launch.
    pub(super) held_until: u64,
    /// Segments queued at the port.
    pub(super) outgoing: VecDeque<Segment>,
    pub(super) has_turn: bool,
    /// Packets of the current turn so far.
    pub(super) turn_packets: u64,
    /// Bytes in segments that are not acknowledged as read.
    pub(super) in_flight: u64,
    /// The congestion window, by slow start.
    pub(super) congestion: u64,
    pub(super) writer: Option<Waker>,

    /// Received data that was not read.
    pub(super) received: VecDeque<u8>,
    /// Whether the peer has ended its direction.
    pub(super) finished: bool,
    /// The read in progress: number of bytes, and the time at which the reader gets them.
    pub(super) reading: Option<(usize, u64)>,
    pub(super) messages: Messages,
    pub(super) reader: Option<Waker>,
}

impl End {
    pub(super) fn new(host: usize, congestion: u64, framing: Framing) -> Self {
        Self {
            host,
            failure: None,
            dropped: false,
            unsent: VecDeque::new(),
            calls: 0,
            ended: (false, false),
            making: None,
            launching: VecDeque::new(),
            held_until: 0,
            outgoing: VecDeque::new(),
            has_turn: false,
            turn_packets: 0,
            in_flight: 0,
            congestion,
            writer: None,
            received: VecDeque::new(),
            finished: false,
            reading: None,
            messages: Messages::new(framing),
            reader: None,
        }
    }

    /// Whether the stream is dropped and everything is sent.
    pub(super) fn is_over(&self) -> bool {
        let said =
            self.ended.1 && self.making.is_none() && self.launching.is_empty() && self.outgoing.is_empty();
        self.dropped && (self.failure.is_some() || said)
    }

    /// Ends the connection with an error.
    pub(super) fn fail(&mut self, why: io::ErrorKind) {
        self.failure = Some(why);
        (self.unsent, self.received) = Default::default();
        (self.launching, self.outgoing) = Default::default();
        (self.making, self.reading) = (None, None);
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        [&mut self.reader, &mut self.writer].into_iter().filter_map(Option::take).for_each(Waker::wake);
    }
}
