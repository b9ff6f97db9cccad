//! Segments, and the events of TCP connections.

use crate::event::EndId;

/// A TCP segment.
pub(crate) struct Segment {
    pub(super) bytes: Vec<u8>,
    /// Whether it is the last one.
    pub(super) fin: bool,
}

/// A scheduled event.
pub(crate) enum Event {
    /// A core has created a segment.
    Made(EndId),
    /// The adapter has processed a segment.
    Launch(EndId),
    /// The first bit of a segment arrives at the port of its destination.
    /// It has passed this number of shared uplinks.
    Head { to: EndId, segment: Segment, head_ps: u64, tail_ps: u64, uplinks: usize },
    /// A segment has arrived.
    Arrive { to: EndId, segment: Segment },
    /// The adapter raises an interrupt for this queue of this host.
    Interrupt(usize, usize),
    /// A core has processed a segment of the queue.
    Taken { to: EndId, segment: Segment, host: usize, queue: usize },
    /// A core has copied data for the reader.
    Read(EndId),
    /// The peer has read this number of bytes.
    Credit(EndId, u64),
    /// The peer has reset the connection.
    Reset(EndId),
}

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {}{}", self.bytes.len(), if self.fin { " fin" } else { "" })
    }
}
