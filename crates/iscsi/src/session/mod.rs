//! The full feature phase of a session (RFC 7143), with one connection and error recovery level 0, as state machines
//! without I/O: [`TargetSession`] and [`InitiatorSession`].
//!
//! Both roles work alike. The owner of a connection receives the header of a PDU and passes it to `begin`, which
//! returns a [`Placement`]: the final place of the data segment. When the data is there, `finish` processes the PDU.
//! The owner then takes events from `poll_event` and PDUs to send from `poll_transmit`, until both return `None`.
//! The numbers of a PDU are set when it is taken, so PDUs must be sent in the order in which they are taken.
//!
//! A session stores headers and text only. The owner has the data of tasks; a session names parts of it by task, offset
//! and length. With iSER, RDMA operations replace Data-In, R2T and solicited Data-Out PDUs (when
//! [`Parameters::iser`](crate::negotiation::Parameters::iser) is set).
//!
//! A [`Violation`] by the peer ends the connection: the owner sends what `poll_transmit` still returns and closes it.

mod initiator_end;
mod numbers;
mod registry;
mod target_end;
#[cfg(test)]
mod tests;
mod types;
mod violation;

pub use initiator_end::{
    InitiatorConfig, InitiatorEvent, InitiatorPdu, InitiatorSession, Outcome, RequestError, Unfinished,
};
pub use registry::{Admission, Nexus, Refusal, Registry};
pub use target_end::{
    Completion, MAX_IMMEDIATE, TargetConfig, TargetEvent, TargetPdu, TargetSession, TargetTransmit,
};
pub use types::{Command, Direction, Payload, Placement};
pub use violation::Violation;
