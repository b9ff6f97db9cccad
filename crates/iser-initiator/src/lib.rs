//! The initiator's end of an iSCSI session over RDMA: iSER (RFC 7145), for any RDMA provider.
//!
//! [`log_in`] performs the login on a connected queue pair and returns an [`InitiatorConnection`]. It sends the
//! commands of the caller, and exposes their memory to the target: to RDMA Writes for the data of reads, to RDMA Reads
//! for the data of writes. The exposure begins with [`InitiatorConnection::submit`] and ends before
//! [`Event::Completed`] returns the memory, also if the command is aborted or the connection is lost. Writes whose
//! data is immediate are never exposed.
//!
//! The crate has no timers: the caller limits the time of the login, pings the target, and ends a connection on which
//! nothing happens.

mod connection;
mod error;
mod login;
mod messages;

pub use connection::{Event, InitiatorConnection};
pub use error::{Error, SubmitError, SubmitReason};
pub use login::{LoggedIn, connect_params, log_in};
