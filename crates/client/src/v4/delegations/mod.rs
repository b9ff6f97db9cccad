//! Read delegations of files: the server's promise that no other client changes the file or its names, until the server
//! recalls the delegation (RFC 8881 section 10.4). The holder may use what it has cached without asking the server.
//!
//! The client requests delegations for reading only, and writes through: it never has data that the server lacks. It keeps
//! no file open, and does not claim delegations again after a restart of the server. A holder stops to trust its
//! delegation in each of these events, and then returns it:
//!
//! - the server recalls it (CB_RECALL), or some (CB_RECALL_ANY), or the client has too many;
//! - the flags of SEQUENCE report revoked state, or that the server cannot call back;
//! - the server has a new record of the client, after a restart or the end of the lease;
//! - no request that was sent within the duration of a lease has had a reply: the server may have given up on the client.
//!   The trust returns with the next reply, unless that reports one of the other events.
//!
//! `table.rs` has the state; the holder's end of it is [`Delegation`](super::Delegation).

mod table;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use millrace_nfs::v4::{Bitmap, CbRecallAnyArgs, CbRecallArgs, Stateid, Status, recall_any, sequence_flags};
use millrace_runtime::{Instant, sync::Mutex};

use self::table::Table;
pub(super) use self::table::{New, Trust};

/// The flags of SEQUENCE with which all delegations end: state is revoked, or the server cannot recall.
const ENDING: u32 = sequence_flags::EXPIRED_ALL_STATE_REVOKED
    | sequence_flags::EXPIRED_SOME_STATE_REVOKED
    | sequence_flags::ADMIN_STATE_REVOKED
    | sequence_flags::RECALLABLE_STATE_REVOKED
    | sequence_flags::CB_PATH_DOWN
    | sequence_flags::CB_PATH_DOWN_SESSION
    | sequence_flags::BACKCHANNEL_FAULT;
/// Time without requests for delegations after the server has refused one for a reason other than the use of the file.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// The delegations of a client.
#[derive(Default)]
pub(crate) struct Delegations {
    are_used: AtomicBool,
    table: Mutex<Table>,
    /// When the last request that had a reply was sent.
    confirmed: Mutex<Instant>,
    /// Until when the client requests no delegations.
    paused_until: Mutex<Instant>,
}

impl Delegations {
    /// Whether the client has requested delegations.
    pub(in crate::v4) fn are_used(&self) -> bool {
        self.are_used.load(Ordering::Relaxed)
    }

    /// Handles the flags of SEQUENCE.
    pub(in crate::v4) fn note_flags(&self, flags: u32) {
        if flags & ENDING != 0 {
            self.table.lock().end_all(false);
        }
    }

    /// The server has no state of the client any more.
    pub(in crate::v4) fn lose_all(&self) {
        self.table.lock().end_all(true);
    }

    /// A request that was sent at `sent` has had a reply.
    pub(in crate::v4) fn confirm(&self, sent: Instant) {
        let mut confirmed = self.confirmed.lock();
        *confirmed = sent.max(*confirmed);
    }

    /// CB_RECALL.
    ///
    /// # Errors
    /// BAD_STATEID if the client has no such delegation.
    pub(in crate::v4) fn recall(&self, args: &CbRecallArgs<'_>) -> Result<(), Status> {
        self.table.lock().recall(&args.handle, &args.stateid).ok_or(Status::BadStateid)
    }

    /// CB_RECALL_ANY.
    pub(in crate::v4) fn recall_any(&self, args: &CbRecallAnyArgs) {
        let read = Bitmap::from([recall_any::READ_DELEGATIONS, 0, 0]);
        if !args.types.intersection(read).is_empty() {
            self.table.lock().keep(args.keep as usize);
        }
    }

    /// Until when delegations may be trusted, unless they end. `lease`: the duration of a lease.
    pub(super) fn trusted_until(&self, lease: Duration) -> Instant {
        *self.confirmed.lock() + lease
    }

    /// Requests no delegations for a while, because the server does not grant them.
    pub(crate) fn pause(&self, now: Instant) {
        *self.paused_until.lock() = now + REFUSED_PAUSE;
    }

    /// Begins the request for the delegation of a file. `false`: the client has it or has requested it, or requests none
    /// for a while.
    pub(crate) fn ask(&self, file: &[u8], now: Instant) -> bool {
        let asks = now >= *self.paused_until.lock() && self.table.lock().ask(file);
        self.are_used.fetch_or(asks, Ordering::Relaxed);
        asks
    }

    /// Ends the request without a delegation.
    pub(crate) fn refused(&self, file: &[u8]) {
        self.table.lock().refused(file);
    }

    /// Ends the request with a delegation, which may have ended already.
    pub(super) fn granted(&self, file: &[u8], stateid: Stateid) -> New {
        self.table.lock().granted(file, stateid)
    }

    /// Ends a delegation that its holder gives up. Returns whether the server must get it back, once.
    pub(super) fn give_up(&self, file: &[u8], stateid: &Stateid) -> bool {
        self.table.lock().give_up(file, stateid)
    }

    /// Ends all delegations, and removes those that are to be returned.
    pub(super) fn take_all(&self) -> Vec<(Vec<u8>, Stateid)> {
        self.table.lock().take_all()
    }

    /// Removes a delegation that was returned.
    pub(super) fn remove(&self, file: &[u8], stateid: &Stateid) {
        self.table.lock().remove(file, stateid);
    }
}
