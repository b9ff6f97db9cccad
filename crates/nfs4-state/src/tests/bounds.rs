//! The number of entries that each operation visits while the state is at its limits.

use millrace_nfs::v4::Stateid;

use super::*;
use crate::visits::visits_of;

/// Visits of an operation that does not depend on the number of clients.
const FEW: usize = 512;

/// Many clients, most of them of one address.
fn crowd(state: &State<u64>, clients: u32) -> Vec<Arc<Session<u64>>> {
    let host = |n: u32| if n.is_multiple_of(4) { 2 + (n / 4 % 200) as u8 } else { 1 };
    (0..clients).filter_map(|n| client_of(state, host(n), &format!("client {n}"), S(0)).ok()).collect()
}

#[test]
fn room_for_a_record_is_made_in_few_visits() {
    let state = with_limits(Limits { clients: 4096, unconfirmed: 8192, ..limits() });
    let sessions = crowd(&state, 4096);
    assert!(sessions.len() > 4000, "{}", sessions.len());
    // The clients hold state, so that none can go, or have none, or have expired leases.
    for (now, held) in [(S(0), 0), (S(1), sessions.len()), (S(500), 0)] {
        for session in &sessions[..held] {
            let client = session.client();
            let _ = state.reclaim_complete(client);
            let request =
                OpenRequest { owner: b"o", file: b"f", access: 1, deny: 0, reclaim: false, reserved: None };
            let _ = state.open(client, &request, now);
        }
        for n in 0..100 {
            // All have renewed their leases: that of each has to be looked up again.
            if n % 10 == 0 && now < S(500) {
                sessions.iter().for_each(|session| {
                    session.client().lease.renew(now + Duration::from_millis(n + 1));
                });
            }
            let host = if n % 2 == 0 { 1 } else { 250 };
            let owner = format!("new {n} {now:?}");
            let (visits, _) =
                visits_of(|| client_of(&state, host, &owner, now + Duration::from_millis(n + 2)));
            assert!(visits < FEW, "{visits} visits at {now:?}");
        }
    }
}

#[test]
fn room_for_state_is_made_in_few_visits() {
    let state = with_limits(Limits { clients: 4096, unconfirmed: 8192, heap: 4000 * 1600, ..limits() });
    let sessions = crowd(&state, 4096);
    let opened = sessions.iter().enumerate().filter(|(n, session)| {
        state.reclaim_complete(session.client()).unwrap();
        let file = n.to_be_bytes();
        let request =
            OpenRequest { owner: b"o", file: &file, access: 1, deny: 0, reclaim: false, reserved: None };
        let now = S(*n as u64);
        let (visits, opened) = visits_of(|| state.open(session.client(), &request, now));
        assert!(visits < FEW, "{visits} visits of client {n}");
        opened.is_ok()
    });
    assert!(opened.count() > 3000);
}

#[test]
fn unconfirmed_records_are_dropped_in_few_visits() {
    let state = with_limits(Limits { unconfirmed: 1024, unconfirmed_per_address: 32, ..limits() });
    for n in 0..3000_u32 {
        let (owner, address) = (format!("{n}"), Ipv4Addr::from_bits(n).into());
        let args = ExchangeId { address, ..identify(&owner, 1) };
        let (visits, _) = visits_of(|| state.exchange_id(&args, S(0)).unwrap());
        assert!(visits < FEW, "{visits}");
    }
    let (visits, _) = visits_of(|| state.expire(S(500)));
    assert!(visits < FEW, "{visits}");
}

#[test]
fn clients_are_asked_for_delegations_in_few_visits() {
    let limits =
        Limits { back_channel: true, delegations: 1500, clients: 4096, unconfirmed: 8192, ..limits() };
    let state = with_limits(limits);
    state.enable_delegations(None);
    let sessions = crowd(&state, 2048);
    let mut asked = std::collections::HashSet::new();
    for (n, session) in sessions.iter().enumerate() {
        state.reclaim_complete(session.client()).unwrap();
        session.back().unwrap().add(&millrace_oncrpc::Callbacks::new((Ipv4Addr::LOCALHOST, 1).into()));
        for k in 0..2_usize {
            let file = [n.to_be_bytes(), k.to_be_bytes()].concat();
            let request =
                OpenRequest { owner: b"o", file: &file, access: 1, deny: 0, reclaim: false, reserved: None };
            state.open(session.client(), &request, S(0)).unwrap();
            let request = DelegationRequest {
                file: &file,
                kind: DelegationKind::Read,
                reclaim: false,
                change: 1,
                times: None,
            };
            let _ = state.delegate(session.client(), &request, S(0));
            let (visits, all) = visits_of(|| state.take_recalls_of_any(session.client(), S(1)));
            assert!(visits < FEW, "{visits}");
            asked.extend(all.into_iter().map(|recall| recall.client));
        }
    }
    assert!(asked.len() > 500, "all that hold many are asked in turn: {}", asked.len());
}

/// Maximum number of requests that wait for locks of a file.
const WAITERS: usize = 1024;
/// Visits for each of them: a path in the trees of locks.
const PATH: usize = 64;

fn open(state: &State<u64>, of: &Arc<Session<u64>>, owner: &[u8], file: &[u8]) -> Result<Stateid, Status> {
    let request = OpenRequest { owner, file, access: 3, deny: 0, reclaim: false, reserved: None };
    state.open(of.client(), &request, S(0))
}

fn lock(
    state: &State<u64>,
    of: &Arc<Session<u64>>,
    open: &Stateid,
    (owner, blocking): (u32, bool),
    (offset, length): (u64, u64),
) -> Result<Stateid, LockError> {
    let locker = Locker::Open { open, owner: &owner.to_be_bytes() };
    let (file, kind, reclaim): (&[u8], _, _) = (b"f", LockKind::Write, false);
    state.lock(of.client(), &LockRequest { locker, file, kind, blocking, reclaim, offset, length }, S(0))
}

/// A client with an open of the file `f`, and as many lock owners, ranges and waiting requests as there may be.
fn many_locks(state: &State<u64>) -> (Arc<Session<u64>>, Stateid, Stateid) {
    let limits = *state.limits();
    let session = ready(state, "many locks", S(0));
    let id = open(state, &session, b"o", b"f").unwrap();
    let mut of_first = None;
    for n in 0..limits.ranges_per_open {
        let owner = (n % limits.lock_owners_per_open) as u32;
        let locked = lock(state, &session, &id, (owner, false), (n as u64 * 2, 1)).unwrap();
        of_first.get_or_insert(locked);
    }
    let waiters = WAITERS / limits.waiting_per_client;
    for n in 0..waiters {
        let session = client_of(state, 10 + n as u8, &format!("waits {n}"), S(0)).unwrap();
        state.reclaim_complete(session.client()).unwrap();
        let id = open(state, &session, b"o", b"f").unwrap();
        for owner in 0..limits.waiting_per_client {
            lock(state, &session, &id, (owner as u32, true), (0, u64::MAX)).unwrap_err();
        }
    }
    // With the present `seqid`.
    let of_first = Stateid { seqid: 0, ..of_first.unwrap() };
    (session, id, of_first)
}

fn large() -> Limits {
    Limits { back_channel: true, clients: 64, unconfirmed: 64, ..Limits::default() }
}

#[test]
fn operations_on_locks_visit_those_of_one_open() {
    let state = with_limits(large());
    let limits = *state.limits();
    let (session, id, of_first) = many_locks(&state);
    let (owners, ranges) = (limits.lock_owners_per_open, limits.ranges_per_open);
    let few = FEW + 3 * WAITERS + WAITERS * PATH;
    let full = Err(LockError::Status(Status::ServerFault));
    let (visits, refused) = visits_of(|| lock(&state, &session, &id, (0, false), (1 << 40, 1)));
    assert!(visits < few && refused == full, "{visits} {refused:?}");
    let (visits, refused) = visits_of(|| lock(&state, &session, &id, (owners as u32, false), (1 << 40, 1)));
    assert!(visits < few && refused == full, "{visits} {refused:?}");
    let tested =
        |owner: &[u8]| state.test_lock(session.client(), owner, b"f", LockKind::Write, (0, u64::MAX), S(0));
    let (visits, tested) = visits_of(|| tested(b"new"));
    assert!(visits < FEW && tested.is_err(), "{visits}");
    // LOCKU and LOCK of all ranges of an owner.
    let own = ranges / owners;
    let (visits, first) =
        visits_of(|| state.unlock(session.client(), &of_first, b"f", (0, u64::MAX), S(0)).unwrap());
    assert!(visits < few + own, "{visits}");
    let (visits, freed) = visits_of(|| state.free_stateid(session.client(), &first));
    assert!(visits < FEW && freed == Ok(()), "{visits} {freed:?}");
    let (visits, id) = visits_of(|| state.close(session.client(), &id, b"f"));
    assert!(visits < few + 3 * owners + 2 * ranges && id.is_ok(), "{visits}");
    assert_eq!(session.client().heap.held(), 0);
}

#[test]
fn operations_on_opens_visit_few_others() {
    const OPENS: u32 = 20_000;
    let state = with_limits(large());
    state.enable_delegations(None);
    let session = ready(&state, "many opens", S(0));
    session.back().unwrap().add(&millrace_oncrpc::Callbacks::new((Ipv4Addr::LOCALHOST, 1).into()));
    let opens: Vec<_> = (0..OPENS).map(|n| open(&state, &session, &n.to_be_bytes(), b"f").unwrap()).collect();
    let other = client_of(&state, 2, "other", S(0)).unwrap();
    other.back().unwrap().add(&millrace_oncrpc::Callbacks::new((Ipv4Addr::LOCALHOST, 1).into()));
    state.reclaim_complete(other.client()).unwrap();
    let few = |what: &str, visits: usize| assert!(visits < FEW, "{visits} visits of {what}");
    // An open that denies access to others.
    let request =
        |deny| OpenRequest { owner: b"o", file: b"f", access: 3, deny, reclaim: false, reserved: None };
    let (visits, opened) = visits_of(|| state.open(session.client(), &request(3), S(0)));
    few("OPEN that is denied", visits);
    assert_eq!(opened, Err(Status::ShareDenied));
    let read = OpenRequest { access: 1, deny: 0, ..request(0) };
    let (visits, own) = visits_of(|| state.open(session.client(), &read, S(0)).unwrap());
    few("OPEN", visits);
    let delegation =
        DelegationRequest { file: b"f", kind: DelegationKind::Write, reclaim: false, change: 1, times: None };
    let (visits, delegated) = visits_of(|| state.delegate(session.client(), &delegation, S(0)).unwrap());
    few("OPEN with a delegation", visits);
    few("DELEGRETURN", visits_of(|| state.return_delegation(session.client(), &delegated, b"f", S(0))).0);
    let (visits, of_other) = visits_of(|| state.open(other.client(), &request(0), S(0)).unwrap());
    few("OPEN of another client", visits);
    let delegation = DelegationRequest { kind: DelegationKind::Read, ..delegation };
    let (visits, refused) = visits_of(|| state.delegate(other.client(), &delegation, S(0)));
    few("OPEN with a delegation that is refused", visits);
    assert_eq!(refused, Err(NotDelegated::Contention));
    few("OPEN_DOWNGRADE", visits_of(|| state.open_downgrade(session.client(), &own, b"f", 1, 0)).0);
    few("TEST_STATEID", visits_of(|| state.test_stateid(session.client(), &opens[7])).0);
    few("READ", visits_of(|| check_access(&state, other.client(), &of_other, b"f", false, S(0))).0);
    few(
        "READ of all",
        visits_of(|| check_access(&state, other.client(), &Stateid::ANONYMOUS, b"f", false, S(0))).0,
    );
    few("CLOSE", visits_of(|| state.close(session.client(), &opens[9], b"f")).0);
    few("RECLAIM_COMPLETE", visits_of(|| state.reclaim_complete(session.client())).0);
    few("SEQUENCE", visits_of(|| renew(&session, 1, S(1))).0);
    few("DESTROY_CLIENTID", visits_of(|| state.destroy_client(session.client().id())).0);
    few("BIND_CONN_TO_SESSION", visits_of(|| session.bind(Direction::ForeOrBoth)).0);
    few("DESTROY_SESSION", visits_of(|| state.destroy_session(session.id())).0);
    few("a list of clients", visits_of(|| state.client_reports(None, 10, S(1))).0);
}

/// Few stateids or none are selected of many, which few of many clients have.
#[test]
fn stateids_are_listed_in_steps() {
    const OPENS: u32 = 5000;
    let state = with_limits(Limits { clients: 4096, unconfirmed: 8192, ..limits() });
    let sessions = crowd(&state, 500);
    let (last, others) = sessions.split_last().unwrap();
    for session in [last, &others[100], &others[200]] {
        state.reclaim_complete(session.client()).unwrap();
        for n in 0..OPENS {
            open(&state, session, &n.to_be_bytes(), b"f").unwrap();
        }
    }
    for (selection, limit, found) in [
        (Selection::File(b"g"), 10, 0),
        (Selection::Prefix(b"f"), 700, 3 * OPENS as usize),
        (Selection::Client(last.client().id()), usize::MAX, OPENS as usize),
    ] {
        let (mut after, mut stateids) = (None, Vec::new());
        loop {
            let (visits, page) = visits_of(|| state.stateid_reports(selection, after, limit));
            assert!(visits < FEW + 1024, "{visits}");
            assert!(page.stateids.len() <= limit);
            stateids.extend(page.stateids.into_iter().map(|stateid| stateid.at));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(stateids.is_sorted_by(|a, b| a < b));
        assert_eq!(stateids.len(), found);
    }
    open(&state, last, b"o", b"g").unwrap();
    assert_eq!(state.revoke(Selection::File(b"g")), Ok(1), "one that follows many others");
}

/// A step may end with a lock owner with all ranges of its open.
fn step(limits: &Limits) -> usize {
    FEW + 2 * 1024 + 2 * limits.ranges_per_open + WAITERS * PATH
}

#[test]
fn a_client_with_much_state_is_removed_in_steps() {
    let state = with_limits(large());
    let limits = *state.limits();
    let (session, ..) = many_locks(&state);
    for n in 0..5000_u32 {
        open(&state, &session, b"p", &n.to_be_bytes()).unwrap();
    }
    let other = client_of(&state, 2, "other", S(0)).unwrap();
    state.reclaim_complete(other.client()).unwrap();
    let id = open(&state, &other, b"o", b"f").unwrap();
    renew(&other, 1, S(100)).unwrap();
    let attempt = || {
        let locker = Locker::Open { open: &id, owner: b"l" };
        let (file, kind, blocking, reclaim): (&[u8], _, _, _) = (b"f", LockKind::Write, false, false);
        let (offset, length) = (0, u64::MAX);
        let request = LockRequest { locker, file, kind, blocking, reclaim, offset, length };
        state.lock(other.client(), &request, S(100))
    };
    let mut attempts = 0;
    let locked = loop {
        let (visits, locked) = visits_of(attempt);
        assert!(visits < 3 * step(&limits), "{visits}");
        attempts += 1;
        match locked {
            Err(LockError::Status(Status::Delay)) => assert!(attempts < 10_000),
            other => break other,
        }
    };
    assert!(locked.is_ok() && attempts > 1, "{locked:?} after {attempts}");
    assert!(session.is_destroyed());
    while state.expire(S(100)) {}
    assert_eq!((session.client().heap.held(), state.has_rests()), (0, false));
    assert!(!state.is_open(&7_u32.to_be_bytes()));
}

#[test]
fn clients_that_end_together_are_removed_in_steps() {
    let state = with_limits(Limits { courtesy: S(100), unconfirmed_per_address: 64, ..large() });
    let sessions: Vec<_> = (0..40_u32)
        .map(|n| {
            let session = ready(&state, &format!("{n}"), S(0));
            for k in 0..200_u32 {
                open(&state, &session, &k.to_be_bytes(), &n.to_be_bytes()).unwrap();
            }
            session
        })
        .collect();
    let mut calls = 0;
    loop {
        let (visits, more) = visits_of(|| state.expire(S(101)));
        assert!(visits < 3000, "{visits}");
        calls += 1;
        if !more {
            break;
        }
    }
    assert!(calls > 5, "{calls}");
    assert!(sessions.iter().all(|session| session.is_destroyed() && session.client().heap.held() == 0));
}

#[test]
fn requests_that_conflict_with_delegations_visit_those_of_the_file() {
    let state = with_limits(Limits { clients: 512, unconfirmed: 512, ..large() });
    state.enable_delegations(None);
    let sessions: Vec<_> =
        (0..250_u8).map(|n| client_of(&state, n, &format!("{n}"), S(0)).unwrap()).collect();
    for session in &sessions {
        state.reclaim_complete(session.client()).unwrap();
        session.back().unwrap().add(&millrace_oncrpc::Callbacks::new((Ipv4Addr::LOCALHOST, 1).into()));
        let request =
            OpenRequest { owner: b"o", file: b"f", access: 1, deny: 0, reclaim: false, reserved: None };
        state.open(session.client(), &request, S(0)).unwrap();
        let request = DelegationRequest {
            file: b"f",
            kind: DelegationKind::Read,
            reclaim: false,
            change: 1,
            times: None,
        };
        let (visits, delegated) = visits_of(|| state.delegate(session.client(), &request, S(0)));
        assert!(visits < 20 && delegated.is_ok(), "{visits}");
    }
    let (visits, read) = visits_of(|| state.check_read(None, b"f", S(0)));
    assert!(visits < 20 && read.is_ok(), "{visits}");
    let (visits, changed) = visits_of(|| state.change(None, b"f", S(0)).map(drop));
    assert!(visits < 2 * sessions.len() && changed == Err(Status::Delay), "{visits}");
    let (visits, ()) = visits_of(|| state.recall_all(DelegationKind::Read, |_| true, S(0)));
    assert!(visits < 2 * sessions.len(), "{visits}");
}
