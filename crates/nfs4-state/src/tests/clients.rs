//! EXCHANGE_ID, DESTROY_CLIENTID, leases.

use super::*;

fn confirmed(state: &State<u64>, owner: &str) -> ClientId {
    client(state, owner, S(0)).client().id()
}

#[test]
fn a_new_owner_gets_an_unconfirmed_record() {
    let state = state();
    let first = state.exchange_id(&identify("a", 1), S(0)).unwrap();
    assert_eq!((first.sequence, first.confirmed), (1, false));
    let other = state.exchange_id(&identify("b", 1), S(0)).unwrap();
    assert_ne!(first.client, other.client);
}

#[test]
fn an_unconfirmed_record_is_replaced() {
    let state = state();
    let old = state.exchange_id(&identify("a", 1), S(0)).unwrap();
    let args = ExchangeId { principal: b"other", ..identify("a", 1) };
    let new = state.exchange_id(&args, S(0)).unwrap();
    assert_ne!(old.client, new.client);
    assert_eq!(state.create_session(&create(old.client, 1), S(0)), Err(Status::StaleClientid));
}

#[test]
fn a_confirmed_record_is_returned_to_the_same_incarnation() {
    let state = state();
    let id = confirmed(&state, "a");
    let expected = ClientIdentified { client: id, sequence: 2, confirmed: true, machine: None };
    assert_eq!(state.exchange_id(&identify("a", 1), S(0)), Ok(expected));
    assert_eq!(state.exchange_id(&ExchangeId { update: true, ..identify("a", 1) }, S(0)), Ok(expected));
}

#[test]
fn an_update_requires_the_confirmed_record_of_the_same_incarnation() {
    let state = state();
    let update = |owner, verifier, principal| {
        let args = ExchangeId { update: true, principal, ..identify(owner, verifier) };
        state.exchange_id(&args, S(0)).map(|_| ())
    };
    assert_eq!(update("a", 1, b"root"), Err(Status::NoEnt));
    state.exchange_id(&identify("a", 1), S(0)).unwrap();
    assert_eq!(update("a", 1, b"root"), Err(Status::NoEnt), "the record is unconfirmed");
    confirmed(&state, "b");
    assert_eq!(update("b", 2, b"root"), Err(Status::NotSame));
    assert_eq!(update("b", 1, b"user"), Err(Status::Perm));
    assert_eq!(update("b", 2, b"user"), Err(Status::Perm));
    assert_eq!(update("b", 1, b"root"), Ok(()));
}

#[test]
fn another_principal_gets_the_owner_only_of_a_client_without_state() {
    let state = state();
    let id = confirmed(&state, "a");
    let session = state.exchange_id(&identify("a", 1), S(0)).unwrap();
    assert_eq!(session.client, id);
    let other = ExchangeId { principal: b"user", ..identify("a", 1) };
    assert_eq!(state.exchange_id(&other, S(90)), Err(Status::ClidInuse));
    let new = state.exchange_id(&other, S(91)).unwrap();
    assert!(!new.confirmed && new.client != id, "the lease has expired");
    assert_eq!(state.create_session(&create(id, 2), S(91)), Err(Status::StaleClientid));

    let session = client(&state, "b", S(100));
    state.destroy_session(session.id()).unwrap();
    let other = ExchangeId { principal: b"user", ..identify("b", 1) };
    assert!(state.exchange_id(&other, S(100)).is_ok(), "it has no session");
}

#[test]
fn a_restarted_client_keeps_its_earlier_state_until_it_confirms_the_new_record() {
    let state = state();
    let old = client(&state, "a", S(0));
    let new = state.exchange_id(&identify("a", 2), S(1)).unwrap();
    assert!(!new.confirmed && new.client != old.client().id());
    assert_eq!(renew(&old, 1, S(1)), Ok(()));
    let created = state.create_session(&create(new.client, 1), S(2)).unwrap();
    assert!(old.is_destroyed() && old.client().is_removed());
    assert_eq!(renew(&old, 2, S(2)), Err(Status::BadSession));
    assert!(state.session(old.id()).is_none());
    assert_eq!(renew(&state.session(created.session).unwrap(), 1, S(2)), Ok(()));
    assert!(state.exchange_id(&identify("a", 2), S(2)).unwrap().confirmed);
}

#[test]
fn a_restarted_client_waits_for_requests_of_its_earlier_incarnation() {
    let state = state();
    let old = client(&state, "a", S(0));
    let Ok(Sequence::Execute(execution, _)) = old.sequence(&request(0, 1), 0, S(0)) else { panic!() };
    let new = state.exchange_id(&identify("a", 2), S(1)).unwrap();
    assert_eq!(state.create_session(&create(new.client, 1), S(2)), Err(Status::Delay));
    assert!(!old.is_destroyed());
    execution.finish(Some(1));
    assert!(state.create_session(&create(new.client, 1), S(2)).is_ok(), "DELAY consumed no sequence number");
}

#[test]
fn unconfirmed_records_are_limited() {
    let state = state();
    let of = |n: u8, owner| ExchangeId { address: address(n), ..identify(owner, 1) };
    let known = |id: ClientIdentified| {
        state.create_session(&CreateSession { principal: b"?", ..create(id.client, 1) }, S(0))
            == Err(Status::ClidInuse)
    };
    let victim = state.exchange_id(&of(2, "victim"), S(0)).unwrap();
    let flood: Vec<_> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|owner| state.exchange_id(&of(1, owner), S(0)).unwrap())
        .collect();
    assert!(known(victim), "an address drops its own records first");
    assert_eq!(flood.iter().map(|id| known(*id)).collect::<Vec<_>>(), [false, false, true, true, true]);
    state.exchange_id(&of(3, "f"), S(0)).unwrap();
    assert!(known(victim) && !known(flood[2]), "the oldest of the address with most is dropped");
    assert!(known(flood[3]));
    state.expire(S(90));
    assert!(known(flood[3]));
    state.expire(S(91));
    assert!(!known(flood[3]), "unconfirmed records end after a lease");
}

#[test]
fn an_expired_client_is_kept_until_its_record_is_needed() {
    let state = with_limits(Limits { clients: 4, ..limits() });
    let hosts = [(1, "a"), (2, "b"), (3, "c"), (4, "d")];
    let sessions: Vec<_> =
        hosts.iter().map(|(host, owner)| client_of(&state, *host, owner, S(0)).unwrap()).collect();
    let fifth = ExchangeId { address: address(5), ..identify("e", 1) };
    let id = state.exchange_id(&fifth, S(80)).unwrap();
    assert_eq!(state.create_session(&create(id.client, 1), S(80)), Err(Status::Delay));
    for (n, session) in sessions.iter().enumerate().filter(|(n, _)| *n != 2) {
        assert_eq!(renew(session, 1, S(81 + n as u64)), Ok(()));
    }
    assert!(state.create_session(&create(id.client, 1), S(100)).is_ok());
    let removed: Vec<_> = sessions.iter().map(|session| session.is_destroyed()).collect();
    assert_eq!(removed, [false, false, true, false]);
    assert_eq!(renew(&sessions[0], 2, S(1000)), Ok(()), "an expired lease can be renewed");
}

/// Opens a file.
fn hold(state: &State<u64>, session: &Arc<Session<u64>>) {
    state.reclaim_complete(session.client()).unwrap();
    let request = OpenRequest { owner: b"o", file: b"f", access: 1, deny: 0, reclaim: false, reserved: None };
    state.open(session.client(), &request, S(0)).unwrap();
}

#[test]
fn one_address_gets_three_quarters_of_the_client_records() {
    let state = with_limits(Limits { clients: 16, ..limits() });
    let of = |host: u8, n: u32, now| client_of(&state, host, &format!("{host} {n}"), now);
    for n in 0..12 {
        hold(&state, &of(1, n, S(0)).unwrap());
    }
    assert_eq!(of(1, 12, S(50)).err(), Some(Status::Delay), "its clients have state");
    for (host, part) in [(2, 3), (3, 1)] {
        for n in 0..part {
            hold(&state, &of(host, n, S(0)).unwrap());
        }
    }
    assert!(of(4, 0, S(50)).is_ok(), "the address with most loses one");
    assert_eq!(of(1, 12, S(50)).err(), Some(Status::Delay));
    assert!(of(1, 12, S(91)).is_ok(), "a client whose lease has expired makes room");
}

#[test]
fn an_address_with_too_many_clients_loses_the_oldest_without_state() {
    let state = with_limits(Limits { clients: 16, ..limits() });
    let of = |host: u8, n: u32, now| client_of(&state, host, &format!("{host} {n}"), now);
    let other = of(2, 0, S(0)).unwrap();
    let sessions: Vec<_> = (0..12).map_while(|n| of(1, n, S(u64::from(n))).ok()).collect();
    let busy = sessions[0].sequence(&request(0, 1), 0, S(0)).unwrap();
    hold(&state, &sessions[1]);
    for n in 12..20 {
        assert!(of(1, n, S(50)).is_ok(), "{n}");
    }
    assert!(!other.is_destroyed(), "clients of other addresses stay");
    assert!(!sessions[1].is_destroyed(), "clients with state stay");
    assert!(!sessions[0].is_destroyed(), "clients with requests in progress stay");
    assert!(sessions[2].is_destroyed() && sessions[3].is_destroyed());
    drop(busy);
}

#[test]
fn an_expired_client_is_removed_after_the_courtesy_time() {
    let state = with_limits(Limits { courtesy: S(1000), ..limits() });
    let (idle, active) = (client(&state, "a", S(0)), client(&state, "b", S(0)));
    let Ok(Sequence::Execute(execution, _)) = active.sequence(&request(0, 1), 0, S(0)) else { panic!() };
    state.expire(S(1000));
    assert!(!idle.is_destroyed());
    state.expire(S(1001));
    assert!(idle.is_destroyed() && !active.is_destroyed(), "a request in progress keeps the client");
    drop(execution);
    state.expire(S(1001));
    assert!(active.is_destroyed());
}

#[test]
fn a_client_without_sessions_can_be_destroyed() {
    let state = state();
    assert_eq!(state.destroy_client(ClientId { number: 1 }), Err(Status::StaleClientid));
    let session = client(&state, "a", S(0));
    let id = session.client().id();
    assert_eq!(state.destroy_client(id), Err(Status::ClientidBusy));
    let Ok(Sequence::Execute(execution, _)) = session.sequence(&request(0, 1), 0, S(0)) else { panic!() };
    assert_eq!(state.destroy_session(session.id()), Ok(()));
    assert_eq!(state.destroy_client(id), Err(Status::ClientidBusy), "a request is in progress");
    execution.finish(None);
    assert_eq!(state.destroy_client(id), Ok(()));
    assert_eq!(state.destroy_client(id), Err(Status::StaleClientid));
    let unconfirmed = state.exchange_id(&identify("b", 1), S(0)).unwrap();
    assert_eq!(state.destroy_client(unconfirmed.client), Ok(()));
}

#[test]
fn reclaim_complete_is_sent_once() {
    let state = state();
    let session = client(&state, "a", S(0));
    assert_eq!(state.reclaim_complete(session.client()), Ok(()));
    assert_eq!(state.reclaim_complete(session.client()), Err(Status::CompleteAlready));
}

/// The IDs that a server instance gives to its first clients.
fn ids(epoch: u32, secret: u8) -> Vec<u64> {
    let state = State::<u64>::new(limits(), Identity { epoch, secret: [secret; 16] });
    let owners = (0..100).map(|n| format!("{n}"));
    owners.map(|owner| state.exchange_id(&identify(&owner, 1), S(0)).unwrap().client.number).collect()
}

#[test]
fn client_ids_are_those_of_no_other_instance_and_no_counter() {
    let all: Vec<_> = [(7, 3), (7, 4), (8, 3)].into_iter().flat_map(|(e, s)| ids(e, s)).collect();
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(different.len(), 300, "a start within the same second has another secret");
    let halves =
        |half: fn(u64) -> u32| all.iter().map(|id| half(*id)).collect::<std::collections::BTreeSet<_>>();
    assert!(halves(|id| id as u32).len() > 290 && halves(|id| (id >> 32) as u32).len() > 290);
}

#[test]
fn a_client_with_a_machine_credential_is_changed_only_with_it() {
    let state = state();
    let allowed = Bitmap::of_operations(&[Operation::Close]);
    let machine =
        ExchangeId { principal: b"m", is_protected: true, machine: Some(allowed), ..identify("a", 1) };
    let id = state.exchange_id(&machine, S(0)).unwrap();
    assert_eq!(id.machine, Some(allowed));
    let create = CreateSession { principal: b"m", ..create(id.client, 1) };
    let session = state.session(state.create_session(&create, S(0)).unwrap().session).unwrap();
    let client = session.client();
    assert_eq!(client.machine_allowed(), allowed);
    for (principal, is_protected, may) in
        [(&b"m"[..], true, true), (b"m", false, false), (b"other", true, false), (b"", true, false)]
    {
        let checked = client.check_machine(principal, is_protected);
        assert_eq!(checked, if may { Ok(()) } else { Err(Status::WrongCred) });
        let again = ExchangeId { principal, is_protected, machine: None, ..machine };
        let same = state.exchange_id(&again, S(0)).map(|id| (id.client, id.machine));
        let expected = match (may, principal == b"m") {
            // The protection of the record does not change.
            (true, _) => Ok((id.client, Some(allowed))),
            (false, true) => Err(Status::WrongCred),
            (false, false) => Err(Status::ClidInuse),
        };
        assert_eq!(same, expected);
        let update = state.exchange_id(&ExchangeId { update: true, ..again }, S(0)).map(|id| id.client);
        assert_eq!(update, if may { Ok(id.client) } else { Err(Status::WrongCred) });
    }
    // Others have none.
    let other = super::client(&state, "b", S(0));
    assert_eq!(other.client().check_machine(b"anyone", false), Ok(()));
    assert_eq!(other.client().machine_allowed(), Bitmap::EMPTY);
}
