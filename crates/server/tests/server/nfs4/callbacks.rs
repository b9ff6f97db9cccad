//! Callbacks over TCP and RDMA, with a client that answers each by hand.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use millrace_nfs::v4::*;
use millrace_oncrpc::Credential;

use super::{
    compound::*,
    network::{Called, Network, Wire, on_both},
};
use crate::common::{Caller, Proto};

/// SEQ4_STATUS_CB_PATH_DOWN and SEQ4_STATUS_CB_PATH_DOWN_SESSION.
const PATH_DOWN: u32 = 0x201;
/// SEQ4_STATUS_BACKCHANNEL_FAULT.
const FAULT: u32 = 0x400;
/// Maximum number of callbacks of a client that are sent or wait.
const CALLBACKS: u64 = 64;
const SLOTS: usize = 16;

/// A client that holds a lock of a file, and one that waits for it.
struct Scene<'n> {
    network: &'n Network,
    holder: Caller,
    wire: Arc<Wire>,
    waiter: Caller,
    sessions: [Session; 2],
    opens: [Stateid; 2],
    file: Vec<u8>,
}

fn owner(owner: &[u8]) -> StateOwner<'_> {
    StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) }
}

/// The file and the lock owner of a CB_NOTIFY_LOCK.
fn notified(called: &Called) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(called.operation, CallbackOperation::NotifyLock);
    let args: CbNotifyLockArgs<'_> = called.args();
    (args.handle.to_vec(), args.owner.owner.to_vec())
}

impl<'n> Scene<'n> {
    async fn new(network: &'n Network) -> Self {
        let holder = network.connect(1).await.caller();
        let wire = network.connect(2).await;
        let waiter = wire.caller();
        let sessions = [Session::new(&holder, b"holder").await, Session::new(&waiter, b"waiter").await];
        let mut opens = Vec::new();
        let mut file = Vec::new();
        for (c, s) in [&holder, &waiter].into_iter().zip(&sessions) {
            let root = s.path(c, "x").await.unwrap();
            let results = s.send(c, [putfh(&root), open(b"o", "f", 3, 0, true), getfh()]).await;
            let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
            assert_eq!(ok.flags & open_flags::MAY_NOTIFY_LOCK, open_flags::MAY_NOTIFY_LOCK);
            opens.push(ok.stateid);
            let handle: GetfhOk<'_> = results.take(Operation::Getfh);
            file = handle.handle.to_vec();
        }
        Self { network, holder, wire, waiter, sessions, opens: opens.try_into().unwrap(), file }
    }

    async fn lock_range(
        &self,
        n: usize,
        name: &[u8],
        (offset, length): (u64, u64),
    ) -> Result<Stateid, Status> {
        let c = [&self.holder, &self.waiter][n];
        let (open_stateid, name) = (self.opens[n], name.to_vec());
        let lock: Op = Box::new(move |e| {
            e.put(&Operation::Lock);
            e.put(&LockArgs {
                lock_type: LockType::WriteWaiting,
                reclaim: false,
                offset,
                length,
                locker: Locker::New { open_seqid: 0, open_stateid, lock_seqid: 0, owner: owner(&name) },
            });
        });
        let results = self.sessions[n].send(c, [putfh(&self.file), lock]).await;
        if results.status != Status::Ok {
            return Err(results.status);
        }
        let ok: StateidOk = results.skip(&[Operation::Putfh]).take(Operation::Lock);
        Ok(ok.stateid)
    }

    /// The client locks the file, or waits for its lock.
    async fn lock(&self, n: usize) -> Result<Stateid, Status> {
        self.lock_range(n, [&b"holder"[..], b"waiter"][n], (0, u64::MAX)).await
    }

    async fn unlock(&self, n: usize, stateid: Stateid) {
        let c = [&self.holder, &self.waiter][n];
        let args = LockuArgs { lock_type: LockType::Write, seqid: 0, stateid, offset: 0, length: u64::MAX };
        let status = self.sessions[n].status(c, [putfh(&self.file), op(Operation::Locku, args)]).await;
        assert_eq!(status, Status::Ok);
    }

    /// The holder locks and unlocks the file, for which the other client waits.
    async fn release(&self) {
        let held = self.lock(0).await.unwrap();
        assert_eq!(self.lock(1).await, Err(Status::Denied));
        self.unlock(0, held).await;
    }

    /// As [`Self::release`]. Returns the notice.
    async fn notice(&self) -> Called {
        self.release().await;
        let notice = self.wire.callback().await;
        assert_eq!(notified(&notice), (self.file.clone(), b"waiter".to_vec()));
        notice
    }

    /// The holder unlocks the file, of which other lock owners wait for a byte each.
    async fn release_to(&self, owners: u8) {
        let held = self.lock(0).await.unwrap();
        for n in 0..owners {
            let denied = self.lock_range(1, &[n], (n.into(), 1)).await;
            assert_eq!(denied, Err(Status::Denied));
        }
        self.unlock(0, held).await;
    }

    /// Status flags of SEQUENCE of the waiter.
    async fn flags(&self) -> u32 {
        let results = send(&self.waiter, 2, &[sequence(self.sessions[1].sequence(false))]).await;
        let ok: SequenceOk = results.take(Operation::Sequence);
        ok.status_flags
    }

    /// Waits until the flags are as expected.
    async fn until_flags(&self, expected: u32) {
        while self.flags().await != expected {
            self.wire.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until clients have answered this number of callbacks.
    async fn until_notified(&self, expected: u64) {
        while self.network.hosted.stats().nfs4_locks_notified != expected {
            self.wire.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Binds the connection of a caller to the session of the waiter.
    async fn bind(&self, caller: &Caller) -> Direction {
        let args = BindConnToSessionArgs {
            session: self.sessions[1].ok.session,
            direction: RequestedDirection::ForeOrBoth,
            use_rdma: false,
        };
        let results = send(caller, 2, &[op(Operation::BindConnToSession, args)]).await;
        let ok: BindConnToSessionOk = results.take(Operation::BindConnToSession);
        ok.direction
    }
}

#[test]
fn a_client_that_waits_for_a_lock_is_notified() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        for number in 1..=3 {
            let notice = scene.notice().await;
            assert_eq!((notice.sequence.slot, notice.sequence.sequence), (0, number));
            assert_eq!(notice.sequence.session, scene.sessions[1].ok.session);
            scene.wire.answer(&notice, Status::Ok);
            scene.until_notified(number.into()).await;
            let stateid = scene.lock(1).await.unwrap();
            scene.unlock(1, stateid).await;
        }
        assert_eq!(scene.flags().await, 0);
    });
}

#[test]
fn callbacks_continue_on_another_connection() {
    on_both(async |network| {
        let mut scene = Scene::new(network).await;
        let lost = scene.notice().await;
        // The connection ends without an answer.
        scene.wire = network.connect(3).await;
        scene.waiter = scene.wire.caller();
        scene.until_flags(PATH_DOWN).await;
        assert_eq!(scene.bind(&scene.waiter).await, Direction::Both);
        assert_eq!(scene.flags().await, 0);
        // The result of the lost callback is unknown: its number is used again until the client rejects it.
        let repeated = scene.wire.callback().await;
        assert_eq!(
            (repeated.sequence.clone(), notified(&repeated)),
            (lost.sequence.clone(), notified(&lost))
        );
        scene.wire.answer_sequence(&repeated, Status::RetryUncachedRep);
        let next = scene.wire.callback().await;
        assert_eq!(next.sequence.sequence, lost.sequence.sequence + 1);
        scene.wire.answer(&next, Status::Ok);
        scene.until_notified(1).await;
        assert_eq!(scene.flags().await, 0);
    });
}

#[test]
fn hostile_replies_end_only_their_callback() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        let notice = scene.notice().await;
        let header = |xid: u32| [xid.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        // Replies to no call, of any length, are dropped.
        scene.wire.send(header(notice.xid ^ 0x8000));
        // A Send longer than the server's receives would end the connection.
        let long = vec![0xff; if network.proto == Proto::Rdma { 4000 } else { 100_000 }];
        scene.wire.send([header(notice.xid ^ 0x8000), long.clone()].concat());
        assert_eq!(scene.flags().await, 0);
        // Each of these ends an attempt, and the path is down until the client binds a connection.
        let mut expected = notice;
        for rest in [vec![], long, vec![0xff; 40], vec![0; 16]] {
            scene.wire.send([header(expected.xid), rest].concat());
            scene.until_flags(PATH_DOWN).await;
            assert_eq!(scene.bind(&scene.waiter).await, Direction::Both);
            let next = scene.wire.callback().await;
            assert_eq!(next.sequence, expected.sequence);
            expected = next;
        }
        // A reply is accepted once.
        scene.wire.answer(&expected, Status::Ok);
        scene.wire.answer(&expected, Status::Ok);
        scene.until_notified(1).await;
        // SEQUENCE reports that the client rejects the session of the back channel.
        let notice = scene.notice().await;
        scene.wire.answer_sequence(&notice, Status::BadSession);
        scene.until_flags(FAULT).await;
        // A new session has no fault.
        let new = Session::new(&scene.waiter, b"waiter").await;
        let results = send(&scene.waiter, 2, &[sequence(new.sequence(false))]).await;
        assert_eq!(results.take::<SequenceOk>(Operation::Sequence).status_flags, 0);
    });
}

#[test]
fn the_client_is_called_as_it_asks() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        let (c, s) = (&scene.waiter, &scene.sessions[1]);
        let security = CallbackSecurity::Sys(AuthSys {
            stamp: 1,
            machine_name: Opaque(b"host"),
            uid: 7,
            gid: 8,
            gids: List(vec![9]),
        });
        let control = |security| {
            let args = BackchannelCtlArgs { callback_program: 5, callback_security: List(vec![security]) };
            op(Operation::BackchannelCtl, args)
        };
        let gss = GssHandles { service: 1, from_server: Opaque(b"a"), from_client: Opaque(b"b") };
        assert_eq!(s.status(c, [control(CallbackSecurity::Gss(gss))]).await, Status::Inval);
        let created = scene.notice().await;
        assert_eq!((created.header.prog, created.minor_version), (0x4000_0000, 1));
        scene.wire.answer(&created, Status::Ok);
        assert_eq!(s.status(c, [control(security)]).await, Status::Ok);
        let Called { header, credential, minor_version: 2, .. } = scene.notice().await else {
            panic!("minor version")
        };
        let Credential::Sys(sys) = credential else { panic!("{credential:?}") };
        assert_eq!((header.prog, sys.uid, sys.gid, &sys.gids[..]), (5, 7, 8, &[9][..]));
    });
}

#[test]
fn a_delayed_callback_is_repeated_a_few_times() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        let first = scene.notice().await;
        // A callback that is not executed keeps its sequence number.
        scene.wire.answer_sequence(&first, Status::Delay);
        let mut called = scene.wire.callback().await;
        assert_eq!(called.sequence, first.sequence);
        for attempt in 1..=4 {
            scene.wire.answer(&called, Status::Delay);
            called = scene.wire.callback().await;
            assert_eq!(called.sequence.sequence, first.sequence.sequence + attempt);
            assert_eq!(notified(&called), notified(&first));
        }
        scene.wire.answer(&called, Status::Delay);
        assert!(scene.wire.callback_within(Duration::from_secs(100)).await.is_none());
        assert_eq!(network.hosted.stats().nfs4_locks_notified, 0);
        let next = scene.notice().await;
        assert_eq!(next.sequence.sequence, first.sequence.sequence + 5);
        scene.wire.answer(&next, Status::Ok);
        scene.until_notified(1).await;
    });
}

#[test]
fn a_client_that_never_answers_loses_its_path() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        let first = scene.notice().await;
        scene.wire.sleep(Duration::from_millis(9_900)).await;
        assert_eq!(scene.flags().await, 0);
        scene.wire.sleep(Duration::from_millis(200)).await;
        assert_eq!(scene.flags().await, PATH_DOWN);
        // The attempts end while there is no path.
        scene.wire.sleep(Duration::from_secs(10)).await;
        // A late reply is no reply, but it returns the credit over RDMA.
        scene.wire.answer(&first, Status::Ok);
        assert_eq!(scene.bind(&scene.waiter).await, Direction::Both);
        assert_eq!(scene.flags().await, 0);
        assert!(scene.wire.callback_within(Duration::from_secs(1)).await.is_none());
        // The slot is free, and the number of the callback without result is used again.
        let next = scene.notice().await;
        assert_eq!(next.sequence, first.sequence);
        scene.wire.answer(&next, Status::Ok);
        scene.until_notified(1).await;
        assert_eq!(scene.flags().await, 0);
    });
}

/// Receives callbacks without answering them until there are no more.
async fn unanswered(wire: &Wire) -> Vec<Called> {
    let mut all = Vec::new();
    while let Some(called) = wire.callback_within(Duration::from_secs(1)).await {
        all.push(called);
    }
    all
}

/// Answers callbacks until there are no more. Returns their number.
async fn answer_all(wire: &Wire) -> u64 {
    let mut count = 0;
    while let Some(called) = wire.callback_within(Duration::from_secs(10)).await {
        wire.answer(&called, Status::Ok);
        count += 1;
    }
    count
}

#[test]
fn the_slots_of_a_session_bound_its_callbacks() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        scene.release_to(40).await;
        let called = unanswered(&scene.wire).await;
        // Before the first reply, there is one credit over RDMA.
        let expected = if network.proto == Proto::Rdma { 1 } else { SLOTS };
        let slots: BTreeSet<_> = called.iter().map(|called| called.sequence.slot).collect();
        assert_eq!((called.len(), slots.len()), (expected, expected));
        assert!(slots.iter().all(|slot| *slot < SLOTS as u32));
        // Callbacks that got no slot are repeated: the server sends them when others are answered.
        called.iter().for_each(|called| scene.wire.answer(called, Status::Ok));
        assert_eq!(answer_all(&scene.wire).await, 40 - expected as u64);
        scene.until_notified(40).await;
        // The server stops to repeat callbacks within 5 s.
        scene.release_to(40).await;
        let called = unanswered(&scene.wire).await;
        assert_eq!(called.len(), SLOTS);
        scene.wire.sleep(Duration::from_secs(5)).await;
        called.iter().for_each(|called| scene.wire.answer(called, Status::Ok));
        assert_eq!(answer_all(&scene.wire).await, 0);
        assert_eq!(network.hosted.stats().nfs4_locks_notified, 40 + SLOTS as u64);
    });
}

#[test]
fn a_client_has_a_limited_number_of_callbacks() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        scene.release_to(100).await;
        assert_eq!(answer_all(&scene.wire).await, CALLBACKS);
        // Each that has ended makes room for another.
        scene.release_to(100).await;
        assert_eq!(answer_all(&scene.wire).await, CALLBACKS);
        assert_eq!(scene.flags().await, 0);
    });
}

#[test]
fn a_connection_has_a_limited_number_of_unanswered_callbacks() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        // Three sessions with 16 slots each share a connection, which permits 32 calls.
        for number in 2..=3 {
            let client = ClientId { number: client_of(&scene.sessions[1]) };
            let created = send(&scene.waiter, 2, &[create_session(client, number, CHANNEL)]).await;
            let _: CreateSessionOk = created.take(Operation::CreateSession);
        }
        scene.release_to(60).await;
        let called = unanswered(&scene.wire).await;
        // Before the first reply, there is one credit over RDMA.
        assert_eq!(called.len(), if network.proto == Proto::Rdma { 1 } else { 32 });
        let first = called.len() as u64;
        called.iter().for_each(|called| scene.wire.answer(called, Status::Ok));
        assert_eq!(answer_all(&scene.wire).await, 60 - first);
        scene.release_to(60).await;
        // Over RDMA, the credits permit 16.
        let called = unanswered(&scene.wire).await;
        assert_eq!(called.len(), if network.proto == Proto::Rdma { 16 } else { 32 });
        assert_eq!(scene.flags().await, 0);
        // The end of the connection releases all.
        drop((scene.wire, scene.waiter, scene.holder));
        network.until_idle().await;
    });
}

/// The client ID, with which the ID of the session begins.
fn client_of(session: &Session) -> u64 {
    u64::from_be_bytes(session.ok.session.0[..8].try_into().unwrap())
}

#[test]
fn a_session_keeps_its_newest_connections_for_callbacks() {
    on_both(async |network| {
        let scene = Scene::new(network).await;
        let mut wires = Vec::new();
        for number in 0..20 {
            let wire = network.connect(10 + number).await;
            assert_eq!(scene.bind(&wire.caller()).await, Direction::Both);
            wires.push(wire);
        }
        // The newest connection is used. When it ends, its predecessor is.
        for remaining in (4..20).rev() {
            scene.release().await;
            let wire = wires.pop().unwrap();
            let notice = wire.callback().await;
            wire.answer(&notice, Status::Ok);
            scene.until_notified(20 - remaining).await;
            assert_eq!(scene.flags().await, 0);
            drop(wire);
            network.sleep(Duration::from_secs(1)).await;
        }
        // The limit of 16 has replaced the others, and the session's first one.
        assert_eq!(scene.flags().await, PATH_DOWN);
        assert_eq!(scene.bind(&wires[0].caller()).await, Direction::Both);
        assert_eq!(scene.flags().await, 0);
    });
}
