//! The number of entries that each operation visits while the state is at its limits.

use super::*;
use crate::visits::visits_of;

/// Visits of an operation that does not depend on the number of clients.
const FEW: usize = 512;

/// Many clients, most of them of one address.
fn crowd(state: &State<u64>, clients: u32) -> Vec<Arc<Session<u64>>> {
    let host = |n: u32| if n % 4 == 0 { 2 + (n / 4 % 200) as u8 } else { 1 };
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
    let (visits, ()) = visits_of(|| state.expire(S(500)));
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
            let request =
                DelegationRequest { file: &file, kind: DelegationKind::Read, reclaim: false, change: 1 };
            let _ = state.delegate(session.client(), &request, S(0));
            let (visits, all) = visits_of(|| state.take_recalls_of_any(session.client(), S(1)));
            assert!(visits < FEW, "{visits}");
            asked.extend(all.into_iter().map(|recall| recall.client));
        }
    }
    assert!(asked.len() > 500, "all that hold many are asked in turn: {}", asked.len());
}
