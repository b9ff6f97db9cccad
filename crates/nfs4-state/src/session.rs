//! A session and SEQUENCE (RFC 8881, 2.10 and 18.46).

use std::{fmt, sync::Arc, time::Duration};

use millrace_nfs::v4::{SequenceOk, SessionId, Status};
use parking_lot::RwLock;

use crate::{
    back_channel::BackChannel, channel::ChannelAttributes, client::Client, replies::Replies, slot::Admission,
    slots::Slots,
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

/// The treatment of a COMPOUND whose SEQUENCE is valid.
#[derive(Debug)]
pub enum Sequence<R: Clone> {
    /// The request is new and must be executed.
    Execute(Execution<R>, SequenceOk),
    /// Send this reply again: the request is a retry.
    Replay(R),
    /// The request is a retry, and its reply was not kept: answer SEQUENCE with this, and the operation after it with
    /// RETRY_UNCACHED_REP.
    Uncached(SequenceOk),
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
    /// Number of slots that the client has requested, as far as the limits permit.
    wanted: u32,
    back: Option<Arc<BackChannel>>,
    replies: Arc<Replies>,
    slots: RwLock<Slots<R>>,
}

/// A change of the number of slots after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resize {
    /// The client has reduced the number of slots that it uses.
    Retire,
    /// The client uses all slots.
    Grow,
}

impl<R> fmt::Debug for Session<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("client", &self.client).finish_non_exhaustive()
    }
}

impl<R: Clone> Session<R> {
    /// A session with the slots of `fore`, and later with up to `wanted` ones.
    pub(crate) fn new(
        id: SessionId,
        client: Arc<Client>,
        (fore, wanted): (ChannelAttributes, u32),
        back: Option<BackChannel>,
        replies: &Arc<Replies>,
    ) -> Self {
        let back = back.map(Arc::new);
        client.back_channels.lock().extend(back.clone());
        replies.add(client.address(), fore.kept(fore.slots));
        let slots = RwLock::new(Slots::new(fore.slots));
        Self { id, client, fore, wanted, back, replies: Arc::clone(replies), slots }
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
        self.slots.read().is_destroyed()
    }

    /// SEQUENCE. `digest` is a digest of the whole request, by which a false retry is recognized. A success renews the
    /// lease; a failure leaves the slot unchanged.
    ///
    /// # Errors
    /// BADSESSION, BADSLOT, BAD_HIGH_SLOT (`highest_slot` is less than `slot`, or never was a slot), SEQ_MISORDERED,
    /// SEQ_FALSE_RETRY, and DELAY for a retry of a request in progress.
    pub fn sequence(
        self: &Arc<Self>,
        request: &SequenceRequest,
        digest: u64,
        now: Duration,
    ) -> Result<Sequence<R>, Status> {
        let (execution, resize) = {
            let slots = self.slots.read();
            if slots.is_destroyed() {
                return Err(Status::BadSession);
            }
            let Some(slot) = slots.get(request.slot) else {
                return self.retry_retired(&slots, request, digest, now);
            };
            let mut slot = slot.lock();
            // A request may have been sent before slots were retired.
            if request.highest_slot < request.slot || request.highest_slot >= slots.most() {
                return Err(Status::BadHighSlot);
            }
            let is_overdue = slots.is_overdue(now);
            if is_overdue && request.slot >= slots.target() && !slot.is_last(request.sequence, digest) {
                return Err(Status::BadSlot);
            }
            match slot.admit(request.sequence, digest)? {
                // If the lease has ended, the session is about to be destroyed, and its slots do not matter.
                Admission::New if !self.client.lease.begin(now) => return Err(Status::BadSession),
                Admission::New => {}
                Admission::Retry(_) if !self.client.lease.renew(now) => return Err(Status::BadSession),
                Admission::Retry(Some(reply)) => return Ok(Sequence::Replay(reply)),
                Admission::Retry(None) => return Ok(Sequence::Uncached(self.reply(&slots, request))),
            }
            let is_told = std::mem::replace(&mut slot.told, slots.requests()) == slots.requests();
            let resize = if slots.target() < slots.len() {
                let retires = is_overdue || (is_told && request.highest_slot < slots.target());
                retires.then_some(Resize::Retire)
            } else {
                let grows = request.slot + 1 == slots.len() && slots.len() < self.wanted;
                grows.then_some(Resize::Grow)
            };
            let execution = Execution { session: self.clone(), slot: request.slot, finished: false };
            let Some(resize) = resize else {
                return Ok(Sequence::Execute(execution, self.reply(&slots, request)));
            };
            (execution, resize)
        };
        match resize {
            Resize::Retire => self.retire(),
            Resize::Grow => self.grow(),
        }
        let reply = self.reply(&self.slots.read(), request);
        Ok(Sequence::Execute(execution, reply))
    }

    /// A request in a slot that does not exist, or not any more. The client has to be notified that one was executed, so
    /// that it does not repeat it in another slot.
    fn retry_retired(
        &self,
        slots: &Slots<R>,
        request: &SequenceRequest,
        digest: u64,
        now: Duration,
    ) -> Result<Sequence<R>, Status> {
        let retired = slots.retired(request.slot).ok_or(Status::BadSlot)?;
        if !retired.is_last(request.sequence, digest) {
            return Err(Status::BadSlot);
        }
        if !self.client.lease.renew(now) {
            return Err(Status::BadSession);
        }
        Ok(Sequence::Uncached(self.reply(slots, request)))
    }

    fn reply(&self, slots: &Slots<R>, request: &SequenceRequest) -> SequenceOk {
        SequenceOk {
            session: self.id,
            sequence: request.sequence,
            slot: request.slot,
            highest_slot: slots.len().saturating_sub(1),
            target_highest_slot: slots.target().saturating_sub(1),
            status_flags: self.client.flags() | self.path_flags(),
        }
    }

    /// Requests the client to use half of its slots until `end`. Returns whether [`retire_overdue`](Self::retire_overdue)
    /// has to be called then.
    pub(crate) fn ask_for_half(&self, end: Duration) -> bool {
        self.slots.write().ask_for_half(end)
    }

    /// Retires the slots that the client was asked for, if it has not confirmed in time that it uses them no more. Returns
    /// when this has to be called again, if so.
    pub(crate) fn retire_overdue(&self, now: Duration) -> Option<Duration> {
        let (retired, again) = self.slots.write().retire_overdue(now);
        self.replies.give_back(self.client.address(), self.fore.kept(retired));
        again
    }

    fn retire(&self) {
        let retired = self.slots.write().retire();
        self.replies.give_back(self.client.address(), self.fore.kept(retired));
    }

    /// Adds slots, if there is room for their replies: at most as many as there are.
    fn grow(&self) {
        let address = self.client.address();
        let room = self.replies.room(address, false).most / self.fore.kept(1);
        if room == 0 {
            return;
        }
        let mut slots = self.slots.write();
        let count = slots.len().min(self.wanted.saturating_sub(slots.len()));
        let count = count.min(u32::try_from(room).unwrap_or(u32::MAX));
        if slots.target() == slots.len() && count > 0 {
            slots.grow(count);
            self.replies.add(address, self.fore.kept(count));
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
        let slots = self.slots.write().destroy();
        self.replies.give_back(self.client.address(), self.fore.kept(slots));
        if let Some(back) = &self.back {
            back.close();
            self.client.back_channels.lock().retain(|other| !Arc::ptr_eq(other, back));
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
        if let Some(slot) = self.session.slots.read().get(self.slot) {
            slot.lock().finish(reply);
        }
        self.session.client.lease.end();
    }
}

impl<R: Clone> Drop for Execution<R> {
    fn drop(&mut self) {
        self.end(None);
    }
}
