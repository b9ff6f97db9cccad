//! State of a greedy address, or of the prefix of a greedy IPv6 host, and that of another client.

use std::net::Ipv6Addr;

use super::*;
use crate::heap::{RANGE, STATEID};

/// Addresses of a host that takes what it can.
#[derive(Debug, Clone, Copy)]
enum Greedy {
    Ipv4,
    /// Each client has another address of one prefix.
    Prefix,
}

impl Greedy {
    fn address(self, n: u64) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(10, 0, 0, 1).into(),
            Self::Prefix => Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(n)).into(),
        }
    }

    const ALL: [Self; 2] = [Self::Ipv4, Self::Prefix];
}

const VICTIM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99));

fn mount(
    state: &State<u64>,
    address: IpAddr,
    owner: &str,
    now: Duration,
) -> Result<Arc<Session<u64>>, Status> {
    let id = state.exchange_id(&ExchangeId { address, ..identify(owner, 1) }, now)?;
    let created = state.create_session(&create(id.client, id.sequence), now)?;
    let session = state.session(created.session).ok_or(Status::BadSession)?;
    if !id.confirmed {
        state.reclaim_complete(session.client())?;
    }
    Ok(session)
}

fn open(state: &State<u64>, of: &Arc<Session<u64>>, file: &[u8], now: Duration) -> Result<Stateid, Status> {
    let request = OpenRequest { owner: b"o", file, access: 3, deny: 0, reclaim: false, reserved: None };
    state.open(of.client(), &request, now)
}

fn lock(state: &State<u64>, of: &Arc<Session<u64>>, id: &Stateid, file: &[u8], n: u64) -> Result<(), Status> {
    let locker = Locker::Open { open: id, owner: b"l" };
    let (kind, blocking, reclaim) = (LockKind::Write, false, false);
    let request = LockRequest { locker, file, kind, blocking, reclaim, offset: n * 2, length: 1 };
    match state.lock(of.client(), &request, S(0)) {
        Ok(_) => Ok(()),
        Err(LockError::Status(status)) => Err(status),
        Err(denied) => panic!("{denied:?}"),
    }
}

/// Opens files until it is refused. Returns the number of opens.
fn open_all(state: &State<u64>, of: &Arc<Session<u64>>) -> usize {
    (0..).take_while(|n: &u32| open(state, of, &n.to_be_bytes(), S(0)).is_ok()).count()
}

#[test]
fn a_greedy_address_leaves_stateids_to_others() {
    for greedy in Greedy::ALL {
        let state = with_limits(Limits { heap: 64 * (STATEID + 1), ..limits() });
        let clients: Vec<_> =
            (0..4).map(|n| mount(&state, greedy.address(n), &format!("{n}"), S(0)).unwrap()).collect();
        let opened: usize = clients.iter().map(|client| open_all(&state, client)).sum();
        assert_eq!(opened, 48, "{greedy:?} has at most three quarters");
        let victim = mount(&state, VICTIM, "victim", S(0)).unwrap();
        assert_eq!(open_all(&state, &victim), 12);
    }
}

#[test]
fn a_greedy_address_leaves_locks_to_others() {
    for greedy in Greedy::ALL {
        let state = with_limits(Limits { heap: 16 * STATEID + 64 * RANGE, ..limits() });
        let client = mount(&state, greedy.address(0), "greedy", S(0)).unwrap();
        let id = open(&state, &client, b"f", S(0)).unwrap();
        let locked = (0..).take_while(|n| lock(&state, &client, &id, b"f", *n).is_ok()).count();
        assert!(locked > 64, "{locked}");
        let victim = mount(&state, VICTIM, "victim", S(0)).unwrap();
        let id = open(&state, &victim, b"g", S(0)).unwrap();
        assert_eq!((0..8).try_for_each(|n| lock(&state, &victim, &id, b"g", n)), Ok(()), "{greedy:?}");
    }
}

#[test]
fn a_lock_owner_that_frees_ranges_is_not_charged_for_them() {
    let state = state();
    let client = mount(&state, VICTIM, "a", S(0)).unwrap();
    let id = open(&state, &client, b"f", S(0)).unwrap();
    lock(&state, &client, &id, b"f", 1).unwrap();
    lock(&state, &client, &id, b"f", 2).unwrap();
    assert_eq!(client.client().heap.held(), 2 * (STATEID + 1) + 2 * RANGE);
    state.close(client.client(), &id, b"f").unwrap();
    assert_eq!((client.client().heap.held(), state.heap.left()), (0, limits().heap));
}

#[test]
fn the_heaviest_address_loses_a_client_if_many_leave_nothing() {
    let state = with_limits(Limits { heap: 64 * (STATEID + 1), ..limits() });
    let sessions: Vec<_> =
        (0..6_u8).map(|n| client_of(&state, n, &format!("greedy {n}"), S(0)).unwrap()).collect();
    for session in &sessions {
        state.reclaim_complete(session.client()).unwrap();
    }
    let opened: Vec<_> = sessions.iter().map(|session| open_all(&state, session)).collect();
    assert_eq!(opened, [48, 12, 3, 1, 0, 0]);
    let busy = sessions[0].sequence(&request(0, 1), 0, S(0)).unwrap();
    let victim = mount(&state, VICTIM, "victim", S(0)).unwrap();
    let attempt = |n: u8, now| open(&state, &victim, &[n], now).map(|_| ());
    assert_eq!(attempt(0, S(1)), Err(Status::Delay), "a request of the greedy client is in progress");
    assert_eq!(
        sessions[0].sequence(&request(1, 1), 0, S(1)).map(drop),
        Err(Status::BadSession),
        "no other one begins"
    );
    assert!(!sessions[1].is_destroyed(), "one is enough");
    drop(busy);
    assert_eq!((0..12).try_for_each(|n| attempt(n, S(2))), Ok(()));
    let lost: Vec<_> = sessions.iter().map(|session| session.is_destroyed()).collect();
    assert_eq!(lost, [true, false, false, false, false, false]);
}

#[test]
fn state_of_an_expired_client_makes_room_before_that_of_others() {
    let state = with_limits(Limits { heap: 16 * (STATEID + 1), ..limits() });
    let [a, b] = [1, 2].map(|n| client_of(&state, n, &format!("{n}"), S(0)).unwrap());
    for session in [&a, &b] {
        state.reclaim_complete(session.client()).unwrap();
        open_all(&state, session);
    }
    renew(&a, 1, S(50)).unwrap();
    let victim = mount(&state, VICTIM, "victim", S(91)).unwrap();
    assert!(open(&state, &victim, b"v1", S(91)).is_ok());
    assert!(open(&state, &victim, b"v2", S(91)).is_ok());
    assert!(b.is_destroyed() && !a.is_destroyed());
}

#[test]
fn a_file_is_created_only_if_its_stateid_is_reserved() {
    let state = with_limits(Limits { stateids_per_client: 2, ..limits() });
    let a = mount(&state, VICTIM, "a", S(0)).unwrap();
    let client = a.client();
    let reserved = state.reserve_stateid(client, b"o", S(0)).unwrap();
    assert!(open(&state, &a, b"f", S(0)).is_ok());
    assert_eq!(open(&state, &a, b"g", S(0)), Err(Status::ServerFault), "the second one is reserved");
    assert_eq!(state.reserve_stateid(client, b"o", S(0)).map(drop), Err(Status::ServerFault));
    let request = OpenRequest {
        owner: b"o",
        file: b"h",
        access: 3,
        deny: 0,
        reclaim: false,
        reserved: Some(&reserved),
    };
    let id = state.open(client, &request, S(0)).unwrap();
    drop(reserved);
    state.close(client, &id, b"h").unwrap();
    drop(state.reserve_stateid(client, b"o", S(0)).unwrap());
    assert!(open(&state, &a, b"h", S(0)).is_ok(), "what is not used is given back");
    assert_eq!(client.heap.held(), 2 * (STATEID + 1));
}

#[test]
fn a_greedy_prefix_leaves_client_records_to_others() {
    for greedy in Greedy::ALL {
        let state = with_limits(Limits { clients: 16, ..limits() });
        for n in 0..40 {
            let session = mount(&state, greedy.address(n), &format!("{n}"), S(0));
            if let Ok(session) = session {
                let _ = open(&state, &session, b"f", S(0));
            }
        }
        assert_eq!(state.client_reports(None, 99, S(0)).len(), 12, "{greedy:?}");
        assert!(mount(&state, VICTIM, "victim", S(0)).is_ok());
    }
}

#[test]
fn records_without_state_of_the_heaviest_address_make_room() {
    let state = with_limits(Limits { clients: 16, unconfirmed: 64, ..limits() });
    let mut sessions = Vec::new();
    for host in 1..=3 {
        let of = |n: u32| client_of(&state, host, &format!("{host} {n}"), S(u64::from(n)));
        let count = [12, 3, 1][usize::from(host) - 1];
        sessions.extend((0..count).map(|n| of(n).unwrap()));
    }
    state.reclaim_complete(sessions[0].client()).unwrap();
    open(&state, &sessions[0], b"f", S(20)).unwrap();
    assert!(mount(&state, VICTIM, "victim", S(20)).is_ok());
    let lost: Vec<_> = sessions.iter().map(|session| session.is_destroyed()).collect();
    assert!(lost[1] && lost.iter().filter(|lost| **lost).count() == 1, "the oldest without state: {lost:?}");
}

#[test]
fn unconfirmed_records_of_the_address_with_most_are_dropped() {
    let state = with_limits(Limits { unconfirmed: 4, unconfirmed_per_address: 3, ..limits() });
    let victim = ExchangeId { address: VICTIM, ..identify("victim", 1) };
    let victim = state.exchange_id(&victim, S(0)).unwrap();
    for n in 0..100_u64 {
        let owner = format!("{n}");
        // Two prefixes.
        let address = Ipv6Addr::from_bits((u128::from(n % 2) << 64) + u128::from(n)).into();
        state.exchange_id(&ExchangeId { address, ..identify(&owner, 1) }, S(0)).unwrap();
    }
    assert!(state.create_session(&create(victim.client, 1), S(0)).is_ok());
}

#[test]
fn a_greedy_address_leaves_delegations_to_others() {
    for greedy in Greedy::ALL {
        let state = with_limits(Limits { back_channel: true, delegations: 16, ..limits() });
        state.enable_delegations(None);
        let delegated = |address: IpAddr, owner: &str| {
            let session = mount(&state, address, owner, S(0)).unwrap();
            let connection = millrace_oncrpc::Callbacks::new((Ipv4Addr::LOCALHOST, 1).into());
            let back = session.back().unwrap();
            back.add(&connection);
            let granted = |n: &u8| {
                let file = [owner.as_bytes(), &[*n]].concat();
                open(&state, &session, &file, S(0)).unwrap();
                let (kind, reclaim, change) = (DelegationKind::Write, false, 1);
                let request = DelegationRequest { file: &file, kind, reclaim, change, times: None };
                state.delegate(session.client(), &request, S(0)).is_ok()
            };
            (0..).take_while(granted).count()
        };
        assert_eq!(delegated(greedy.address(1), "greedy"), 12);
        assert_eq!(delegated(greedy.address(2), "again"), 0);
        assert_eq!(delegated(VICTIM, "victim"), 3, "{greedy:?}");
    }
}

/// Sessions of a new client of an address until one gets `least` slots or fewer.
fn sessions_of(state: &State<u64>, address: IpAddr, owner: &str, least: u32) -> Vec<Arc<Session<u64>>> {
    let mut sessions = Vec::new();
    for n in 0.. {
        let owner = format!("{owner} {n}");
        let id = state.exchange_id(&ExchangeId { address, ..identify(&owner, 1) }, S(0)).unwrap();
        for sequence in 1..=2 {
            let created = state.create_session(&create(id.client, sequence), S(0)).unwrap();
            sessions.push(state.session(created.session).unwrap());
            if created.fore.slots <= least {
                return sessions;
            }
        }
    }
    sessions
}

fn many_slots() -> Limits {
    Limits { clients: 4096, total_cached_bytes: 4096 * u64::from(FORE.cached_bytes), ..limits() }
}

#[test]
fn a_greedy_address_leaves_slots_to_others() {
    for greedy in Greedy::ALL {
        let state = with_limits(many_slots());
        let sessions = sessions_of(&state, greedy.address(0), "greedy", 1);
        assert!(sessions.len() > 40 && sessions[0].fore().slots == 64, "{}", sessions.len());
        for n in 2..5 {
            let victim = client_of(&state, n, &format!("victim {n}"), S(0)).unwrap();
            assert!(victim.fore().slots >= 32, "{greedy:?}, {n}: {}", victim.fore().slots);
        }
    }
}

/// Executes a request.
fn call(
    session: &Arc<Session<u64>>,
    slot: u32,
    sequence: u32,
    highest_slot: u32,
) -> Result<SequenceOk, Status> {
    match session.sequence(&SequenceRequest { sequence, slot, highest_slot }, sequence.into(), S(0))? {
        Sequence::Execute(execution, reply) => {
            execution.finish(Some(7));
            Ok(reply)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_address_with_most_slots_gives_half_of_them_to_a_new_client() {
    let state = with_limits(many_slots());
    let greedy: Vec<_> =
        (0..20_u8).map(|n| sessions_of(&state, address(n), &format!("greedy {n}"), 1)).collect();
    let (heavy, other) = (&greedy[0][0], &greedy[1][0]);
    let victim = mount(&state, VICTIM, "victim", S(0)).unwrap();
    assert_eq!(victim.fore().slots, 1, "there is nothing left");
    let targets = |reply: &SequenceOk| (reply.highest_slot, reply.target_highest_slot);
    assert_eq!(targets(&call(other, 0, 1, 0).unwrap()), (63, 63));
    assert_eq!(call(&victim, 0, 1, 0).unwrap().highest_slot, 0);

    let pending = heavy.sequence(&request(40, 1), 0, S(0)).unwrap();
    assert_eq!(targets(&call(heavy, 1, 1, 40).unwrap()), (63, 31));
    assert_eq!(targets(&call(heavy, 2, 1, 2).unwrap()), (63, 31), "this slot was not told");
    assert_eq!(targets(&call(heavy, 1, 2, 40).unwrap()), (63, 31), "a slot above is in use");
    assert_eq!(targets(&call(heavy, 1, 3, 1).unwrap()), (63, 31), "it is, contrary to what the client says");
    drop(pending);
    assert_eq!(targets(&call(heavy, 1, 4, 1).unwrap()), (31, 31));
    assert_eq!(call(heavy, 40, 2, 40).unwrap_err(), Status::BadSlot);
    assert!(call(heavy, 1, 5, 40).is_ok(), "sent before");
    assert_eq!(call(heavy, 1, 6, 64).unwrap_err(), Status::BadHighSlot);
    for session in &greedy[0][1..] {
        call(session, 0, 1, 0).unwrap();
        call(session, 0, 2, 0).unwrap();
    }

    // The client that uses all of its slots gets more of them.
    let mut slots = Vec::new();
    for n in 0..8 {
        let highest = slots.last().copied().unwrap_or(0);
        let sequence = if n == 0 { 2 } else { 1 };
        slots.push(call(&victim, highest, sequence, highest).unwrap().highest_slot);
        if slots.last() == Some(&63) {
            break;
        }
    }
    assert_eq!(slots, [1, 3, 7, 15, 31, 63]);
}

/// A request of a client that ignores the target.
fn ignorant(
    session: &Arc<Session<u64>>,
    slot: u32,
    sequence: u32,
    now: Duration,
) -> Result<Sequence<u64>, Status> {
    session.sequence(&SequenceRequest { sequence, slot, highest_slot: 63 }, sequence.into(), now)
}

#[test]
fn slots_that_a_client_does_not_give_back_are_retired() {
    let state = with_limits(many_slots());
    let greedy: Vec<_> =
        (0..20_u8).map(|n| sessions_of(&state, address(n), &format!("greedy {n}"), 1)).collect();
    let heavy = &greedy[0][0];
    for slot in [0, 40, 50] {
        let Ok(Sequence::Execute(execution, _)) = ignorant(heavy, slot, 1, S(0)) else {
            panic!("slot {slot}")
        };
        execution.finish(Some(7));
    }
    let victim = mount(&state, VICTIM, "victim", S(1)).unwrap();
    assert_eq!(victim.fore().slots, 1);
    // Requests that are in progress end; no other ones begin after two leases.
    let Ok(Sequence::Execute(busy, _)) = ignorant(heavy, 50, 2, S(170)) else { panic!() };
    state.expire(S(179));
    assert!(matches!(ignorant(heavy, 40, 1, S(179)), Ok(Sequence::Replay(7))));
    state.expire(S(182));
    assert!(matches!(ignorant(heavy, 40, 1, S(182)), Ok(Sequence::Replay(7))), "a request is in progress");
    assert!(matches!(ignorant(heavy, 50, 2, S(182)), Err(Status::Delay)), "that one");
    assert!(matches!(ignorant(heavy, 40, 2, S(182)), Err(Status::BadSlot)));
    busy.finish(Some(8));
    assert!(matches!(ignorant(heavy, 50, 2, S(182)), Ok(Sequence::Replay(8))));
    let before = state.replies.room(VICTIM.into(), true).most;
    state.expire(S(184));
    assert!(state.replies.room(VICTIM.into(), true).most > before, "without a request of the client");
    // A retry of what was executed is not executed again.
    assert!(matches!(ignorant(heavy, 50, 2, S(184)), Ok(Sequence::Uncached(_))));
    assert!(matches!(ignorant(heavy, 40, 2, S(184)), Err(Status::BadSlot)));
    assert!(matches!(ignorant(heavy, 33, 0, S(184)), Err(Status::BadSlot)), "it was never used");
    assert!(matches!(ignorant(heavy, 64, 1, S(184)), Err(Status::BadSlot)));
    let Ok(Sequence::Execute(_, reply)) = ignorant(heavy, 0, 2, S(184)) else { panic!() };
    assert_eq!((reply.highest_slot, reply.target_highest_slot), (31, 31));
    assert!(state.asked.lock().is_empty());
    assert!(call(&victim, 0, 1, 0).unwrap().highest_slot > 0, "the victim gets slots");
}

#[test]
fn the_slots_of_ended_sessions_are_free() {
    let state = with_limits(many_slots());
    let all = state.replies.room(VICTIM.into(), true).least;
    let sessions = sessions_of(&state, VICTIM, "a", 8);
    for session in &sessions {
        session.ask_for_half(S(180));
        call(session, 0, 1, 0).unwrap();
        call(session, 0, 2, 0).unwrap();
    }
    for session in sessions {
        state.destroy_session(session.id()).unwrap();
    }
    assert_eq!(state.replies.room(VICTIM.into(), true).least, all);
}

#[test]
fn callbacks_of_one_client_leave_those_of_others() {
    let state = with_limits(Limits { back_channel: true, ..limits() });
    let [greedy, victim] = [1, 2].map(|n| client_of(&state, n, &format!("{n}"), S(0)).unwrap());
    let of = |session: &Arc<Session<u64>>| state.callback(session.client().id());
    let pending: Vec<_> = (0..).map_while(|_: u32| of(&greedy)).collect();
    assert_eq!(pending.len(), 64);
    assert!(of(&victim).is_some());
}
