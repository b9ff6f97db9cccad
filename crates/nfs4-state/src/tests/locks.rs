//! LOCK, LOCKT, LOCKU, and the end of locks.

use super::*;
use millrace_nfs::v4::Stateid;

use LockKind::{Read, Write};

fn open(state: &State<u64>, of: &Arc<Session<u64>>, access: u32) -> Stateid {
    state
        .open(
            of.client(),
            &OpenRequest { owner: b"o", file: b"f", access, deny: 0, reclaim: false, reserved: None },
            S(0),
        )
        .unwrap()
}

fn by<'a>(open: &'a Stateid, owner: &'a str) -> Locker<'a> {
    Locker::Open { open, owner: owner.as_bytes() }
}

fn request(locker: Locker<'_>, kind: LockKind, offset: u64, length: u64) -> LockRequest<'_> {
    LockRequest { locker, file: b"f", kind, blocking: false, reclaim: false, offset, length }
}

fn denied<T: std::fmt::Debug>(result: Result<T, LockError>) -> LockDenied {
    match result {
        Err(LockError::Denied(denied)) => denied,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_owner_has_one_stateid_for_a_file() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let id = open(&state, &a, 3);
    let lock = |request| state.lock(a.client(), &request, S(0));
    let first = lock(request(by(&id, "p"), Write, 0, 10)).unwrap();
    assert!(first.seqid == 1 && first.other != id.other);
    let second = Stateid { seqid: 2, ..first };
    assert_eq!(lock(request(by(&id, "p"), Read, 20, 10)), Ok(second));
    assert_eq!(lock(request(Locker::Existing(&first), Read, 20, 10)), Err(Status::OldStateid.into()));
    let third = Stateid { seqid: 3, ..first };
    assert_eq!(lock(request(Locker::Existing(&second), Read, 40, u64::MAX)), Ok(third));
    assert_eq!(
        state.unlock(a.client(), &third, b"f", (0, u64::MAX), S(0)),
        Ok(Stateid { seqid: 4, ..first })
    );
    let other = LockRequest { file: b"g", ..request(Locker::Existing(&first), Read, 0, 1) };
    assert_eq!(state.lock(a.client(), &other, S(0)), Err(Status::OldStateid.into()));
    let other = LockRequest { file: b"g", ..request(by(&id, "p"), Read, 0, 1) };
    assert_eq!(state.lock(a.client(), &other, S(0)), Err(Status::BadStateid.into()));
    let of_open = request(Locker::Existing(&id), Read, 0, 1);
    assert_eq!(state.lock(a.client(), &of_open, S(0)), Err(Status::BadStateid.into()));
    assert_eq!(state.unlock(a.client(), &id, b"f", (0, 1), S(0)), Err(Status::BadStateid));
    assert_eq!(lock(request(by(&first, "p"), Read, 0, 1)), Err(Status::OldStateid.into()));
    for (offset, length) in [(0, 0), (2, u64::MAX - 1)] {
        assert_eq!(lock(request(by(&id, "p"), Read, offset, length)), Err(Status::Inval.into()));
        assert_eq!(state.unlock(a.client(), &first, b"f", (offset, length), S(0)), Err(Status::Inval));
    }
}

#[test]
fn a_conflict_names_the_lock_that_is_held() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    state.lock(a.client(), &request(by(&of_a, "p"), Read, 10, 5), S(0)).unwrap();
    let lock =
        |kind, offset, length| state.lock(b.client(), &request(by(&of_b, "p"), kind, offset, length), S(0));
    let test = |of: &Arc<Session<u64>>, owner: &[u8], kind| {
        state.test_lock(of.client(), owner, b"f", kind, (0, u64::MAX), S(0))
    };
    let held = LockDenied {
        range: ByteRange { start: 10, last: 14 },
        kind: Read,
        client: a.client().id(),
        owner: Arc::from(&b"p"[..]),
    };
    let other = LockDenied { client: ClientId { number: a.client().serial().into() }, ..held.clone() };
    assert_eq!(denied(lock(Write, 14, 1)), other, "the client ID is not disclosed");
    assert_eq!(denied(test(&b, b"p", Write)), other);
    assert_eq!(denied(test(&a, b"q", Write)), held);
    assert_eq!(test(&a, b"p", Write), Ok(()), "its own lock");
    assert_eq!(test(&b, b"p", Read), Ok(()));
    assert!(lock(Write, 15, 1).is_ok() && lock(Write, 9, 1).is_ok() && lock(Read, 10, 5).is_ok());
    assert_eq!(denied(state.lock(a.client(), &request(by(&of_a, "p"), Write, 10, 5), S(0))).kind, Read);
}

#[test]
fn a_lock_requires_the_access_of_its_open() {
    let state = state();
    let a = ready(&state, "a", S(0));
    for (access, kind, expected) in
        [(1, Read, true), (1, Write, false), (2, Read, false), (2, Write, true), (3, Write, true)]
    {
        let id = open(&state, &a, access);
        let result = state.lock(a.client(), &request(by(&id, "p"), kind, 0, 1), S(0));
        let expected = if expected { Ok(()) } else { Err(Status::OpenMode.into()) };
        assert_eq!(result.map(|_| ()), expected, "{access} {kind:?}");
        state.close(a.client(), &id, b"f").unwrap();
    }
    let id = open(&state, &a, 1);
    let lock = state.lock(a.client(), &request(by(&id, "p"), Read, 0, 1), S(0)).unwrap();
    assert_eq!(check_access(&state, a.client(), &lock, b"f", false, S(0)), Ok(()));
    assert_eq!(check_access(&state, a.client(), &lock, b"f", true, S(0)), Err(Status::OpenMode));
}

#[test]
fn close_releases_the_locks_of_the_open() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    let lock = state.lock(a.client(), &request(by(&of_a, "p"), Write, 0, 10), S(0)).unwrap();
    assert_eq!(state.free_stateid(a.client(), &lock), Err(Status::LocksHeld));
    assert_eq!(state.test_stateid(a.client(), &lock), Status::Ok);
    state.close(a.client(), &of_a, b"f").unwrap();
    assert_eq!(state.test_stateid(a.client(), &lock), Status::BadStateid);
    assert!(state.lock(b.client(), &request(by(&of_b, "p"), Write, 0, 10), S(0)).is_ok());
    state.close(b.client(), &of_b, b"f").unwrap();
    assert!(state.files.read(b"f", |_| ()).is_none());
    assert_eq!(state.heap.left(), limits().heap);
}

#[test]
fn a_stateid_without_locks_can_be_freed() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let id = open(&state, &a, 3);
    let lock = state.lock(a.client(), &request(by(&id, "p"), Write, 0, 10), S(0)).unwrap();
    let lock = state.unlock(a.client(), &lock, b"f", (0, 10), S(0)).unwrap();
    assert_eq!(state.free_stateid(a.client(), &lock), Ok(()));
    assert_eq!(state.test_stateid(a.client(), &lock), Status::BadStateid);
    let new = state.lock(a.client(), &request(by(&id, "p"), Write, 0, 10), S(0)).unwrap();
    assert_ne!(new.other, lock.other);
}

#[test]
fn locks_of_a_client_whose_lease_has_expired_end_at_a_conflict() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(50)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    state.lock(a.client(), &request(by(&of_a, "p"), Write, 0, 10), S(0)).unwrap();
    let test = |now| state.test_lock(b.client(), b"p", b"f", Read, (0, 1), now);
    assert_eq!(denied(test(S(90))).kind, Write);
    assert!(state.lock(b.client(), &request(by(&of_b, "p"), Write, 10, 10), S(91)).is_ok());
    assert!(!a.is_destroyed());
    assert_eq!(test(S(91)), Ok(()));
    assert!(a.is_destroyed());
    assert_eq!(state.heap.left(), limits().heap - 2 * (heap::STATEID + 1) - heap::RANGE);
}

#[test]
fn an_administrator_revokes_locks() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let id = open(&state, &a, 3);
    let lock = state.lock(a.client(), &request(by(&id, "p"), Write, 0, 10), S(0)).unwrap();
    assert_eq!(state.revoke(Selection::File(b"f")), Ok(2));
    assert_eq!(state.unlock(a.client(), &lock, b"f", (0, 10), S(0)), Err(Status::AdminRevoked));
    let again = request(Locker::Existing(&lock), Write, 0, 10);
    assert_eq!(state.lock(a.client(), &again, S(0)), Err(Status::AdminRevoked.into()));
    assert_eq!(state.free_stateid(a.client(), &lock), Ok(()));
    assert_eq!(state.free_stateid(a.client(), &id), Ok(()));
    assert_eq!(state.heap.left(), limits().heap);
}

#[test]
fn locked_ranges_are_limited() {
    let state = with_limits(Limits { ranges_per_client: 2, ..limits() });
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    let lock = |n| state.lock(a.client(), &request(by(&of_a, "p"), Write, n, 3), S(0));
    lock(0).unwrap();
    let id = lock(10).unwrap();
    assert_eq!(lock(20), Err(Status::ServerFault.into()));
    let divided = state.unlock(a.client(), &id, b"f", (1, 1), S(0));
    assert_eq!(divided, Err(Status::ServerFault), "it divides a range");
    state.lock(b.client(), &request(by(&of_b, "p"), Write, 30, 1), S(0)).unwrap();
    state.unlock(a.client(), &id, b"f", (0, 3), S(0)).unwrap();
    assert!(lock(20).is_ok());
}

#[test]
fn waiting_clients_are_notified_in_order() {
    let state = with_limits(Limits { back_channel: true, waiting_per_client: 2, ..limits() });
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    let held = state.lock(a.client(), &request(by(&of_a, "p"), Write, 0, 10), S(0)).unwrap();
    let wait = |owner, offset, length| {
        let waiting = LockRequest { blocking: true, ..request(by(&of_b, owner), Write, offset, length) };
        denied(state.lock(b.client(), &waiting, S(0)));
    };
    let notices = || -> Vec<_> {
        state.take_lock_notices().into_iter().map(|n| String::from_utf8(n.owner.to_vec()).unwrap()).collect()
    };
    wait("q", 5, 1);
    wait("r", 0, 5);
    wait("q", 6, 1); // In place of the first.
    wait("s", 0, 1); // One too many for the client.
    denied(state.lock(b.client(), &request(by(&of_b, "t"), Write, 0, 1), S(0)));
    let held = state.unlock(a.client(), &held, b"f", (5, 1), S(0)).unwrap();
    assert!(notices().is_empty());
    let held = state.unlock(a.client(), &held, b"f", (6, 4), S(0)).unwrap();
    assert_eq!(notices(), ["q"]);
    wait("q", 0, 1);
    state.unlock(a.client(), &held, b"f", (0, u64::MAX), S(0)).unwrap();
    assert_eq!(notices(), ["r", "q"]);
    state.lock(b.client(), &request(by(&of_b, "q"), Write, 0, 1), S(0)).unwrap();

    let waiting = LockRequest { blocking: true, ..request(by(&of_a, "p"), Write, 0, 1) };
    denied(state.lock(a.client(), &waiting, S(0)));
    state.close(b.client(), &of_b, b"f").unwrap();
    assert_eq!(notices(), ["p"], "CLOSE releases locks");
}

#[test]
fn a_request_that_waits_ends_with_its_open() {
    let state = with_limits(Limits { back_channel: true, ..limits() });
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let (of_a, of_b) = (open(&state, &a, 3), open(&state, &b, 3));
    let held = state.lock(a.client(), &request(by(&of_a, "p"), Write, 0, 10), S(0)).unwrap();
    let waiting = LockRequest { blocking: true, ..request(by(&of_b, "q"), Write, 0, 1) };
    denied(state.lock(b.client(), &waiting, S(0)));
    state.close(b.client(), &of_b, b"f").unwrap();
    assert_eq!((b.client().heap.held(), Arc::strong_count(b.client())), (0, 2), "the session and the record");
    state.unlock(a.client(), &held, b"f", (0, 10), S(0)).unwrap();
    assert_eq!(state.take_lock_notices(), []);
}
