//! Listing and revocation of state by an administrator.

use millrace_nfs::v4::Stateid;

use super::*;

fn open(state: &State<u64>, of: &Arc<Session<u64>>, owner: &str, file: &str, deny: u32) -> Stateid {
    let (owner, file) = (owner.as_bytes(), file.as_bytes());
    let request = OpenRequest { owner, file, access: 3, deny, reclaim: false, reserved: None };
    state.open(of.client(), &request, S(0)).unwrap()
}

fn lock(state: &State<u64>, of: &Arc<Session<u64>>, open: &Stateid, file: &str, offset: u64) -> Stateid {
    let request = LockRequest {
        locker: Locker::Open { open, owner: b"l" },
        file: file.as_bytes(),
        kind: LockKind::Write,
        blocking: false,
        reclaim: false,
        offset,
        length: 10,
    };
    state.lock(of.client(), &request, S(0)).unwrap()
}

fn flags(of: &Arc<Session<u64>>, sequence: u32) -> u32 {
    match of.sequence(&request(0, sequence), 0, S(0)) {
        Ok(Sequence::Execute(_, reply)) => reply.status_flags,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_are_listed_in_pages() {
    let state = state();
    let sessions = ["a", "b", "c"].map(|owner| ready(&state, owner, S(0)));
    let id = open(&state, &sessions[1], "o", "f", 0);
    lock(&state, &sessions[1], &id, "f", 0);
    lock(&state, &sessions[1], &id, "f", 100);
    renew(&sessions[1], 1, S(7)).unwrap();
    state.exchange_id(&identify("unconfirmed", 1), S(0)).unwrap();
    let all = state.client_reports(None, 10, S(10));
    let expected = ClientReport {
        id: sessions[1].client().id(),
        owner: (*b"b").into(),
        address: address(1),
        lease_age: S(3),
        sessions: 1,
        opens: 1,
        locks: 2,
        revoked: 0,
    };
    assert_eq!((all.len(), &all[1]), (3, &expected));
    let sums = all.iter().fold((0, 0), |sums, client| (sums.0 + client.opens, sums.1 + client.locks));
    assert_eq!(state.totals(), StateTotals { clients: 3, opens: sums.0, locks: sums.1 });
    assert_eq!(state.client_reports(None, 2, S(10)), all[..2]);
    assert_eq!(state.client_reports(Some(all[1].id), 2, S(10)), all[2..]);
}

#[test]
fn stateids_are_listed_in_pages_by_client_file_and_prefix() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    for file in ["1f", "1g", "2f"] {
        let id = open(&state, &a, "o", file, 0);
        lock(&state, &a, &id, file, 0);
        open(&state, &b, "p", file, 0);
    }
    let pages = |selection| {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = state.stateid_reports(selection, after, 2);
            assert!(page.stateids.len() <= 2);
            all.extend(page.stateids);
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    };
    assert_eq!(pages(Selection::Prefix(b"")).len(), 9);
    assert_eq!(pages(Selection::Prefix(b"1")).len(), 6);
    assert_eq!(pages(Selection::Client(a.client().id())).len(), 6);
    let of_file = pages(Selection::File(b"2f"));
    let kinds: Vec<_> = of_file.iter().map(|report| report.kind).collect();
    let open = StateidKind::Open { access: 3, deny: 0 };
    assert_eq!(kinds, [open, StateidKind::Locks { ranges: 1 }, open]);
    assert_eq!((&*of_file[1].owner, &*of_file[2].owner), (&b"l"[..], &b"p"[..]));
    assert!(pages(Selection::File(b"2")).is_empty());
}

#[test]
fn the_state_of_a_client_is_revoked_and_available_to_others() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let id = open(&state, &a, "o", "f", 3);
    let locks = lock(&state, &a, &id, "f", 0);
    assert_eq!(state.revoke(Selection::Client(a.client().id())), Ok(2));
    assert_eq!((flags(&a, 1), flags(&b, 1)), (0x20, 0));
    let id_of_b = open(&state, &b, "o", "f", 3);
    lock(&state, &b, &id_of_b, "f", 0);
    for stateid in [&id, &locks] {
        assert_eq!(state.test_stateid(a.client(), stateid), Status::AdminRevoked);
        assert_eq!(state.unlock(a.client(), stateid, b"f", (0, 10), S(0)), Err(Status::AdminRevoked));
        let access = check_access(&state, a.client(), stateid, b"f", true, S(0));
        assert_eq!(access, Err(Status::AdminRevoked));
    }
    let report = &state.client_reports(None, 1, S(0))[0];
    assert_eq!((report.opens, report.locks, report.revoked), (0, 0, 2));
    state.free_stateid(a.client(), &id).unwrap();
    assert_eq!(flags(&a, 2), 0x20);
    state.free_stateid(a.client(), &locks).unwrap();
    assert_eq!(flags(&a, 3), 0);
    let unknown = ClientId { number: 1 };
    assert_eq!(state.revoke(Selection::Client(unknown)), Err(Status::StaleClientid));
}

#[test]
fn a_revocation_by_prefix_spares_other_files() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let ids = ["1f", "1g", "2f"].map(|file| open(&state, &a, "o", file, 0));
    assert_eq!(state.revoke(Selection::Prefix(b"1")), Ok(2));
    let statuses = ids.map(|id| state.test_stateid(a.client(), &id));
    assert_eq!(statuses, [Status::AdminRevoked, Status::AdminRevoked, Status::Ok]);
    assert!(state.is_open(b"2f") && !state.is_open(b"1f"));
}
