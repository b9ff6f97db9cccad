//! The ends of TCP connections.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    task::Waker,
};

use super::{event::Segment, records::Records};
use crate::{event::EndId, listeners::Listeners};

/// A connection that nobody has accepted: the end that waits, its address and the peer's.
pub(super) type Waiting = (EndId, (SocketAddr, SocketAddr));

/// All that is TCP in a world.
#[derive(Default)]
pub(crate) struct Tcp {
    pub(crate) connections: BTreeMap<u64, [End; 2]>,
    pub(super) listeners: Listeners<Waiting>,
}

impl Tcp {
    pub(super) fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connections.get_mut(&id.0).map(|c| &mut c[id.1])
    }

    /// An end that has not failed.
    pub(super) fn alive(&mut self, id: EndId) -> Option<&mut End> {
        self.end(id).filter(|e| e.failure.is_none())
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(super) host: usize,
    /// Why nothing moves any more.
    pub(super) failure: Option<io::ErrorKind>,
    /// Nobody holds the stream.
    pub(super) dropped: bool,

    /// Written, and in no segment yet.
    pub(super) unsent: VecDeque<u8>,
    /// Writes whose call has cost nothing yet.
    pub(super) calls: u64,
    /// The writer has ended its direction, and the segment that tells so is made.
    pub(super) ended: (bool, bool),
    /// A core makes this segment.
    pub(super) making: Option<Segment>,
    /// On their way to the port.
    pub(super) launching: VecDeque<Segment>,
    /// A fault holds up what is launched until then.
    pub(super) held_until: u64,
    /// At the port.
    pub(super) outgoing: VecDeque<Segment>,
    pub(super) has_turn: bool,
    /// Packets of its turn so far.
    pub(super) turn_packets: u64,
    /// Bytes in segments that are not known to be read.
    pub(super) in_flight: u64,
    /// How many there may be, by slow start.
    pub(super) congestion: u64,
    pub(super) writer: Option<Waker>,

    /// Taken, and not read.
    pub(super) received: VecDeque<u8>,
    /// The peer has ended its direction.
    pub(super) finished: bool,
    /// What is being read: so many bytes, which the reader has at this time.
    pub(super) reading: Option<(usize, u64)>,
    pub(super) records: Records,
    pub(super) reader: Option<Waker>,
}

impl End {
    pub(super) fn new(host: usize, congestion: u64) -> Self {
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
            records: Records::default(),
            reader: None,
        }
    }

    /// Nobody holds it, and it has nothing more to say.
    pub(super) fn is_over(&self) -> bool {
        let said =
            self.ended.1 && self.making.is_none() && self.launching.is_empty() && self.outgoing.is_empty();
        self.dropped && (self.failure.is_some() || said)
    }

    /// Nothing moves any more.
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
