//! TCP on the same hosts and links, for comparison with RDMA: the cost of its software, and its window.
//!
//! ```text
//! write                                -> takes space in the window, or the writer waits
//! a core (call, segment, sum, copies)  -> Made      one segment after the other
//! the adapter, as for RDMA             -> Launch    the segment queues at the port, shared in round-robin
//! order
//! port out, propagation                -> Head      the first bit reaches the other port
//! port in                              -> Arrive    the last bit, + receive: it waits in a receive queue
//! interrupt, unless one is pending     -> Interrupt the queue is emptied, one segment after the other
//! a core (segment, sum)                -> Taken     the reader is woken
//! a core (call, copies, messages)      -> Read      the reader has the data
//! propagation back                     -> Credit    space in the window
//! ```
//!
//! The window of a direction limits the data that is written and not acknowledged as read. Slow start opens
//! it to its maximum (RFC 5681 section 3.1), where it stays, because no packet is lost. A segment that is not
//! full waits until all written data is in it or the window has space for a full one. The stream consists of RPC
//! records or iSCSI PDUs ([`Framing`](framing::Framing)): each costs its reader the processing of a message.
//! Connection setup and close take propagation delay but no processor time.

pub(super) mod end;
pub(super) mod event;
mod flow;
pub(super) mod framing;
pub(super) mod receive_queue;
pub(super) mod setup;
mod stream;
