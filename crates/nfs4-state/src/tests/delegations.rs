//! Delegations.

use std::net::Ipv4Addr;

use millrace_nfs::v4::{NfsTime, Stateid};
use millrace_oncrpc::{CallbackQueue, Callbacks};

use super::{grace::List, *};

/// A client that can be called back.
pub(super) fn reachable(
    state: &State<u64>,
    owner: &str,
    now: Duration,
) -> (Arc<Session<u64>>, CallbackQueue) {
    let session = ready(state, owner, now);
    let queue = connect(&session);
    (session, queue)
}

/// Adds a connection to the back channel of a session.
pub(super) fn connect(session: &Session<u64>) -> CallbackQueue {
    let back = session.back().unwrap();
    let credential = millrace_oncrpc::Credential::None.encoded();
    back.set_target(CallbackTarget { program: 1, minor_version: 2, credential });
    let connection = Callbacks::new((Ipv4Addr::LOCALHOST, 1).into());
    back.add(&connection);
    CallbackQueue::new(connection)
}

pub(super) fn limits() -> Limits {
    Limits { back_channel: true, ..super::limits() }
}

struct Scene {
    state: State<u64>,
    a: Arc<Session<u64>>,
    b: Arc<Session<u64>>,
    _queues: [CallbackQueue; 2],
}

impl Scene {
    fn new(limits: Limits) -> Self {
        let state = with_limits(limits);
        state.enable_delegations(None);
        let ((a, first), (b, second)) = (reachable(&state, "a", S(0)), reachable(&state, "b", S(0)));
        Self { state, a, b, _queues: [first, second] }
    }

    fn open(&self, session: &Session<u64>, file: &[u8], access: u32, now: u64) -> Result<Stateid, Status> {
        let request = OpenRequest { owner: b"o", file, access, deny: 0, reclaim: false, reserved: None };
        self.state.open(session.client(), &request, S(now))
    }

    fn delegate(
        &self,
        session: &Session<u64>,
        file: &[u8],
        kind: DelegationKind,
        now: u64,
    ) -> Result<Stateid, NotDelegated> {
        let request = DelegationRequest { file, kind, reclaim: false, change: 7, times: None };
        self.state.delegate(session.client(), &request, S(now))
    }

    /// Opens and delegates the file to the first client.
    fn delegated(&self, file: &[u8], kind: DelegationKind, now: u64) -> Stateid {
        self.open(&self.a, file, 3, now).unwrap();
        self.delegate(&self.a, file, kind, now).unwrap()
    }
}

use DelegationKind::{Read, Write};

#[test]
fn a_write_delegation_excludes_others_until_it_is_returned() {
    let s = Scene::new(limits());
    let id = s.delegated(b"f", Write, 0);
    let check = |id: &Stateid, write| s.state.check_access(s.a.client(), id, b"f", write, S(1)).map(drop);
    assert_eq!((check(&id, true), check(&id, false)), (Ok(()), Ok(())));
    assert_eq!(s.state.take_recalls(), []);
    assert_eq!(s.open(&s.b, b"f", 1, 2), Err(Status::Delay));
    let recalls = s.state.take_recalls();
    assert_eq!(recalls, [Recall { client: s.a.client().id(), stateid: id, file: b"f"[..].into() }]);
    assert_eq!(s.state.check_read(None, b"f", S(3)), Err(Status::Delay), "NFSv3");
    assert_eq!(s.state.change(None, b"f", S(3)).map(drop), Err(Status::Delay));
    assert_eq!(s.state.check_read(Some(s.a.client().id()), b"f", S(3)), Ok(()), "the holder itself");
    assert_eq!(s.state.take_recalls(), [], "the client is called once");
    let give = |id: &Stateid| s.state.return_delegation(s.a.client(), id, b"f", S(4));
    assert_eq!(give(&id), Ok(()));
    assert_eq!(give(&id), Err(Status::BadStateid), "it is returned once");
    assert!(s.open(&s.b, b"f", 1, 4).is_ok());
    assert_eq!(s.state.delegation_stats(), DelegationStats { held: 0, recalled: 1, revoked: 0 });
}

#[test]
fn readers_share_a_file_until_one_writes() {
    let s = Scene::new(limits());
    for session in [&s.a, &s.b] {
        s.open(session, b"f", 1, 0).unwrap();
        s.delegate(session, b"f", Read, 0).unwrap();
    }
    assert_eq!(s.delegate(&s.a, b"f", Read, 0), Err(NotDelegated::Held(Read)));
    assert_eq!(s.state.check_read(None, b"f", S(1)), Ok(()));
    assert_eq!(s.open(&s.a, b"f", 2, 1), Err(Status::Delay));
    let recalled: Vec<_> = s.state.take_recalls().iter().map(|recall| recall.client).collect();
    assert_eq!(recalled, [s.b.client().id()], "the own delegation does not conflict");
}

#[test]
fn the_failed_call_of_a_recall_is_repeated() {
    let s = Scene::new(limits());
    s.delegated(b"f", Read, 0);
    let conflict = |now| s.state.change(None, b"f", S(now)).map(drop);
    assert_eq!(conflict(1), Err(Status::Delay));
    let recall = s.state.take_recalls().remove(0);
    s.state.recall_answered(&recall, false);
    assert_eq!(conflict(2), Err(Status::Delay));
    assert_eq!(s.state.take_recalls(), std::slice::from_ref(&recall));
    s.state.recall_answered(&recall, true);
    assert_eq!(conflict(3), Err(Status::Delay));
    assert_eq!((s.state.take_recalls(), s.state.delegation_stats().recalled), (vec![], 1));
}

/// Renews both leases, so that only delegations are lost.
fn renew_both(s: &Scene, sequence: u32, now: u64) {
    for session in [&s.a, &s.b] {
        renew(session, sequence, S(now)).unwrap();
    }
}

#[test]
fn a_delegation_that_is_not_returned_is_revoked_after_a_lease() {
    let s = Scene::new(limits());
    let id = s.delegated(b"f", Write, 0);
    assert_eq!(s.state.change(None, b"f", S(10)).map(drop), Err(Status::Delay));
    renew_both(&s, 1, 80);
    assert_eq!(s.state.change(None, b"f", S(99)).map(drop), Err(Status::Delay));
    assert_eq!(s.state.change(None, b"f", S(100)).map(drop), Ok(()));
    let client = s.a.client();
    let used = s.state.check_access(client, &id, b"f", true, S(100)).map(drop);
    assert_eq!(used, Err(Status::DelegRevoked));
    assert_eq!(s.state.test_stateid(client, &id), Status::DelegRevoked);
    assert_eq!(s.state.return_delegation(client, &id, b"f", S(100)), Err(Status::DelegRevoked));
    assert_eq!(s.state.check_delegation(client, &id, b"f", 1), Err(Status::DelegRevoked));
    let flags = |sequence| match s.a.sequence(&request(0, sequence), 0, S(100)).unwrap() {
        Sequence::Execute(_, reply) => reply.status_flags & 0x60,
        other => panic!("{other:?}"),
    };
    assert_eq!(flags(2), 0x40, "SEQ4_STATUS_RECALLABLE_STATE_REVOKED");
    assert_eq!(s.state.free_stateid(client, &id), Ok(()));
    assert_eq!((flags(3), s.state.test_stateid(client, &id)), (0, Status::BadStateid));
    assert_eq!(s.state.delegation_stats(), DelegationStats { held: 0, recalled: 1, revoked: 1 });
    assert_eq!(s.delegate(&s.a, b"f", Read, 129), Err(NotDelegated::Contention));
    assert!(s.delegate(&s.a, b"f", Read, 130).is_ok());
}

#[test]
fn the_server_revokes_without_another_request() {
    let s = Scene::new(limits());
    s.delegated(b"f", Write, 0);
    assert_eq!(s.state.check_read(None, b"f", S(10)), Err(Status::Delay));
    renew_both(&s, 1, 80);
    s.state.expire(S(99));
    assert_eq!(s.state.delegation_stats().revoked, 0);
    s.state.expire(S(100));
    assert_eq!(s.state.delegation_stats(), DelegationStats { held: 0, recalled: 1, revoked: 1 });
}

#[test]
fn a_client_whose_lease_has_expired_is_not_waited_for() {
    let s = Scene::new(limits());
    s.delegated(b"f", Write, 0);
    renew(&s.b, 1, S(91)).unwrap();
    assert!(s.open(&s.b, b"f", 3, 91).is_ok());
    assert!(s.a.client().is_removed());
    assert_eq!(s.state.delegation_stats().held, 0);
}

#[test]
fn a_delegation_requires_a_client_that_can_be_called_and_a_quiet_file() {
    let s = Scene::new(limits());
    let silent = ready(&s.state, "silent", S(0));
    s.open(&silent, b"x", 3, 0).unwrap();
    assert_eq!(s.delegate(&silent, b"x", Read, 0), Err(NotDelegated::Resource));
    s.open(&s.a, b"f", 3, 0).unwrap();
    let other = s.open(&s.b, b"f", 1, 0).unwrap();
    assert_eq!(s.delegate(&s.a, b"f", Write, 0), Err(NotDelegated::Contention));
    assert_eq!(s.delegate(&s.b, b"f", Read, 0), Err(NotDelegated::Contention), "another client writes");
    s.state.close(s.b.client(), &other, b"f").unwrap();
    let changing = s.state.change(None, b"f", S(0)).unwrap();
    assert_eq!(s.delegate(&s.a, b"f", Write, 0), Err(NotDelegated::Contention), "a change is in progress");
    assert_eq!(s.state.heap.left(), s.state.limits().heap - 2 * (heap::STATEID + 1));
    drop(changing);
    assert!(s.delegate(&s.a, b"f", Write, 0).is_ok());
}

#[test]
fn nothing_is_delegated_before_changes_are_counted() {
    let state = with_limits(limits());
    let (a, _queue) = reachable(&state, "a", S(0));
    let request = OpenRequest { owner: b"o", file: b"f", access: 3, deny: 0, reclaim: false, reserved: None };
    state.open(a.client(), &request, S(0)).unwrap();
    let delegate = |now| {
        let request = DelegationRequest { file: b"f", kind: Write, reclaim: false, change: 7, times: None };
        state.delegate(a.client(), &request, S(now)).is_ok()
    };
    assert!(!delegate(0), "not enabled");
    state.enable_delegations(Some(S(5)));
    state.enable_delegations(Some(S(50)));
    assert!(!delegate(94));
    assert!(delegate(95));
}

#[test]
fn the_number_of_delegations_is_limited() {
    let s = Scene::new(Limits { delegations_per_client: 8, delegations: 16, ..limits() });
    let any = |session: &Session<u64>, now| s.state.take_recalls_of_any(session.client(), S(now));
    for n in 0..8 {
        assert_eq!(any(&s.a, 0), [], "{n} delegations");
        s.delegated(&[n], Write, 0);
        if n == 6 {
            let expected = RecallAny { client: s.a.client().id(), keep: 4 };
            assert_eq!(any(&s.a, 1), [expected]);
        }
    }
    s.open(&s.a, b"f", 3, 0).unwrap();
    assert_eq!(s.delegate(&s.a, b"f", Write, 0), Err(NotDelegated::Resource));
    for n in 20..24 {
        s.open(&s.b, &[n], 3, 0).unwrap();
        s.delegate(&s.b, &[n], Read, 0).unwrap();
    }
    s.open(&s.b, b"g", 3, 0).unwrap();
    assert_eq!(s.delegate(&s.b, b"g", Read, 0), Err(NotDelegated::Resource));
    // The client that has more than its share gets CB_RECALL_ANY, and not again at once.
    assert_eq!(any(&s.b, 11), [RecallAny { client: s.a.client().id(), keep: 4 }]);
    assert_eq!(any(&s.b, 20), []);
}

#[test]
fn an_open_under_a_delegation_is_checked() {
    let s = Scene::new(limits());
    let read = s.delegated(b"f", Read, 0);
    let check = |id: &Stateid, file: &[u8], access| s.state.check_delegation(s.a.client(), id, file, access);
    assert_eq!((check(&read, b"f", 1), check(&read, b"f", 3)), (Ok(()), Err(Status::OpenMode)));
    assert_eq!(check(&read, b"g", 1), Err(Status::BadStateid));
    let open = s.open(&s.a, b"f", 1, 0).unwrap();
    assert_eq!(check(&open, b"f", 1), Err(Status::BadStateid));
    assert_eq!(s.state.check_delegation(s.b.client(), &read, b"f", 1), Err(Status::BadStateid));
    assert_eq!(s.state.return_delegation(s.b.client(), &read, b"f", S(0)), Err(Status::BadStateid));
    assert_eq!(s.state.return_delegation(s.a.client(), &open, b"f", S(0)), Err(Status::BadStateid));
    assert_eq!(s.state.free_stateid(s.a.client(), &read), Err(Status::LocksHeld));
    let used = s.state.check_access(s.a.client(), &read, b"f", true, S(0)).map(drop);
    assert_eq!(used, Err(Status::OpenMode));
}

#[test]
fn delegations_are_reclaimed_in_the_grace_period() {
    let list = Arc::new(List::default());
    let owners = || ["a", "b"].map(|owner| owner.as_bytes().into());
    let state = with_limits(limits()).with_client_list(Box::new(list), owners(), S(90));
    state.enable_delegations(None);
    let (a, b) = (client(&state, "a", S(0)), client(&state, "b", S(0)));
    let _queues = (connect(&a), connect(&b));
    let open = |of: &Session<u64>, reclaim| {
        let request = OpenRequest { owner: b"o", file: b"f", access: 3, deny: 0, reclaim, reserved: None };
        state.open(of.client(), &request, S(1))
    };
    let delegate = |of: &Session<u64>, reclaim| {
        let request = DelegationRequest { file: b"f", kind: Write, reclaim, change: 7, times: None };
        state.delegate(of.client(), &request, S(1))
    };
    open(&a, true).unwrap();
    assert_eq!(delegate(&a, false), Err(NotDelegated::Contention));
    delegate(&a, true).unwrap();
    assert_eq!(open(&b, true), Err(Status::ReclaimConflict));
}

#[test]
fn a_client_that_loses_a_delegation_cannot_reclaim_it_after_a_restart() {
    let list = Arc::new(List::default());
    let state = with_limits(limits()).with_client_list(Box::new(list.clone()), [], S(0));
    state.enable_delegations(None);
    let (a, _queue) = reachable(&state, "a", S(0));
    let request = OpenRequest { owner: b"o", file: b"f", access: 3, deny: 0, reclaim: false, reserved: None };
    state.open(a.client(), &request, S(0)).unwrap();
    let wanted = DelegationRequest { file: b"f", kind: Write, reclaim: false, change: 7, times: None };
    let id = state.delegate(a.client(), &wanted, S(0)).unwrap();
    assert_eq!(state.change(None, b"f", S(1)).map(drop), Err(Status::Delay));
    renew(&a, 1, S(90)).unwrap();
    assert_eq!(list.owners(), ["a"]);
    list.set_broken(true);
    state.expire(S(91));
    assert_eq!(state.change(None, b"f", S(91)).map(drop), Err(Status::Delay), "it is still on the list");
    list.set_broken(false);
    state.expire(S(92));
    assert_eq!(list.owners(), Vec::<String>::new());
    assert_eq!(state.change(None, b"f", S(92)).map(drop), Ok(()));
    // FREE_STATEID acknowledges the loss.
    state.free_stateid(a.client(), &id).unwrap();
    state.expire(S(93));
    assert_eq!(list.owners(), ["a"]);
}

#[test]
fn an_administrator_recalls_the_delegations_of_some_files() {
    let s = Scene::new(limits());
    let ids = [(b"af", Read), (b"ag", Write), (b"bf", Write)].map(|(file, kind)| s.delegated(file, kind, 0));
    let recalled = |kind| {
        s.state.recall_all(kind, |key| key.starts_with(b"a"), S(1));
        s.state.take_recalls().into_iter().map(|recall| recall.stateid).collect::<Vec<_>>()
    };
    assert_eq!((recalled(Write), recalled(Read)), (vec![ids[1]], vec![ids[0]]));
}

#[test]
fn others_receive_a_change_that_grows_with_each_question() {
    let s = Scene::new(limits());
    s.delegated(b"f", Write, 0);
    let (a, b) = (s.a.client().id(), s.b.client().id());
    assert_eq!(s.state.writer(Some(a), b"f"), None);
    let writer = Writer { client: a, change: 7, times: None };
    assert_eq!((s.state.writer(Some(b), b"f"), s.state.writer(None, b"f")), (Some(writer), Some(writer)));
    assert_eq!(s.state.reported_change(a, b"f", 7, false), 7);
    assert_eq!(s.state.reported_change(a, b"f", 7, true), 8);
    assert_eq!(s.state.reported_change(a, b"f", 7, true), 9);
    assert_eq!(s.state.reported_change(a, b"f", 7, false), 9);
    assert_eq!(s.state.reported_change(a, b"f", 20, true), 21);
    assert_eq!(s.state.reported_change(b, b"f", 7, true), 7, "not a holder");
}

#[test]
fn only_the_holder_of_delegated_times_sets_them() {
    let s = Scene::new(limits());
    let time = |seconds| NfsTime { seconds, nanoseconds: 6 };
    let times = DelegatedTimes { access: time(4), modify: time(5) };
    s.open(&s.a, b"f", 3, 0).unwrap();
    let request =
        DelegationRequest { file: b"f", kind: Write, reclaim: false, change: 7, times: Some(times) };
    let id = s.state.delegate(s.a.client(), &request, S(0)).unwrap();
    let (without, read) = (s.delegated(b"g", Write, 0), s.delegated(b"h", Read, 0));
    let opened = s.open(&s.a, b"f", 3, 0).unwrap();
    let of = |session: &Session<u64>, id, file| s.state.delegated_times(session.client(), &id, file);
    assert_eq!(of(&s.a, id, b"f"), Ok(times));
    assert_eq!(of(&s.a, Stateid { seqid: 0, ..id }, b"f"), Ok(times));
    assert_eq!(s.state.writer(None, b"f").unwrap().times, Some(times));
    for (session, id, file) in [
        (&s.a, id, &b"g"[..]),
        (&s.a, without, b"g"),
        (&s.a, read, b"h"),
        (&s.a, opened, b"f"),
        (&s.a, Stateid::ANONYMOUS, b"f"),
        (&s.b, id, b"f"),
    ] {
        assert_eq!(of(session, id, file), Err(Status::BadStateid));
    }
    s.state.return_delegation(s.a.client(), &id, b"f", S(0)).unwrap();
    assert_eq!((of(&s.a, id, b"f"), s.state.writer(None, b"f")), (Err(Status::BadStateid), None));
    let again = s.state.delegate(s.a.client(), &request, S(0)).unwrap();
    s.state.revoke(Selection::File(b"f")).unwrap();
    assert_eq!(
        (of(&s.a, id, b"f"), of(&s.a, again, b"f")),
        (Err(Status::BadStateid), Err(Status::DelegRevoked))
    );
}
