//! A session and SEQUENCE (RFC 8881, 2.10 and 18.46).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v4::{SessionId, Status};
use parking_lot::Mutex;

use crate::{
    back_channel::BackChannel,
    channel::ChannelAttributes,
    client::Client,
    slot::{Admission, Slot},
};

/// Arguments of SEQUENCE, except `sa_cachethis`, which concerns only the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRequest {
    /// `sa_sequenceid`.
    pub sequence: u32,
    /// `sa_slotid`.
    pub slot: u32,
    /// `sa_highest_slotid`.
    pub highest_slot: u32,
}

/// Result of SEQUENCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceReply {
    /// `sr_sessionid`.
    pub session: SessionId,
    /// `sr_sequenceid`.
    pub sequence: u32,
    /// `sr_slotid`.
    pub slot: u32,
    /// `sr_highest_slotid`.
    pub highest_slot: u32,
    /// `sr_target_highest_slotid`.
    pub target_highest_slot: u32,
    /// `sr_status_flags`.
    pub status_flags: u32,
}

/// The treatment of a COMPOUND whose SEQUENCE is valid.
#[derive(Debug)]
pub enum Sequence<R: Clone> {
    /// The request is new and must be executed.
    Execute(Execution<R>, SequenceReply),
    /// Send this reply again: the request is a retry.
    Replay(R),
    /// The request is a retry, and its reply was not kept: answer SEQUENCE with this, and the operation after it with
    /// RETRY_UNCACHED_REP.
    Uncached(SequenceReply),
}

/// `channel_dir_from_client4` and `channel_dir_from_server4`: the channels of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The fore channel: CDFC4_FORE, CDFS4_FORE.
    Fore,
    /// The back channel: CDFC4_BACK, CDFS4_BACK.
    Back,
    /// A request for the fore channel, and the back channel if possible: CDFC4_FORE_OR_BOTH. Not a result.
    ForeOrBoth,
    /// A request for the back channel, and the fore channel if possible: CDFC4_BACK_OR_BOTH. Not a result.
    BackOrBoth,
    /// Both channels: CDFS4_BOTH. Not an argument.
    Both,
}

/// A session. `R` is the type of a reply that a slot keeps; its clones should share their contents.
pub struct Session<R> {
    id: SessionId,
    client: Arc<Client>,
    fore: ChannelAttributes,
    back: Option<Arc<BackChannel>>,
    destroyed: AtomicBool,
    slots: Box<[Mutex<Slot<R>>]>,
}

impl<R> fmt::Debug for Session<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("client", &self.client).finish_non_exhaustive()
    }
}

impl<R: Clone> Session<R> {
    pub(crate) fn new(
        id: SessionId,
        client: Arc<Client>,
        fore: ChannelAttributes,
        back: Option<ChannelAttributes>,
        callbacks: bool,
    ) -> Self {
        let slots = (0..fore.slots).map(|_| Mutex::new(Slot::new())).collect();
        let back = back.map(|attributes| Arc::new(BackChannel::new(id, attributes, callbacks)));
        client.back_channels.lock().extend(back.clone());
        Self { id, client, fore, back, destroyed: AtomicBool::new(false), slots }
    }

    /// The session ID.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Attributes of the fore channel: the limits that a COMPOUND must keep.
    pub fn fore(&self) -> &ChannelAttributes {
        &self.fore
    }

    /// The back channel, unless the server calls no clients back. It may have no connection.
    pub fn back(&self) -> Option<&Arc<BackChannel>> {
        self.back.as_ref()
    }

    /// Whether the session is destroyed. A connection that keeps it must then look the session ID up again.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// SEQUENCE. `digest` is a digest of the whole request, by which a false retry is recognized. A success renews the
    /// lease; a failure leaves the slot unchanged.
    ///
    /// # Errors
    /// BADSESSION, BADSLOT, BAD_HIGH_SLOT (`highest_slot` is less than `slot`, or not a slot), SEQ_MISORDERED,
    /// SEQ_FALSE_RETRY, and DELAY for a retry of a request in progress.
    pub fn sequence(
        self: &Arc<Self>,
        request: &SequenceRequest,
        digest: u64,
        now: Duration,
    ) -> Result<Sequence<R>, Status> {
        if self.is_destroyed() {
            return Err(Status::BadSession);
        }
        let slot = self.slots.get(request.slot as usize).ok_or(Status::BadSlot)?;
        if request.highest_slot < request.slot || request.highest_slot >= self.fore.slots {
            return Err(Status::BadHighSlot);
        }
        let mut slot = slot.lock();
        match slot.admit(request.sequence, digest)? {
            // If the lease has ended, the session is about to be destroyed, and its slots do not matter.
            Admission::New if !self.client.lease.begin(now) => Err(Status::BadSession),
            Admission::New => {
                let execution = Execution { session: self.clone(), slot: request.slot, finished: false };
                Ok(Sequence::Execute(execution, self.reply(request)))
            }
            Admission::Retry(_) if !self.client.lease.renew(now) => Err(Status::BadSession),
            Admission::Retry(Some(reply)) => Ok(Sequence::Replay(reply)),
            Admission::Retry(None) => Ok(Sequence::Uncached(self.reply(request))),
        }
    }

    fn reply(&self, request: &SequenceRequest) -> SequenceReply {
        SequenceReply {
            session: self.id,
            sequence: request.sequence,
            slot: request.slot,
            highest_slot: self.fore.slots - 1,
            target_highest_slot: self.fore.slots - 1,
            status_flags: self.client.flags() | self.path_flags(),
        }
    }

    /// The status flags of the paths for callbacks.
    pub(crate) fn path_flags(&self) -> u32 {
        match &self.back {
            Some(back) if back.is_connected() => back.flags(),
            back => back.as_ref().map_or(0, |back| back.flags()) | self.client.path_flags(),
        }
    }

    /// BIND_CONN_TO_SESSION: the channels that a connection gets.
    ///
    /// # Errors
    /// BADSESSION; INVAL if only the back channel is requested and the session has none, and for [`Direction::Both`].
    pub fn bind(&self, wanted: Direction) -> Result<Direction, Status> {
        if self.is_destroyed() {
            return Err(Status::BadSession);
        }
        match (wanted, self.back.is_some()) {
            (Direction::Fore, _) | (Direction::ForeOrBoth | Direction::BackOrBoth, false) => {
                Ok(Direction::Fore)
            }
            (Direction::ForeOrBoth | Direction::BackOrBoth, true) => Ok(Direction::Both),
            (Direction::Back, true) => Ok(Direction::Back),
            (Direction::Back, false) | (Direction::Both, _) => Err(Status::Inval),
        }
    }

    /// Destroys the session and drops the replies that its slots keep. Requests in progress are executed to their end.
    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Release);
        if let Some(back) = &self.back {
            back.close();
            self.client.back_channels.lock().retain(|other| !Arc::ptr_eq(other, back));
        }
        for slot in &self.slots {
            slot.lock().clear();
        }
    }
}

/// A request in progress: the permission to execute it, once. It does not depend on the connection that the request
/// came from.
///
/// [`finish`](Self::finish) ends it with its reply. If it is dropped instead, the request counts as executed and its
/// reply as not kept, because a part of it may be executed: a retry gets RETRY_UNCACHED_REP and is not executed.
pub struct Execution<R: Clone> {
    session: Arc<Session<R>>,
    slot: u32,
    finished: bool,
}

impl<R: Clone> fmt::Debug for Execution<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("session", &self.session).field("slot", &self.slot).finish()
    }
}

impl<R: Clone> Execution<R> {
    /// The session.
    pub fn session(&self) -> &Arc<Session<R>> {
        &self.session
    }

    /// Ends the request. The slot keeps `reply`, if there is one, until the next request of the slot.
    pub fn finish(mut self, reply: Option<R>) {
        self.end(reply);
    }

    fn end(&mut self, reply: Option<R>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if let Some(slot) = self.session.slots.get(self.slot as usize) {
            let mut slot = slot.lock();
            slot.finish(reply.filter(|_| !self.session.is_destroyed()));
        }
        self.session.client.lease.end();
    }
}

impl<R: Clone> Drop for Execution<R> {
    fn drop(&mut self) {
        self.end(None);
    }
}
