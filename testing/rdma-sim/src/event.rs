//! Events, and the identification of connection ends.

use millrace_rdma::ConnectionError;

use crate::tcp;

/// Picoseconds per nanosecond. Transmission times are in picoseconds to avoid the accumulation of rounding
/// errors.
pub(super) const PS: u64 = 1000;

/// Identifies one end of a connection: number of the connection, and 0 or 1.
pub(super) type EndId = (u64, usize);

/// The other end of the connection.
pub(super) const fn peer(id: EndId) -> EndId {
    (id.0, 1 - id.1)
}

/// A scheduled event.
pub(super) enum Event {
    /// The software has rung the doorbell for its next work request.
    TakeUp(EndId),
    /// The adapter has processed a work request.
    Launch(EndId),
    /// The port of this host has finished sending a part.
    PortFree(usize),
    /// The first bit of a part of a message arrives at the port of the peer's host.
    /// It has passed this number of shared uplinks.
    Head { from: EndId, number: u64, part: u64, head_ps: u64, tail_ps: u64, last: bool, uplinks: usize },
    /// The port of this host has finished receiving a part.
    PortIn(usize),
    /// A message has arrived.
    Arrive { from: EndId, number: u64 },
    /// A read may be served.
    Serve(EndId),
    /// The host has processed a completion.
    Visible(EndId),
    /// The peer has acknowledged the message with this number.
    Acked(EndId, u64),
    /// The owner is notified of the end.
    Ended(EndId),
    /// The peer reports that it has closed the connection.
    PeerEnded(EndId, ConnectionError),
    /// The time limit of a disconnected end has expired.
    Lingered(EndId),
    /// An event of a TCP connection.
    Tcp(tcp::event::Event),
}
