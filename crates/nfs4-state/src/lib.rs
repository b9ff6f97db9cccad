//! State of an NFSv4.1 and 4.2 server (RFC 8881, RFC 7862) without I/O.
//!
//! [`State`] owns all of it. An operation that concerns clients and sessions is a method of `State`. SEQUENCE is a
//! method of [`Session`]: a connection keeps the [`Arc`](std::sync::Arc) that [`State::session`] returns, so that
//! SEQUENCE takes no lock but those of its slot and back channel, and allocates nothing from the heap.
//!
//! All methods may be called from several threads. None reads a clock: `now` is the time since an origin that the caller
//! selects once. None waits or performs I/O, except those that write the durable list of clients
//! ([`State::with_client_list`]). A method that fails returns the [`Status`](millrace_nfs::v4::Status) of the operation,
//! and changes nothing unless it documents otherwise.
//!
//! # Bounds
//!
//! No operation visits more entries than the state of one open, of one file's waiting requests (1,024) and delegations (one
//! for each client), and some hundred others: at most [`Limits::lock_owners_per_open`] and [`Limits::ranges_per_open`]. What
//! concerns more is done in steps of about a thousand entries: the end of a client, and [`State::expire`]. A client to
//! remove is found in an order of all. Tests count the visits of each operation with the state at its limits. Revocation
//! for an administrator and [`State::recall_all`] visit all state that there is, which other threads need not wait for: they
//! lock a thousand stateids of a client, or one of 64 parts of the files, at a time.
//!
//! # Leases
//!
//! The server is courteous: a client whose lease has expired keeps its state until another client's request conflicts
//! with it, a limit is reached, or [`Limits::courtesy`] has passed. Then the whole client is removed, with its sessions
//! and all of its state; its next requests fail with BADSESSION and STALE_CLIENTID.
//!
//! # Delegations
//!
//! A file is delegated by [`State::delegate`] after an OPEN. A request of another client that conflicts with a delegation
//! starts its recall and gets DELAY: [`State::open`], [`State::check_access`] for special stateids, and for requests without
//! a stateid, which includes all of other protocols, [`State::check_read`] and [`State::change`]. The server sends the
//! callbacks ([`State::take_recalls`]). A delegation that is not returned within a lease is revoked; then the request
//! succeeds. As long as no file may be delegated, these checks cost one load of an atomic variable.
//!
//! # Restarts
//!
//! The server keeps a [`ClientList`] in storage that survives it. A client is on the list before it gets its first state,
//! and leaves it before others get what its state excludes. After a restart only the clients on the list may reclaim
//! state, and no client gets other state, until all of them have sent RECLAIM_COMPLETE or the grace period has passed and
//! those that are missing have left the list. So a lock that was lost cannot be reclaimed.

mod back_channel;
mod callbacks;
mod candidates;
mod channel;
mod client;
mod contention;
mod create_session;
mod delegate;
mod delegating;
mod delegation;
mod ended;
mod eviction;
mod exchange_id;
mod files;
mod grace;
mod heap;
mod identify;
mod lease;
mod limits;
mod lock_operations;
mod locks;
mod opens;
mod recall_operations;
mod recalls;
mod records;
mod replies;
mod report;
mod reservation;
mod revocation;
mod session;
mod share;
mod slot;
mod slots;
mod state;
mod stateids;
mod table;
#[cfg(test)]
mod tests;
mod visits;

pub use back_channel::{BackChannel, CallbackSlot, CallbackTarget};
pub use callbacks::PendingCallback;
pub use channel::{ChannelAttributes, MIN_CACHED};
pub use client::Client;
pub use contention::Changing;
pub use delegate::{DelegationRequest, NotDelegated};
pub use delegation::{DelegatedTimes, Writer};
pub use grace::ClientList;
pub use identify::{ClientIdentified, CreateSession, ExchangeId, SessionCreated};
pub use limits::{Identity, Limits};
pub use lock_operations::{LockDenied, LockError, LockRequest, Locker};
pub use locks::{ByteRange, LockKind, LockNotice};
pub use opens::OpenRequest;
pub use recalls::{DelegationStats, Recall, RecallAny};
pub use report::{
    ClientReport, Selection, StateTotals, StateidKind, StateidPage, StateidPosition, StateidReport,
};
pub use reservation::ReservedStateid;
pub use session::{Direction, Execution, Sequence, SequenceRequest, Session};
pub use state::State;
pub use table::DelegationKind;
