//! The grace period and the durable list of clients.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_nfs::v4::Stateid;
use parking_lot::Mutex;

use super::*;

#[derive(Debug, Default)]
struct List {
    owners: Mutex<Vec<String>>,
    broken: AtomicBool,
}

impl ClientList for Arc<List> {
    fn add(&self, owner: &[u8]) -> std::io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("broken"));
        }
        let owner = String::from_utf8_lossy(owner).into_owned();
        let mut owners = self.owners.lock();
        owners.retain(|other| *other != owner);
        owners.push(owner);
        Ok(())
    }

    fn remove(&self, owner: &[u8]) {
        self.owners.lock().retain(|other| other.as_bytes() != owner);
    }
}

/// A server that has restarted when `owners` had state; the grace period ends at 90 s.
fn restarted(owners: &[&str]) -> (State<u64>, Arc<List>) {
    let list = Arc::new(List::default());
    list.owners.lock().extend(owners.iter().map(ToString::to_string));
    let known = owners.iter().map(|owner| owner.as_bytes().into());
    (state().with_client_list(Box::new(list.clone()), known, S(90)), list)
}

fn open(state: &State<u64>, of: &Arc<Session<u64>>, reclaim: bool, now: u64) -> Result<(), Status> {
    let request = OpenRequest { owner: b"o", file: b"f", access: 1, deny: 0, reclaim };
    state.open(of.client(), &request, S(now)).map(|_| ())
}

#[test]
fn known_clients_reclaim_in_the_grace_period() {
    let (state, _) = restarted(&["a", "b"]);
    let (a, c) = (client(&state, "a", S(0)), client(&state, "c", S(0)));
    assert_eq!(open(&state, &a, false, 1), Err(Status::Grace));
    assert_eq!(open(&state, &a, true, 1), Ok(()));
    assert_eq!(open(&state, &c, true, 1), Err(Status::ReclaimBad));
    assert_eq!(state.reclaim_complete(c.client()), Ok(()));
    assert_eq!(open(&state, &c, false, 1), Err(Status::Grace));
    let check = |id, now| state.check_access(c.client(), &id, b"f", false, S(now));
    assert_eq!(check(Stateid::ANONYMOUS, 1), Err(Status::Grace));
    assert_eq!(check(Stateid::READ_BYPASS, 1), Ok(()));
    assert_eq!(state.reclaim_complete(a.client()), Ok(()));
    assert_eq!(open(&state, &a, true, 1), Err(Status::NoGrace));
    assert!(state.in_grace(S(89)) && !state.in_grace(S(90)), "b does not come back");
    assert_eq!(open(&state, &a, false, 90), Ok(()));
    assert_eq!(check(Stateid::ANONYMOUS, 90), Ok(()));
    assert_eq!(open(&state, &a, true, 90), Err(Status::NoGrace));
}

#[test]
fn the_grace_period_ends_with_the_last_reclaim_complete() {
    let (state, _) = restarted(&["a", "b"]);
    let (a, b) = (client(&state, "a", S(0)), client(&state, "b", S(0)));
    state.reclaim_complete(a.client()).unwrap();
    assert_eq!(open(&state, &a, false, 1), Err(Status::Grace));
    state.reclaim_complete(b.client()).unwrap();
    assert_eq!(open(&state, &a, false, 1), Ok(()));
    assert!(!restarted(&[]).0.in_grace(S(0)), "there are no clients to wait for");
}

#[test]
fn a_client_is_on_the_list_while_it_may_have_state() {
    let (state, list) = restarted(&["old"]);
    let owners = || list.owners.lock().clone();
    let a = client(&state, "a", S(100));
    assert_eq!(open(&state, &a, false, 100), Err(Status::Grace), "it has not sent RECLAIM_COMPLETE");
    list.broken.store(true, Ordering::Relaxed);
    assert_eq!(state.reclaim_complete(a.client()), Err(Status::ServerFault));
    assert_eq!(open(&state, &a, false, 100), Err(Status::Grace));
    list.broken.store(false, Ordering::Relaxed);
    state.reclaim_complete(a.client()).unwrap();
    assert_eq!(open(&state, &a, false, 100), Ok(()));
    assert_eq!(owners(), ["old", "a"]);
    state.expire(S(100));
    assert_eq!(owners(), ["a"], "a client that has not come back");
    let b = client(&state, "b", S(150));
    state.reclaim_complete(b.client()).unwrap();
    let request = OpenRequest { owner: b"o", file: b"f", access: 1, deny: 1, reclaim: false };
    state.open(b.client(), &request, S(200)).unwrap();
    assert_eq!(owners(), ["b"], "the conflict has removed a");
}
