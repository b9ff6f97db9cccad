//! Segments, and the events of TCP connections.

use crate::event::EndId;

/// What travels.
pub(crate) struct Segment {
    pub(super) bytes: Vec<u8>,
    /// Nothing follows.
    pub(super) fin: bool,
}

/// What happens at a point in time.
pub(crate) enum Event {
    /// A core has made a segment.
    Made(EndId),
    /// A segment has gone through the adapter.
    Launch(EndId),
    /// The first bit of a segment reaches the port of the host that it goes to.
    Head { to: EndId, segment: Segment, head_ps: u64, tail_ps: u64 },
    /// A segment is here.
    Arrive { to: EndId, segment: Segment },
    /// The adapter tells that there is something in this queue of this host.
    Interrupt(usize, usize),
    /// A core has taken a segment from it.
    Taken { to: EndId, segment: Segment, host: usize, queue: usize },
    /// A core has copied what is read.
    Read(EndId),
    /// The peer has read so many bytes.
    Credit(EndId, u64),
    /// The peer is gone, or does not want what it is sent.
    Reset(EndId),
}

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {}{}", self.bytes.len(), if self.fin { " fin" } else { "" })
    }
}
