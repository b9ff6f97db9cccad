//! The back channel: calls of the server on the connections of the client (RFC 8881 sections 2.10.3.1 and 20). The client has
//! no layouts and no write delegations.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_nfs::v4::{
    CALLBACK_VERSION, CB_COMPOUND, CB_NULL, CallbackArgs, CallbackOperation, CbNotifyLockArgs,
    CbRecallAnyArgs, CbRecallArgs, CbSequenceArgs, CbSequenceOk, CompoundEncoder, SessionId, Status,
    sequence_flags,
};
use millrace_oncrpc::{AcceptError, CallHeader, ReplyHeader, ReplyStatus};
use millrace_runtime::sync::Mutex;
use millrace_xdr::{Arena, Decoder, Encoder, Message};

/// The RPC program of callbacks, which the client chooses.
pub(super) const PROGRAM: u32 = 0x4000_0000;
/// Maximum number of operations of a CB_COMPOUND: CB_SEQUENCE and another one.
pub(super) const MAX_OPERATIONS: u32 = 2;
/// Bytes of a reply.
const REPLY: usize = 256;
/// The flags of SEQUENCE that no connection for callbacks is bound.
const DOWN: u32 = sequence_flags::CB_PATH_DOWN | sequence_flags::CB_PATH_DOWN_SESSION;

/// What the callbacks concern.
pub(super) trait Callbacks {
    /// CB_NOTIFY_LOCK, with a file handle and a lock owner.
    fn notify_lock(&self, file: &[u8], owner: &[u8]);

    /// CB_RECALL.
    ///
    /// # Errors
    /// BAD_STATEID if the client has no such delegation.
    fn recall(&self, args: &CbRecallArgs<'_>) -> Result<(), Status>;

    /// CB_RECALL_ANY.
    fn recall_any(&self, args: &CbRecallAnyArgs);
}

/// The back channel of the current session. It has one slot.
#[derive(Default)]
pub(super) struct BackChannel {
    /// The session, and the sequence number of the last callback.
    slot: Mutex<Option<(SessionId, u32)>>,
    /// Whether the server has no connection for callbacks any more.
    is_down: AtomicBool,
    /// Whether the server cannot use the back channel of this session any more.
    has_fault: AtomicBool,
}

impl BackChannel {
    /// Accepts the callbacks of a new session.
    pub(super) fn begin(&self, session: SessionId) {
        *self.slot.lock() = Some((session, 0));
        self.is_down.store(false, Ordering::Relaxed);
        self.has_fault.store(false, Ordering::Relaxed);
    }

    /// Handles the flags of SEQUENCE.
    pub(super) fn note_flags(&self, flags: u32) {
        if flags & DOWN != 0 {
            self.is_down.store(true, Ordering::Relaxed);
        }
        if flags & sequence_flags::BACKCHANNEL_FAULT != 0 {
            self.has_fault.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the server has reported that it cannot use the back channel, so that a new session must replace this one
    /// (RFC 8881 section 18.46.3). Returns `true` once for each report.
    pub(super) fn take_fault(&self) -> bool {
        self.has_fault.load(Ordering::Relaxed) && self.has_fault.swap(false, Ordering::Relaxed)
    }

    /// Whether the server has reported the loss of its connection for callbacks, and a connection is to be bound again.
    /// Returns `true` once for each report.
    pub(super) fn take_down(&self) -> bool {
        self.is_down.swap(false, Ordering::Relaxed)
    }

    /// The reply to the RPC call `call`, if it gets one. The operations are executed on `on`.
    pub(super) fn answer(
        &self,
        call: &Message,
        arena: &Arena,
        minor_version: u32,
        on: &impl Callbacks,
    ) -> Option<Message> {
        let mut d = Decoder::new(call);
        let (header, _) = CallHeader::decode(&mut d).ok()?;
        let mut e = Encoder::new(arena, REPLY);
        let mut accepted = |status| e.put(&ReplyHeader { xid: header.xid, status });
        let args = match (header.prog, header.vers, header.proc) {
            (PROGRAM, CALLBACK_VERSION, CB_NULL) => Ok(None),
            (PROGRAM, CALLBACK_VERSION, CB_COMPOUND) => {
                d.get::<CallbackArgs<'_>>().map(Some).map_err(|_| AcceptError::GarbageArgs)
            }
            (PROGRAM, CALLBACK_VERSION, _) => Err(AcceptError::ProcUnavail),
            (PROGRAM, ..) => Err(AcceptError::ProgMismatch { low: CALLBACK_VERSION, high: CALLBACK_VERSION }),
            _ => Err(AcceptError::ProgUnavail),
        };
        match args {
            Err(error) => accepted(ReplyStatus::Accept(error)),
            Ok(None) => accepted(ReplyStatus::Success),
            Ok(Some(args)) => {
                accepted(ReplyStatus::Success);
                self.compound(&args, &mut d, &mut e, minor_version, on);
            }
        }
        e.finish().ok()
    }

    /// Executes CB_COMPOUND.
    fn compound(
        &self,
        args: &CallbackArgs<'_>,
        d: &mut Decoder<'_>,
        e: &mut Encoder,
        minor_version: u32,
        on: &impl Callbacks,
    ) {
        let mut results = CompoundEncoder::begin(e, &args.tag);
        if args.minor_version != minor_version {
            return results.reject(e, Status::MinorVersMismatch);
        }
        for position in 0..args.operations {
            let Ok(operation) = CallbackOperation::try_from(d.u32().unwrap_or_default()) else {
                results.illegal(e);
                break;
            };
            results.operation(e, operation);
            let result = match (position, operation) {
                (0, CallbackOperation::Sequence) => self.sequence(args.operations, d, e),
                (0, _) => Err(Status::OpNotInSession),
                (_, CallbackOperation::Sequence) => Err(Status::SequencePos),
                _ => execute(operation, d, on),
            };
            if let Err(status) = result {
                results.fail(e, status);
                break;
            }
        }
        results.finish(e);
    }

    /// CB_SEQUENCE. The reply to a retry is made again: what the operations return does not depend on their number.
    fn sequence(&self, operations: u32, d: &mut Decoder<'_>, e: &mut Encoder) -> Result<(), Status> {
        let args: CbSequenceArgs = d.get().map_err(|_| Status::BadXdr)?;
        let mut slot = self.slot.lock();
        let last = match &mut *slot {
            Some((session, last)) if *session == args.session => last,
            _ => return Err(Status::BadSession),
        };
        if args.slot != 0 {
            return Err(Status::BadSlot);
        }
        if args.sequence != last.wrapping_add(1) && args.sequence != *last {
            return Err(Status::SeqMisordered);
        }
        if operations > MAX_OPERATIONS {
            return Err(Status::TooManyOps);
        }
        *last = args.sequence;
        e.put(&CbSequenceOk {
            session: args.session,
            sequence: args.sequence,
            slot: 0,
            highest_slot: 0,
            target_highest_slot: 0,
        });
        Ok(())
    }
}

/// Executes an operation after CB_SEQUENCE. None has data in its result.
fn execute(operation: CallbackOperation, d: &mut Decoder<'_>, on: &impl Callbacks) -> Result<(), Status> {
    match operation {
        CallbackOperation::NotifyLock => {
            let args: CbNotifyLockArgs<'_> = d.get().map_err(|_| Status::BadXdr)?;
            on.notify_lock(&args.handle, &args.owner.owner);
            Ok(())
        }
        CallbackOperation::RecallAny => {
            on.recall_any(&d.get().map_err(|_| Status::BadXdr)?);
            Ok(())
        }
        // SEQUENCE returns the number of slots to use as well.
        CallbackOperation::RecallSlot => d.u32().map(drop).map_err(|_| Status::BadXdr),
        CallbackOperation::Recall => on.recall(&d.get().map_err(|_| Status::BadXdr)?),
        // The client has no write delegations.
        CallbackOperation::Getattr => Err(Status::BadHandle),
        _ => Err(Status::NotSupp),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use millrace_buffer::ArenaConfig;
    use millrace_nfs::v4::{ClientId, List, Opaque, StateOwner, Stateid};
    use millrace_oncrpc::call_header;
    use millrace_xdr::Encode;
    use proptest::prelude::*;

    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);

    struct Scene {
        arena: Arena,
        channel: BackChannel,
        notified: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
        /// Recalled stateids, and the numbers of CB_RECALL_ANY.
        recalled: RefCell<Vec<(Stateid, Vec<u8>)>>,
        keep: RefCell<Vec<u32>>,
    }

    impl Callbacks for Scene {
        fn notify_lock(&self, file: &[u8], owner: &[u8]) {
            self.notified.borrow_mut().push((file.into(), owner.into()));
        }

        fn recall(&self, args: &CbRecallArgs<'_>) -> Result<(), Status> {
            self.recalled.borrow_mut().push((args.stateid, args.handle.to_vec()));
            if args.stateid == Stateid::ANONYMOUS { Err(Status::BadStateid) } else { Ok(()) }
        }

        fn recall_any(&self, args: &CbRecallAnyArgs) {
            self.keep.borrow_mut().push(args.keep);
        }
    }

    /// The arguments of CB_SEQUENCE.
    fn sequence(sequence: u32) -> CbSequenceArgs {
        CbSequenceArgs {
            session: SESSION,
            sequence,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
            referring_calls: List(vec![]),
        }
    }

    fn notify_lock<'a>(file: &'a [u8], owner: &'a [u8]) -> CbNotifyLockArgs<'a> {
        let owner = StateOwner { client_id: ClientId { number: 1 }, owner: Opaque(owner) };
        CbNotifyLockArgs { handle: Opaque(file), owner }
    }

    impl Scene {
        fn new() -> Self {
            let scene = Self {
                arena: Arena::new(ArenaConfig::default()),
                channel: BackChannel::default(),
                notified: RefCell::default(),
                recalled: RefCell::default(),
                keep: RefCell::default(),
            };
            scene.channel.begin(SESSION);
            scene
        }

        /// A call with these words of the header and these arguments.
        fn call(
            &self,
            (program, version, procedure): (u32, u32, u32),
            args: impl FnOnce(&mut Encoder),
        ) -> Message {
            let mut e = Encoder::new(&self.arena, 256);
            let none = millrace_oncrpc::Credential::None.encoded();
            call_header(&mut e, program, version, procedure, &none);
            args(&mut e);
            let mut call = e.finish().unwrap();
            call.set_xid(99);
            call
        }

        fn answer(&self, call: &Message) -> Option<Vec<u8>> {
            let reply = self.channel.answer(call, &self.arena, 2, self)?;
            assert!(reply.stream_len() <= 1024, "{}", reply.stream_len());
            Some(reply.head.to_vec())
        }

        /// The status of a CB_COMPOUND with CB_SEQUENCE and another operation, and the number of results.
        fn compound(&self, first: CbSequenceArgs, operation: u32, args: impl Encode) -> (Status, u32) {
            self.operations(2, 2, |e| {
                e.put(&CallbackOperation::Sequence);
                e.put(&first);
                e.put_u32(operation);
                e.put(&args);
            })
        }

        fn operations(
            &self,
            minor_version: u32,
            operations: u32,
            put: impl FnOnce(&mut Encoder),
        ) -> (Status, u32) {
            let call = self.call((PROGRAM, 1, CB_COMPOUND), |e| {
                e.put(&CallbackArgs { tag: Opaque(b"tag"), minor_version, callback_ident: 0, operations });
                put(e);
            });
            let reply = self.answer(&call).unwrap();
            // The reply is accepted and successful.
            assert_eq!(
                reply[..24],
                [0, 0, 0, 99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
            );
            let mut d = Decoder::from_bytes(&reply[24..]);
            let status = d.get().unwrap();
            assert_eq!(d.opaque(100).unwrap(), b"tag");
            (status, d.u32().unwrap())
        }
    }

    const NOTIFY: u32 = 13;

    #[test]
    fn a_notification_is_passed_on_and_a_retry_has_the_same_result() {
        let scene = Scene::new();
        for number in [1, 1, 2] {
            let done = scene.compound(sequence(number), NOTIFY, notify_lock(b"file", b"owner"));
            assert_eq!(done, (Status::Ok, 2));
        }
        assert_eq!(*scene.notified.borrow(), vec![(b"file".to_vec(), b"owner".to_vec()); 3]);
    }

    #[test]
    fn callbacks_outside_of_the_session_have_no_effect() {
        let scene = Scene::new();
        let args = || notify_lock(b"file", b"owner");
        let other = CbSequenceArgs { session: SessionId([8; 16]), ..sequence(1) };
        assert_eq!(scene.compound(other, NOTIFY, args()), (Status::BadSession, 1));
        let other = CbSequenceArgs { slot: 1, highest_slot: 1, ..sequence(1) };
        assert_eq!(scene.compound(other, NOTIFY, args()), (Status::BadSlot, 1));
        for number in [2, 3, u32::MAX] {
            assert_eq!(scene.compound(sequence(number), NOTIFY, args()), (Status::SeqMisordered, 1));
        }
        let alone = |e: &mut Encoder| {
            e.put_u32(NOTIFY);
            e.put(&args());
        };
        assert_eq!(scene.operations(2, 1, alone), (Status::OpNotInSession, 1));
        assert_eq!(scene.operations(1, 1, alone), (Status::MinorVersMismatch, 0));
        assert_eq!(scene.operations(2, 0, |_| {}), (Status::Ok, 0));
        let three = |e: &mut Encoder| {
            e.put(&CallbackOperation::Sequence);
            e.put(&sequence(1));
            alone(e);
            alone(e);
        };
        assert_eq!(scene.operations(2, 3, three), (Status::TooManyOps, 1));
        // A new session begins with the first number.
        assert_eq!(scene.compound(sequence(1), NOTIFY, ()), (Status::BadXdr, 2));
        scene.channel.begin(SESSION);
        assert_eq!(scene.compound(sequence(2), NOTIFY, args()), (Status::SeqMisordered, 1));
        assert!(scene.notified.borrow().is_empty());
        let unknown = BackChannel::default();
        assert_eq!(*unknown.slot.lock(), None);
    }

    #[test]
    fn other_operations_have_the_status_of_a_client_without_write_delegations() {
        let scene = Scene::new();
        let recall = |stateid| CbRecallArgs { stateid, truncate: false, handle: Opaque(b"file") };
        assert_eq!(scene.compound(sequence(1), 4, recall(Stateid::ANONYMOUS)), (Status::BadStateid, 2));
        assert_eq!(scene.compound(sequence(1), 4, recall(Stateid::CURRENT)), (Status::Ok, 2));
        assert_eq!(scene.compound(sequence(1), 4, ()), (Status::BadXdr, 2));
        let recalled = [Stateid::ANONYMOUS, Stateid::CURRENT].map(|stateid| (stateid, b"file".to_vec()));
        assert_eq!(*scene.recalled.borrow(), recalled);
        assert_eq!(scene.compound(sequence(2), 3, ()), (Status::BadHandle, 2));
        let any = CbRecallAnyArgs { keep: 7, types: Default::default() };
        assert_eq!(scene.compound(sequence(3), 8, any), (Status::Ok, 2));
        assert_eq!(*scene.keep.borrow(), [7]);
        assert_eq!(scene.compound(sequence(4), 10, 0_u32), (Status::Ok, 2));
        assert_eq!(scene.compound(sequence(5), 5, ()), (Status::NotSupp, 2));
        assert_eq!(scene.compound(sequence(6), 11, sequence(7)), (Status::SequencePos, 2));
        for unknown in [0, 2, 16, u32::MAX] {
            assert_eq!(scene.compound(sequence(6), unknown, ()), (Status::OpIllegal, 2));
        }
    }

    #[test]
    fn calls_of_other_programs_are_rejected() {
        let scene = Scene::new();
        let status = |call| scene.answer(&scene.call(call, |_| {})).map(|reply| reply[23]);
        assert_eq!(status((PROGRAM, 1, CB_NULL)), Some(0));
        assert_eq!(status((100_003, 4, 1)), Some(1));
        assert_eq!(status((PROGRAM, 4, 1)), Some(2));
        assert_eq!(status((PROGRAM, 1, 2)), Some(3));
        assert_eq!(status((PROGRAM, 1, CB_COMPOUND)), Some(4));
    }

    #[test]
    fn a_reported_loss_is_handled_once() {
        let channel = BackChannel::default();
        channel.note_flags(sequence_flags::LEASE_MOVED);
        assert!(!channel.take_down());
        for flag in [sequence_flags::CB_PATH_DOWN, sequence_flags::CB_PATH_DOWN_SESSION] {
            channel.note_flags(flag);
            assert!(channel.take_down() && !channel.take_down());
        }
        assert!(!channel.take_fault());
        channel.note_flags(sequence_flags::BACKCHANNEL_FAULT);
        assert!(channel.take_fault() && !channel.take_fault() && !channel.take_down());
    }

    proptest! {
        #[test]
        fn arbitrary_calls_do_not_panic(bytes: Vec<u8>, header: bool) {
            let scene = Scene::new();
            let call = if header {
                scene.call((PROGRAM, 1, CB_COMPOUND), |e| e.put_raw(&bytes))
            } else {
                let mut e = Encoder::new(&scene.arena, 64);
                e.put_raw(&bytes);
                e.finish().unwrap()
            };
            scene.answer(&call);
        }
    }
}
