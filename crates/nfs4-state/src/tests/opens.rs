//! OPEN, OPEN_DOWNGRADE, CLOSE and checks of stateids.

use super::*;
use millrace_nfs::v4::Stateid;

const READ: u32 = 1;
const WRITE: u32 = 2;
const BOTH: u32 = 3;

fn open(
    state: &State<u64>,
    of: &Arc<Session<u64>>,
    owner: &str,
    file: &str,
    access: u32,
    deny: u32,
) -> Result<Stateid, Status> {
    let request = OpenRequest {
        owner: owner.as_bytes(),
        file: file.as_bytes(),
        access,
        deny,
        reclaim: false,
        reserved: None,
    };
    state.open(of.client(), &request, S(0))
}

fn with_seqid(id: Stateid, seqid: u32) -> Stateid {
    Stateid { seqid, ..id }
}

#[test]
fn an_owner_has_one_stateid_for_a_file() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let first = open(&state, &a, "o", "f", READ, 0).unwrap();
    assert_eq!(first.seqid, 1);
    assert_eq!(first.other[..8], a.client().id().number.to_be_bytes());
    assert_eq!(open(&state, &a, "o", "f", WRITE, 0), Ok(with_seqid(first, 2)));
    assert_ne!(open(&state, &a, "o", "g", READ, 0).unwrap().other, first.other);
    assert_ne!(open(&state, &a, "p", "f", READ, 0).unwrap().other, first.other);
    assert_eq!(open(&state, &a, "o", "f", 0, 0), Err(Status::Inval));
    assert_eq!(open(&state, &a, "o", "f", READ, 4), Err(Status::Inval));
}

#[test]
fn share_reservations_exclude_other_owners() {
    for access in 1..=3 {
        for deny in 0..=3 {
            for (other_access, other_deny) in (1..=3).flat_map(|a| (0..=3).map(move |d| (a, d))) {
                let state = state();
                let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
                open(&state, &a, "o", "f", access, deny).unwrap();
                let excluded = other_access & deny != 0 || access & other_deny != 0;
                let expected = if excluded { Err(Status::ShareDenied) } else { Ok(()) };
                let result = open(&state, &b, "o", "f", other_access, other_deny).map(|_| ());
                assert_eq!(result, expected, "{access} {deny} {other_access} {other_deny}");
                assert_eq!(open(&state, &a, "o", "f", BOTH, 0).is_ok(), excluded || other_deny == 0);
            }
        }
    }
}

#[test]
fn a_downgrade_reduces_what_is_open() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let id = open(&state, &a, "o", "f", READ, 0).unwrap();
    let id = open(&state, &a, "o", "f", BOTH, READ).map(|_| with_seqid(id, 2)).unwrap();
    let downgrade = |id: &Stateid, access, deny| state.open_downgrade(a.client(), id, b"f", access, deny);
    assert_eq!(downgrade(&id, WRITE, 0), Err(Status::Inval));
    assert_eq!(downgrade(&id, BOTH, 0), Err(Status::Inval));
    assert_eq!(downgrade(&id, 4, 0), Err(Status::Inval));
    assert_eq!(open(&state, &b, "o", "f", READ, 0), Err(Status::ShareDenied));
    assert_eq!(downgrade(&with_seqid(id, 1), READ, 0), Err(Status::OldStateid));
    assert_eq!(downgrade(&id, READ, 0), Ok(with_seqid(id, 3)));
    assert!(open(&state, &b, "o", "f", READ, WRITE).is_ok());
    assert_eq!(downgrade(&with_seqid(id, 0), BOTH, READ), Err(Status::Inval), "it is not an upgrade");
    assert_eq!(state.open_downgrade(b.client(), &id, b"f", READ, 0), Err(Status::BadStateid));
    assert_eq!(state.open_downgrade(a.client(), &with_seqid(id, 0), b"g", READ, 0), Err(Status::BadStateid));
}

#[test]
fn close_ends_an_open() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let id = open(&state, &a, "o", "f", READ, BOTH).unwrap();
    assert!(state.is_open(b"f") && !state.is_open(b"g"));
    assert_eq!(state.close(b.client(), &id, b"f"), Err(Status::BadStateid));
    assert_eq!(state.close(a.client(), &id, b"g"), Err(Status::BadStateid));
    assert_eq!(state.close(a.client(), &with_seqid(id, 2), b"f"), Err(Status::BadStateid));
    assert_eq!(state.close(a.client(), &id, b"f"), Ok(Stateid::INVALID));
    assert_eq!(state.close(a.client(), &id, b"f"), Err(Status::BadStateid));
    assert!(!state.is_open(b"f"));
    let new = open(&state, &b, "o", "f", BOTH, BOTH).unwrap();
    assert_ne!(new.other, id.other);
}

#[test]
fn a_stateid_permits_what_its_open_does() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let reader = open(&state, &a, "o", "f", READ, 0).unwrap();
    let writer = open(&state, &a, "p", "f", WRITE, 0).unwrap();
    let check = |of: &Arc<Session<u64>>, id, write| check_access(&state, of.client(), &id, b"f", write, S(0));
    assert_eq!(check(&a, reader, false), Ok(()));
    assert_eq!(check(&a, reader, true), Err(Status::OpenMode));
    assert_eq!(check(&a, writer, true), Ok(()));
    assert_eq!(check(&a, writer, false), Ok(()), "to write a part of a page");
    assert_eq!(check(&a, with_seqid(reader, 0), false), Ok(()));
    assert_eq!(check(&a, with_seqid(reader, 2), false), Err(Status::BadStateid));
    assert_eq!(check(&b, reader, false), Err(Status::BadStateid));
    assert_eq!(check_access(&state, a.client(), &reader, b"g", false, S(0)), Err(Status::BadStateid));
    let upgraded = open(&state, &a, "o", "f", WRITE, 0).unwrap();
    assert_eq!(check(&a, reader, true), Err(Status::OldStateid));
    assert_eq!(check(&a, upgraded, true), Ok(()));
    let mut earlier = upgraded;
    earlier.other[3] -= 1;
    assert_eq!(check(&a, earlier, true), Err(Status::BadStateid), "of an earlier instance of the server");
}

#[test]
fn special_stateids_respect_denials() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let check = |id, write| check_access(&state, a.client(), &id, b"f", write, S(0));
    let all = |id| [check(id, false), check(id, true)];
    assert_eq!(all(Stateid::ANONYMOUS), [Ok(()); 2]);
    assert_eq!(all(Stateid::READ_BYPASS), [Ok(()); 2]);
    for invalid in [Stateid::CURRENT, Stateid::INVALID, with_seqid(Stateid::READ_BYPASS, 0)] {
        assert_eq!(all(invalid), [Err(Status::BadStateid); 2]);
    }
    open(&state, &a, "o", "f", READ, BOTH).unwrap();
    assert_eq!(all(Stateid::ANONYMOUS), [Err(Status::Locked); 2]);
    assert_eq!(all(Stateid::READ_BYPASS), [Ok(()), Err(Status::Locked)]);
}

#[test]
fn an_administrator_revokes_the_state_of_a_file() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let id = open(&state, &a, "o", "f", READ, 0).unwrap();
    let other = open(&state, &a, "o", "g", READ, 0).unwrap();
    let flags = |sequence| match a.sequence(&request(0, sequence), 0, S(0)) {
        Ok(Sequence::Execute(_, reply)) => reply.status_flags,
        other => panic!("{other:?}"),
    };
    assert_eq!(flags(1), 0);
    assert_eq!(state.revoke(Selection::File(b"f")), Ok(1));
    assert_eq!(state.revoke(Selection::File(b"f")), Ok(0), "it is revoked already");
    assert_eq!(flags(2), 0x20);
    assert!(!state.is_open(b"f") && state.is_open(b"g"));
    assert_eq!(check_access(&state, a.client(), &id, b"f", false, S(0)), Err(Status::AdminRevoked));
    assert_eq!(state.close(a.client(), &id, b"f"), Err(Status::AdminRevoked));
    assert_eq!(state.open_downgrade(a.client(), &id, b"f", READ, 0), Err(Status::AdminRevoked));
    assert_eq!(state.test_stateid(a.client(), &id), Status::AdminRevoked);
    assert_ne!(open(&state, &a, "o", "f", READ, 0).unwrap().other, id.other, "the owner can open it again");
    assert_eq!(state.free_stateid(a.client(), &id), Ok(()));
    assert_eq!(state.test_stateid(a.client(), &id), Status::BadStateid);
    assert_eq!(flags(3), 0);
    assert_eq!(state.free_stateid(a.client(), &other), Err(Status::LocksHeld));
    assert_eq!(state.test_stateid(a.client(), &other), Status::Ok);
    assert_eq!(state.test_stateid(a.client(), &Stateid::ANONYMOUS), Status::BadStateid);
}

#[test]
fn a_conflict_removes_a_client_whose_lease_has_expired() {
    let state = state();
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(50)));
    let id = open(&state, &a, "o", "f", READ, WRITE).unwrap();
    open(&state, &a, "o", "g", READ, 0).unwrap();
    let request =
        OpenRequest { owner: b"o", file: b"f", access: WRITE, deny: 0, reclaim: false, reserved: None };
    let check = |now| check_access(&state, b.client(), &Stateid::ANONYMOUS, b"f", true, now);
    assert_eq!(state.open(b.client(), &request, S(90)), Err(Status::ShareDenied));
    assert_eq!(check(S(90)), Err(Status::Locked));
    assert!(state.open(b.client(), &OpenRequest { access: READ, ..request }, S(91)).is_ok());
    assert!(!a.is_destroyed(), "there was no conflict");
    assert_eq!(check(S(91)), Ok(()));
    assert!(a.is_destroyed() && !state.is_open(b"g"));
    assert!(state.open(b.client(), &request, S(91)).is_ok());
    assert_eq!(state.close(a.client(), &id, b"f"), Err(Status::Expired), "a request in progress");
    let request =
        OpenRequest { owner: b"o", file: b"h", access: READ, deny: 0, reclaim: false, reserved: None };
    assert_eq!(state.open(a.client(), &request, S(91)), Err(Status::Expired));
}

#[test]
fn opens_are_limited() {
    let state = with_limits(Limits { stateids_per_client: 2, ..limits() });
    let (a, b) = (ready(&state, "a", S(0)), ready(&state, "b", S(0)));
    let first = open(&state, &a, "o", "f", READ, 0).unwrap();
    open(&state, &a, "o", "g", READ, 0).unwrap();
    assert_eq!(open(&state, &a, "o", "h", READ, 0), Err(Status::ServerFault));
    assert!(open(&state, &a, "o", "g", WRITE, 0).is_ok(), "an upgrade needs no other stateid");
    open(&state, &b, "o", "f", READ, 0).unwrap();
    assert_eq!(open(&state, &b, "o", "g", READ, BOTH), Err(Status::ShareDenied));
    state.close(a.client(), &first, b"f").unwrap();
    assert!(open(&state, &a, "o", "h", READ, 0).is_ok());
}

#[test]
fn an_open_is_state_of_a_client() {
    let state = state();
    let a = ready(&state, "a", S(0));
    let id = open(&state, &a, "o", "f", READ, BOTH).unwrap();
    state.destroy_session(a.id()).unwrap();
    assert_eq!(state.destroy_client(a.client().id()), Err(Status::ClientidBusy));
    let other = ExchangeId { principal: b"user", ..identify("a", 1) };
    assert_eq!(state.exchange_id(&other, S(0)), Err(Status::ClidInuse));
    let restarted = state.exchange_id(&identify("a", 2), S(0)).unwrap();
    assert!(state.is_open(b"f"));
    state.create_session(&create(restarted.client, 1), S(0)).unwrap();
    assert!(!state.is_open(b"f"), "the state ends with the incarnation");
    assert_eq!(state.test_stateid(a.client(), &id), Status::Expired);
}
