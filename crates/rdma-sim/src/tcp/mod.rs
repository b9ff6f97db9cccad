//! TCP on the same hosts and links, for comparison: what its software costs, and how much is on its way.
//!
//! ```text
//! write                               -> a place in the window, or the writer waits
//! a core (call, segment, sum, copies) -> Made      one segment after another
//! the adapter, as for RDMA            -> Launch    the segment queues at the port; connections take turns
//! port out, the way                   -> Head      its first bit reaches the other port
//! port in                             -> Arrive    the last bit, + receive: it waits in a receive queue
//! interrupt, when none is on its way  -> Interrupt the queue is emptied, one segment after another
//! a core (segment, sum)               -> Taken     the reader wakes
//! a core (call, copies, messages)     -> Read      the reader has it
//! the way back                        -> Credit    a place in the window
//! ```
//!
//! A direction's window holds what is written and not known to be read; slow start makes it as large as it may be
//! (RFC 5681 section 3.1), and since no packet is lost it stays so. A segment that is not full waits until nothing else
//! is written or the window has room for a full one. What comes is taken to be RPC with record marking (RFC 5531
//! section 11): each record costs its reader a message. Making and ending a connection costs way, no processor.

mod flow;
mod records;
mod setup;
mod stream;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    task::Waker,
};

pub(super) use self::{flow::Event, setup::SimTcp};
use self::{records::Records, setup::Waiting};
use super::{doors::Doors, host::EndId};

/// All that is TCP in a world.
#[derive(Default)]
pub(super) struct Tcp {
    pub(super) connections: BTreeMap<u64, [End; 2]>,
    doors: Doors<Waiting>,
}

impl Tcp {
    fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connections.get_mut(&id.0).map(|c| &mut c[id.1])
    }

    /// An end that has not failed.
    fn alive(&mut self, id: EndId) -> Option<&mut End> {
        self.end(id).filter(|e| e.failure.is_none())
    }
}

/// What travels.
pub(super) struct Segment {
    bytes: Vec<u8>,
    /// Nothing follows.
    fin: bool,
}

/// One end of a connection.
pub(super) struct End {
    host: usize,
    /// Why nothing moves any more.
    failure: Option<io::ErrorKind>,
    /// Nobody holds the stream.
    dropped: bool,

    /// Written, and in no segment yet.
    unsent: VecDeque<u8>,
    /// Writes whose call has cost nothing yet.
    calls: u64,
    /// The writer has ended its direction, and the segment that tells so is made.
    ended: (bool, bool),
    /// A core makes this segment.
    making: Option<Segment>,
    /// On their way to the port.
    launching: VecDeque<Segment>,
    /// A fault holds up what is launched until then.
    held_until: u64,
    /// At the port.
    outgoing: VecDeque<Segment>,
    has_turn: bool,
    /// Packets of its turn so far.
    turn_packets: u64,
    /// Bytes in segments that are not known to be read.
    in_flight: u64,
    /// How many there may be, by slow start.
    congestion: u64,
    writer: Option<Waker>,

    /// Taken, and not read.
    received: VecDeque<u8>,
    /// The peer has ended its direction.
    finished: bool,
    /// What is being read: so many bytes, which the reader has at this time.
    reading: Option<(usize, u64)>,
    records: Records,
    reader: Option<Waker>,
}

impl End {
    fn new(host: usize, congestion: u64) -> Self {
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
    fn is_over(&self) -> bool {
        let said =
            self.ended.1 && self.making.is_none() && self.launching.is_empty() && self.outgoing.is_empty();
        self.dropped && (self.failure.is_some() || said)
    }

    /// Nothing moves any more.
    fn fail(&mut self, why: io::ErrorKind) {
        self.failure = Some(why);
        (self.unsent, self.received) = Default::default();
        (self.launching, self.outgoing) = Default::default();
        (self.making, self.reading) = (None, None);
        self.wake();
    }

    fn wake(&mut self) {
        [&mut self.reader, &mut self.writer].into_iter().filter_map(Option::take).for_each(Waker::wake);
    }
}

/// One of an adapter's queues of what has come.
#[derive(Default)]
pub(super) struct ReceiveQueue {
    waiting: VecDeque<(EndId, Segment)>,
    /// An interrupt is on its way, or the queue is being emptied.
    busy: bool,
}
