//! The grace period and the durable list of clients.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use millrace_admission::ClientAddr;
use millrace_nfs::v4::Stateid;
use parking_lot::Mutex;

use super::*;

#[derive(Debug, Default)]
pub(super) struct List {
    owners: Mutex<BTreeMap<String, ClientAddr>>,
    broken: AtomicBool,
}

impl ClientList for Arc<List> {
    fn add(&self, owner: &[u8], address: ClientAddr) -> std::io::Result<()> {
        if self.is_broken() {
            return Err(std::io::Error::other("broken"));
        }
        self.owners.lock().insert(String::from_utf8_lossy(owner).into_owned(), address);
        Ok(())
    }

    fn remove(&self, owners: &[Box<[u8]>]) -> std::io::Result<()> {
        if self.is_broken() {
            return Err(std::io::Error::other("broken"));
        }
        self.owners.lock().retain(|other, _| !owners.iter().any(|owner| **owner == *other.as_bytes()));
        Ok(())
    }
}

impl List {
    pub(super) fn owners(&self) -> Vec<String> {
        self.owners.lock().keys().cloned().collect()
    }

    /// The address that an owner on the list is charged to.
    pub(super) fn address(&self, owner: &str) -> Option<ClientAddr> {
        self.owners.lock().get(owner).copied()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn set_broken(&self, broken: bool) {
        self.broken.store(broken, Ordering::Relaxed);
    }
}

/// A server that has restarted when `owners` had state; the grace period ends at 90 s.
fn restarted(owners: &[&str]) -> (State<u64>, Arc<List>) {
    let list = Arc::new(List::default());
    list.owners.lock().extend(owners.iter().map(|owner| (owner.to_string(), address(1).into())));
    let known = owners.iter().map(|owner| owner.as_bytes().into());
    (state().with_client_list(Box::new(list.clone()), known, S(90)), list)
}

fn open(state: &State<u64>, of: &Arc<Session<u64>>, reclaim: bool, now: u64) -> Result<(), Status> {
    open_denying(state, of, 0, reclaim, now)
}

fn open_denying(
    state: &State<u64>,
    of: &Arc<Session<u64>>,
    deny: u32,
    reclaim: bool,
    now: u64,
) -> Result<(), Status> {
    let request = OpenRequest { owner: b"o", file: b"f", access: 1, deny, reclaim, reserved: None };
    state.open(of.client(), &request, S(now)).map(|_| ())
}

#[test]
fn a_client_that_makes_room_leaves_the_list_before_others_get_what_it_had() {
    let list = Arc::new(List::default());
    let small = Limits { heap: 64 * 1537, ..limits() };
    let state = with_limits(small).with_client_list(Box::new(list.clone()), [], S(0));
    let open = |of: &Arc<Session<u64>>, file: u32, now| {
        let file = &file.to_be_bytes();
        let request = OpenRequest { owner: b"o", file, access: 3, deny: 3, reclaim: false, reserved: None };
        state.open(of.client(), &request, S(now)).map(|_| ())
    };
    let clients: Vec<_> = (0..6_u8)
        .map(|n| {
            let client = client_of(&state, n, &format!("{n}"), S(0)).unwrap();
            state.reclaim_complete(client.client()).unwrap();
            let _ = (0..).try_for_each(|k| open(&client, u32::from(n) * 1000 + k, 0));
            client
        })
        .collect();
    assert_eq!(renew(&clients[0], 1, S(50)), Ok(()), "it is active");
    let victim = client_of(&state, 99, "victim", S(50)).unwrap();
    state.reclaim_complete(victim.client()).unwrap();
    list.set_broken(true);
    assert_eq!(open(&victim, 0, 50), Err(Status::Delay));
    assert_eq!(renew(&clients[0], 2, S(50)), Err(Status::BadSession), "the client is notified");
    let again = ExchangeId { address: address(0), ..identify("0", 1) };
    let again = state.exchange_id(&again, S(50)).unwrap();
    assert!(!again.confirmed && again.client != clients[0].client().id(), "its stateids are invalid");
    state.expire(S(51));
    assert_eq!(open(&victim, 0, 51), Err(Status::Delay), "it could still reclaim the file");
    assert_eq!(state.create_session(&create(again.client, 1), S(51)).err(), Some(Status::Delay));
    assert!(list.owners().contains(&"0".to_owned()));

    list.set_broken(false);
    state.expire(S(52));
    assert!(!list.owners().contains(&"0".to_owned()));
    assert_eq!(open(&victim, 0, 53), Ok(()));
    assert!(state.create_session(&create(again.client, 1), S(53)).is_ok());

    let owners: Vec<Box<[u8]>> = list.owners().into_iter().map(|owner| owner.into_bytes().into()).collect();
    let restarted = with_limits(small).with_client_list(Box::new(list), owners, S(200));
    let client = client_of(&restarted, 0, "0", S(100)).unwrap();
    let request =
        OpenRequest { owner: b"o", file: &[0; 4], access: 3, deny: 3, reclaim: true, reserved: None };
    assert_eq!(restarted.open(client.client(), &request, S(100)), Err(Status::ReclaimBad));
}

#[test]
fn known_clients_reclaim_in_the_grace_period() {
    let (state, list) = restarted(&["a", "b"]);
    let (a, c) = (client(&state, "a", S(0)), client(&state, "c", S(0)));
    assert_eq!(open(&state, &a, false, 1), Err(Status::Grace));
    assert_eq!(open(&state, &a, true, 1), Ok(()));
    assert_eq!(open(&state, &c, true, 1), Err(Status::ReclaimBad));
    assert_eq!(state.reclaim_complete(c.client()), Ok(()));
    assert_eq!(open(&state, &c, false, 1), Err(Status::Grace));
    let check = |id, now| check_access(&state, c.client(), &id, b"f", false, S(now));
    assert_eq!(check(Stateid::ANONYMOUS, 1), Err(Status::Grace));
    assert_eq!(check(Stateid::READ_BYPASS, 1), Ok(()));
    assert_eq!(state.reclaim_complete(a.client()), Ok(()));
    assert_eq!(open(&state, &a, true, 1), Err(Status::NoGrace));
    state.expire(S(90));
    assert!(state.in_grace(), "b does not come back");
    assert_eq!(open(&state, &a, false, 91), Err(Status::Grace), "b is still on the list");
    state.expire(S(91));
    assert_eq!(list.owners(), ["a", "c"]);
    assert_eq!(open(&state, &a, false, 91), Ok(()));
    assert_eq!(check(Stateid::ANONYMOUS, 91), Ok(()));
    assert_eq!(open(&state, &a, true, 91), Err(Status::NoGrace));
}

#[test]
fn the_grace_period_ends_with_the_last_reclaim_complete() {
    let (state, _) = restarted(&["a", "b"]);
    let (a, b) = (client(&state, "a", S(0)), client(&state, "b", S(0)));
    state.reclaim_complete(a.client()).unwrap();
    assert_eq!(open(&state, &a, false, 1), Err(Status::Grace));
    state.reclaim_complete(b.client()).unwrap();
    assert_eq!(open(&state, &a, false, 1), Ok(()));
    assert!(!restarted(&[]).0.in_grace(), "there are no clients to wait for");
}

#[test]
fn the_time_of_reclaims_ends_before_the_list_is_written() {
    let (state, list) = restarted(&["a", "b"]);
    let (a, b) = (client(&state, "a", S(50)), client(&state, "b", S(50)));
    assert_eq!(open(&state, &a, true, 59), Ok(()));
    assert_eq!(open(&state, &b, true, 90), Err(Status::NoGrace));
    state.reclaim_complete(b.client()).unwrap();
    list.set_broken(true);
    state.expire(S(91));
    assert_eq!(open(&state, &b, false, 91), Err(Status::Grace), "a could reclaim after a restart");
    list.set_broken(false);
    state.expire(S(91));
    assert_eq!(list.owners(), ["b"]);
    assert_eq!(open(&state, &b, false, 91), Ok(()));
    assert_eq!(open_denying(&state, &b, 1, false, 91), Err(Status::ShareDenied), "a has what it reclaimed");
}

#[test]
fn a_reclaim_that_conflicts_with_another_fails() {
    let (state, _) = restarted(&["a", "b"]);
    let (a, b) = (client(&state, "a", S(0)), client(&state, "b", S(0)));
    assert_eq!(open_denying(&state, &a, 1, true, 1), Ok(()));
    assert_eq!(open(&state, &b, true, 1), Err(Status::ReclaimConflict));
    let request = OpenRequest { owner: b"o", file: b"g", access: 3, deny: 0, reclaim: true, reserved: None };
    let lock = |of: &Arc<Session<u64>>, reclaim| {
        let open = state.open(of.client(), &request, S(1)).unwrap();
        let locker = Locker::Open { open: &open, owner: b"l" };
        let request = LockRequest {
            locker,
            file: b"g",
            kind: LockKind::Write,
            blocking: true,
            reclaim,
            offset: 0,
            length: 10,
        };
        state.lock(of.client(), &request, S(1)).map(|_| ())
    };
    let test = || state.test_lock(b.client(), b"l", b"g", LockKind::Write, (0, 10), S(1));
    assert_eq!(test(), Err(LockError::Status(Status::Grace)), "a may reclaim a lock");
    assert_eq!(lock(&a, false), Err(LockError::Status(Status::Grace)));
    assert_eq!(lock(&a, true), Ok(()));
    assert_eq!(lock(&b, true), Err(LockError::Status(Status::ReclaimConflict)));
}

#[test]
fn a_client_is_on_the_list_before_it_gets_state() {
    let (state, list) = restarted(&["old"]);
    let a = client(&state, "a", S(100));
    assert_eq!(open(&state, &a, false, 100), Err(Status::Grace), "it has not sent RECLAIM_COMPLETE");
    state.expire(S(100));
    assert_eq!(list.owners(), [""; 0], "a client that has not come back");
    list.set_broken(true);
    assert_eq!(state.reclaim_complete(a.client()), Err(Status::Delay));
    assert_eq!(open(&state, &a, false, 100), Err(Status::Grace));
    list.set_broken(false);
    state.reclaim_complete(a.client()).unwrap();
    assert_eq!(open(&state, &a, false, 100), Ok(()));
    assert_eq!(list.owners(), ["a"]);
}

#[test]
fn the_list_is_written_before_others_get_what_a_removed_client_had() {
    let (state, list) = restarted(&[]);
    let (a, b) = (ready(&state, "a", S(100)), ready(&state, "b", S(150)));
    assert_eq!(open(&state, &a, false, 100), Ok(()));
    assert_eq!(open_denying(&state, &b, 1, false, 190), Err(Status::ShareDenied));
    assert_eq!(open_denying(&state, &b, 1, false, 191), Err(Status::Delay), "the lease of a has expired");
    assert_eq!(renew(&a, 1, S(191)), Err(Status::BadSession));
    list.set_broken(true);
    state.expire(S(191));
    assert_eq!(open_denying(&state, &b, 1, false, 191), Err(Status::Delay));
    list.set_broken(false);
    state.expire(S(191));
    assert_eq!(list.owners(), ["b"]);
    assert_eq!(open_denying(&state, &b, 1, false, 191), Ok(()));
}

#[test]
fn a_new_incarnation_inherits_its_place_on_the_list() {
    let (state, list) = restarted(&[]);
    let a = ready(&state, "a", S(0));
    assert_eq!(open(&state, &a, false, 0), Ok(()));
    let id = state.exchange_id(&identify("a", 2), S(1)).unwrap();
    state.create_session(&create(id.client, id.sequence), S(1)).unwrap();
    state.expire(S(2));
    assert_eq!(list.owners(), ["a"]);
    assert!(a.client().is_removed());
    state.expire(S(24 * 60 * 60 + 2));
    assert_eq!(list.owners(), [""; 0], "it has not renewed its lease");
}

#[test]
fn a_client_that_has_lost_its_state_leaves_the_list_before_it_comes_back() {
    let (state, list) = restarted(&[]);
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(100)));
    assert_eq!(open(&state, &a, false, 0), Ok(()));
    assert_eq!(open_denying(&state, &b, 1, false, 100), Err(Status::Delay));
    let id = state.exchange_id(&identify("a", 1), S(100)).unwrap();
    let created = || state.create_session(&create(id.client, id.sequence), S(100)).map(|_| ());
    assert_eq!(created(), Err(Status::Delay));
    state.expire(S(100));
    assert_eq!(list.owners(), ["b"]);
    assert_eq!(created(), Ok(()));
}

#[test]
fn a_destroyed_client_leaves_the_list_and_may_come_back() {
    let (state, list) = restarted(&[]);
    let a = ready(&state, "a", S(0));
    state.destroy_session(a.id()).unwrap();
    state.destroy_client(a.client().id()).unwrap();
    assert_eq!(state.destroy_client(a.client().id()), Err(Status::StaleClientid));
    let again = ready(&state, "a", S(1));
    assert_ne!(again.client().id(), a.client().id());
    state.expire(S(1));
    assert_eq!(list.owners(), ["a"]);
    state.destroy_session(again.id()).unwrap();
    state.destroy_client(again.client().id()).unwrap();
    state.expire(S(1));
    assert_eq!(list.owners(), [""; 0]);
    ready(&state, "a", S(2));
    assert_eq!(list.owners(), ["a"]);
}

#[test]
fn a_client_that_is_destroyed_in_the_grace_period_is_not_waited_for() {
    let (state, list) = restarted(&["a"]);
    let a = client(&state, "a", S(0));
    state.destroy_session(a.id()).unwrap();
    state.destroy_client(a.client().id()).unwrap();
    state.expire(S(1));
    assert!(!state.in_grace());
    assert_eq!(list.owners(), [""; 0]);
}

#[test]
fn the_removal_of_an_expired_client_delays_those_that_need_its_place() {
    let (state, list) = restarted(&[]);
    // The maximum number of clients of one address.
    for n in 0..12 {
        ready(&state, &format!("client {n}"), S(0));
    }
    let id = state.exchange_id(&identify("e", 1), S(91)).unwrap();
    let created = || state.create_session(&create(id.client, id.sequence), S(91)).map(|_| ());
    assert_eq!(created(), Err(Status::Delay));
    state.expire(S(91));
    assert_eq!(created(), Ok(()));
    assert_eq!(list.owners().len(), 11);
    let (owner, now) = (list.owners().remove(0), S(92));
    let other = ExchangeId { principal: b"other", ..identify(&owner, 1) };
    assert!(!state.exchange_id(&other, now).unwrap().confirmed, "the expired client has no state");
}

#[test]
fn another_principal_replaces_an_idle_client_at_once() {
    let (state, list) = restarted(&[]);
    let a = ready(&state, "a", S(0));
    state.destroy_session(a.id()).unwrap();
    let other = ExchangeId { principal: b"other", ..identify("a", 1) };
    let id = state.exchange_id(&other, S(1)).unwrap();
    let create =
        |now| state.create_session(&CreateSession { principal: b"other", ..create(id.client, 1) }, now);
    state.reclaim_complete(state.session(create(S(1)).unwrap().session).unwrap().client()).unwrap();
    state.expire(S(2));
    assert_eq!(list.owners(), ["a"], "that of the new one");
    assert!(a.client().is_removed());
}

#[test]
fn another_principal_that_does_not_come_back_leaves_the_list() {
    let (state, list) = restarted(&[]);
    let a = ready(&state, "a", S(0));
    state.destroy_session(a.id()).unwrap();
    let other = ExchangeId { principal: b"other", ..identify("a", 1) };
    state.exchange_id(&other, S(1)).unwrap();
    state.expire(S(1));
    assert_eq!(list.owners(), [""; 0]);
}

#[test]
fn reclaims_extend_the_grace_period_by_one_lease_at_most() {
    let (state, list) = restarted(&["a", "b"]);
    let a = client(&state, "a", S(0));
    assert_eq!(open(&state, &a, true, 89), Ok(()));
    assert_eq!(open(&state, &a, true, 118), Ok(()), "30 s after the last one");
    state.expire(S(119));
    assert_eq!(state.awaited(), [Arc::from(&b"a"[..]), Arc::from(&b"b"[..])]);
    for now in [147, 176, 179] {
        assert_eq!(open(&state, &a, true, now), Ok(()));
        state.expire(S(now));
    }
    assert_eq!(open(&state, &a, true, 180), Err(Status::NoGrace));
    state.expire(S(180));
    assert!(state.in_grace(), "reclaims in progress end");
    state.expire(S(181));
    assert!(!state.in_grace() && list.owners().is_empty());
}

#[test]
fn no_reclaim_extends_a_grace_period_that_has_ended() {
    let (state, list) = restarted(&["a", "b"]);
    let a = client(&state, "a", S(0));
    list.set_broken(true);
    state.expire(S(91));
    assert_eq!(open(&state, &a, true, 89), Err(Status::NoGrace), "the list is being written without it");
}
