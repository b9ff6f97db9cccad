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

pub(super) mod end;
pub(super) mod event;
mod flow;
pub(super) mod receive_queue;
mod records;
pub(super) mod setup;
mod stream;
