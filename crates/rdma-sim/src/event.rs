//! Events, and the ends of connections that they concern.

use millrace_rdma::ConnectionError;

use crate::tcp;

/// Picoseconds in a nanosecond: transmission times are kept so, lest rounding add up over packets.
pub(super) const PS: u64 = 1000;

/// One end of one connection: the connection's number, and which end.
pub(super) type EndId = (u64, usize);

/// The other end.
pub(super) const fn peer(id: EndId) -> EndId {
    (id.0, 1 - id.1)
}

/// What happens at a point in time.
pub(super) enum Event {
    /// The software has rung for its next work request.
    TakeUp(EndId),
    /// A work request has gone through the adapter.
    Launch(EndId),
    /// The port of this host has sent what it was sending.
    PortFree(usize),
    /// The first bit of a part of a message reaches the port of the peer's host.
    Head { from: EndId, number: u64, part: u64, head_ps: u64, tail_ps: u64, last: bool },
    /// The port of this host has taken what was coming.
    PortIn(usize),
    /// A message is here.
    Arrive { from: EndId, number: u64 },
    /// A read may be served.
    Serve(EndId),
    /// The host has taken a completion.
    Visible(EndId),
    /// The peer has the message of this number.
    Acked(EndId, u64),
    /// The owner learns of the end.
    Ended(EndId),
    /// The peer reports that it has closed the connection.
    PeerEnded(EndId, ConnectionError),
    /// A disconnected end has waited long enough.
    Lingered(EndId),
    /// To a TCP connection.
    Tcp(tcp::event::Event),
}
