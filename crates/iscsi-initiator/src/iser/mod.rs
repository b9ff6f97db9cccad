//! The initiator's end of an iSCSI session over RDMA: iSER (RFC 7145), for any RDMA provider.
//!
//! [`log_in`] performs the login on a connected queue pair and returns an [`InitiatorConnection`]. It sends the
//! commands of the caller, and exposes their memory to the target: to RDMA Writes for the data of reads, to RDMA Reads
//! for the data of writes. The exposure begins with [`InitiatorConnection::submit`] and ends before
//! [`Event::Completed`] returns the memory, also if the command is aborted or the connection is lost. Writes whose
//! data is immediate are never exposed.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/iser_target.rs"));
//! use std::future::poll_fn;
//!
//! use millrace_buffer::Arena;
//! use millrace_iscsi::{login::InitiatorConfig, pdu::TaskAttribute, session::{Command, Direction, Outcome}};
//! use millrace_iscsi_initiator::iser::{Error, Event, LoggedIn, log_in};
//! use millrace_rdma::{Memory, QueuePair};
//!
//! /// Reads the first block of LUN 0.
//! async fn read(qp: Box<dyn QueuePair>, arena: Arena, config: InitiatorConfig) -> Result<Option<Memory>, Error> {
//!     let LoggedIn::Established(mut session) = log_in(qp, arena.clone(), config).await? else {
//!         return Ok(None); // The target has moved.
//!     };
//!     let mut cdb = [0; 16];
//!     (cdb[0], cdb[8]) = (0x28, 1); // READ(10) of 1 block
//!     let (direction, attribute) = (Direction::Read, TaskAttribute::SIMPLE);
//!     let command = Command { lun: 0, attribute, cdb, direction, expected: 512 };
//!     let mut buffer = Memory::Owned(arena.alloc(512)?);
//!     loop {
//!         let tag = session.submit(command, Some(buffer)).expect("the session accepts commands");
//!         let (outcome, memory) = loop {
//!             match poll_fn(|cx| session.poll_event(cx)).await? {
//!                 Event::Completed { itt, outcome, memory } if itt == tag => break (outcome, memory),
//!                 _ => {}
//!             }
//!         };
//!         match (outcome, memory) {
//!             (Outcome::Completed { status: 0, .. }, memory) => return Ok(memory),
//!             // The first command of a session ends with a unit attention condition (sense key 6).
//!             (Outcome::Completed { sense, .. }, Some(memory)) if sense.get(2) == Some(&6) => buffer = memory,
//!             (outcome, _) => panic!("the read failed: {outcome:?}"),
//!         }
//!     }
//! }
//! #
//! # fn main() { run(|qp, arena, config| async move {
//! #     let Memory::Owned(block) = read(qp, arena, config).await.unwrap().unwrap() else { panic!("shared memory") };
//! #     assert_eq!(block[..], [0; 512]);
//! # }) }
//! ```
//!
//! It has no timers: the caller limits the time of the login, pings the target, and ends a connection on which
//! nothing happens.

mod connection;
mod error;
mod login;
mod messages;

pub use connection::{Event, InitiatorConnection};
pub use error::{Error, SubmitError, SubmitReason};
pub use login::{LoggedIn, connect_params, log_in};
