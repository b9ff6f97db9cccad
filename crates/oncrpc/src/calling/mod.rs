//! The client's end of a connection, for TCP and RDMA: submission, XIDs, deadlines, cancellation, close.
//!
//! One task owns a connection. Callers submit calls through a lock-free [`queue`](millrace_runtime::queue); the task sends them,
//! matches replies by XID and completes each [`call`]. The transport-specific part (framing, chunks, credits)
//! is a [`ConnectionDriver`], which keeps its calls in [`Calls`].

mod call;
mod connection;
mod in_flight;
mod pending;
mod submissions;
mod transport;

pub use call::Waiter;
pub use connection::{Connection, ConnectionDriver};
pub use in_flight::{Calls, InFlight, Outgoing};
pub use pending::PendingCall;
pub use submissions::Submissions;
pub use transport::{CallbackHandler, CallbackHandlerRef, Transport};
