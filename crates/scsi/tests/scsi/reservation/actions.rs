//! RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT AND ABORT, and unregistering of the holder (SPC-4 sections 5.13.9 to
//! 5.13.11), with the unit attention conditions.

use millrace_scsi::reservation::{Attention, Effects, NexusId, Refusal};

use super::common::*;

const QUIET: Effects = Effects { attentions: Vec::new(), aborted: Vec::new() };

/// Four sessions, of which 0, 1 and 2 are registered with keys 10, 11 and 11.
fn unit() -> Unit {
    let mut unit = Unit::new(4);
    unit.register(0, 10);
    unit.register(1, 11);
    unit.register(2, 11);
    unit
}

fn attentions(attention: Attention, indices: &[u8]) -> Effects {
    Effects { attentions: indices.iter().map(|&index| (id(index, 1), attention)).collect(), aborted: vec![] }
}

fn aborting(mut effects: Effects, indices: &[u8]) -> Effects {
    effects.aborted = indices.iter().map(|&index| id(index, 1)).collect();
    effects
}

#[test]
fn only_registered_nexuses_with_their_key_are_served() {
    for action in [RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT] {
        let mut unit = unit();
        for (index, key) in [(0, 0), (0, 11), (3, 0), (3, 10)] {
            assert_eq!(unit.out(index, action, 1, key, 11), Err(Refusal::Conflict), "{action} {index} {key}");
        }
        let list = basic(10, 11, 0, &[]);
        assert_eq!(unit.send(NexusId(99), action, 1, &list), Err(Refusal::Conflict), "no such nexus");
        let specify = basic(10, 11, SPEC_I_PT, &[]);
        assert_eq!(unit.send(id(0, 1), action, 1, &specify), Err(Refusal::InvalidFieldInParameterList));
        assert_eq!((unit.generation(), unit.keys()), (3, vec![10, 11, 11]));
    }
}

#[test]
fn reserve() {
    for kind in [1, 3, 5, 6, 7, 8] {
        let mut unit = unit();
        for invalid in [0, 2, 4, 9, 15, 0x10 | kind] {
            assert_eq!(unit.out(0, RESERVE, invalid, 10, 0), Err(Refusal::InvalidFieldInCdb));
        }
        assert_eq!(unit.out(0, RESERVE, kind, 10, 0), Ok(QUIET));
        assert_eq!(unit.out(0, RESERVE, kind, 10, 0), Ok(QUIET), "the same again");
        assert!(unit.out(0, RESERVE, kind ^ 2, 10, 0).is_err(), "another type");
        let again = unit.out(1, RESERVE, kind, 11, 0);
        assert_eq!(again, if kind >= 7 { Ok(QUIET) } else { Err(Refusal::Conflict) });
        assert_eq!(unit.reservation(), Some((if kind >= 7 { 0 } else { 10 }, kind)));
        assert_eq!(unit.generation(), 3);
    }
}

#[test]
fn release() {
    for kind in [1, 3, 5, 6, 7, 8] {
        let mut unit = unit();
        assert_eq!(unit.out(0, RELEASE, kind, 10, 0), Ok(QUIET), "no reservation");
        unit.out(0, RESERVE, kind, 10, 0).unwrap();
        if kind < 7 {
            assert_eq!(unit.out(1, RELEASE, kind, 11, 0), Ok(QUIET), "not the holder");
        }
        for other in [1, 3, 5, 6, 7, 8, 2, 0x10 | kind].into_iter().filter(|&other| other != kind) {
            assert_eq!(unit.out(0, RELEASE, other, 10, 0), Err(Refusal::InvalidRelease));
        }
        assert!(unit.reservation().is_some());
        let expected = if kind >= 5 { attentions(Attention::ReservationsReleased, &[1, 2]) } else { QUIET };
        assert_eq!(unit.out(0, RELEASE, kind, 10, 0), Ok(expected), "type {kind}");
        assert_eq!((unit.reservation(), unit.generation(), unit.keys().len()), (None, 3, 3));
    }
}

#[test]
fn unregistering_the_holder_releases_the_reservation() {
    for kind in [1, 3, 5, 6, 7, 8] {
        let mut unit = unit();
        unit.out(0, RESERVE, kind, 10, 0).unwrap();
        let shared = matches!(kind, 5 | 6);
        let expected = if shared { attentions(Attention::ReservationsReleased, &[1, 2]) } else { QUIET };
        assert_eq!(unit.out(0, REGISTER, 0, 10, 0), Ok(expected));
        if kind < 7 {
            assert_eq!(unit.reservation(), None);
            continue;
        }
        assert_eq!(unit.reservation(), Some((0, kind)), "others remain");
        unit.out(1, REGISTER, 0, 11, 0).unwrap();
        assert_eq!(unit.out(2, REGISTER_AND_IGNORE, 0, 0, 0), Ok(QUIET));
        assert_eq!(unit.reservation(), None);
    }
}

#[test]
fn clear() {
    let mut unit = unit();
    unit.out(1, RESERVE, 3, 11, 0).unwrap();
    unit.reservations.detach(id(2, 1));
    assert_eq!(unit.out(0, CLEAR, 0xff, 10, 0), Ok(attentions(Attention::ReservationsPreempted, &[1])));
    assert_eq!((unit.reservation(), unit.generation(), unit.keys()), (None, 4, vec![]));
}

#[test]
fn preempt_removes_registrations() {
    for kind in [0, 3, 7] {
        let mut unit = unit();
        if kind != 0 {
            unit.out(0, RESERVE, kind, 10, 0).unwrap();
        }
        assert_eq!(unit.out(0, PREEMPT, 0, 10, 99), Err(Refusal::Conflict), "no such key");
        if kind != 7 {
            assert_eq!(unit.out(0, PREEMPT, 1, 10, 0), Err(Refusal::InvalidFieldInParameterList));
        }
        let expected = attentions(Attention::RegistrationsPreempted, &[1, 2]);
        assert_eq!(unit.out(0, PREEMPT, 0xff, 10, 11), Ok(expected), "SCOPE and TYPE are ignored");
        assert_eq!((unit.generation(), unit.keys()), (4, vec![10]));
        assert_eq!(unit.reservation().map(|(_, kind)| kind), (kind != 0).then_some(kind));
    }
}

#[test]
fn preempt_with_the_own_key_removes_the_registration_of_a_nexus_that_is_not_the_holder() {
    let mut unit = unit();
    unit.out(0, RESERVE, 3, 10, 0).unwrap();
    let expected = aborting(attentions(Attention::RegistrationsPreempted, &[2]), &[1, 2]);
    assert_eq!(unit.out(1, PREEMPT_AND_ABORT, 3, 11, 11), Ok(expected));
    assert_eq!((unit.keys(), unit.reservation()), (vec![10], Some((10, 3))));
    // The last registrant of a reservation of all registrants.
    unit.out(0, RELEASE, 3, 10, 0).unwrap();
    unit.out(0, RESERVE, 8, 10, 0).unwrap();
    assert_eq!(unit.out(0, PREEMPT, 8, 10, 10), Ok(QUIET));
    assert_eq!((unit.keys(), unit.reservation()), (vec![], None));
}

#[test]
fn preempt_replaces_the_reservation() {
    for (action, aborted) in [(PREEMPT, &[][..]), (PREEMPT_AND_ABORT, &[1, 2])] {
        let mut unit = unit();
        unit.attach(0, 2);
        unit.send(id(0, 2), REGISTER, 0, &basic(0, 13, 0, &[])).unwrap();
        unit.out(1, RESERVE, 1, 11, 0).unwrap();
        assert_eq!(unit.out(0, action, 2, 10, 11), Err(Refusal::InvalidFieldInCdb));
        let mut expected = aborting(attentions(Attention::RegistrationsPreempted, &[1, 2]), aborted);
        expected.attentions.insert(0, (id(0, 2), Attention::ReservationsReleased));
        assert_eq!(unit.out(0, action, 6, 10, 11), Ok(expected), "another type");
        assert_eq!((unit.reservation(), unit.keys(), unit.generation()), (Some((10, 6)), vec![10, 13], 5));
    }
}

#[test]
fn preempt_with_the_same_type_releases_nothing() {
    let mut unit = unit();
    unit.out(0, RESERVE, 5, 10, 0).unwrap();
    let expected = attentions(Attention::RegistrationsPreempted, &[0]);
    assert_eq!(unit.out(1, PREEMPT, 5, 11, 10), Ok(expected));
    assert_eq!((unit.reservation(), unit.keys()), (Some((11, 5)), vec![11, 11]));
}

#[test]
fn the_holder_can_preempt_itself() {
    let mut unit = unit();
    unit.out(0, RESERVE, 1, 10, 0).unwrap();
    let expected = aborting(attentions(Attention::ReservationsReleased, &[1, 2]), &[0]);
    assert_eq!(unit.out(0, PREEMPT_AND_ABORT, 8, 10, 10), Ok(expected));
    assert_eq!((unit.reservation(), unit.keys()), (Some((0, 8)), vec![10, 11, 11]));
}

#[test]
fn key_zero_preempts_all_registrants() {
    let mut unit = unit();
    unit.out(0, RESERVE, 7, 10, 0).unwrap();
    let expected = aborting(attentions(Attention::RegistrationsPreempted, &[0, 2]), &[0, 1, 2]);
    assert_eq!(unit.out(1, PREEMPT_AND_ABORT, 3, 11, 0), Ok(expected));
    assert_eq!((unit.reservation(), unit.keys()), (Some((11, 3)), vec![11]));
}

#[test]
fn every_session_of_a_preempted_nexus_is_notified() {
    let mut unit = unit();
    unit.reservations.attach(NexusId(500), nexus(1, 1));
    unit.reservations.detach(id(2, 1));
    let mut expected = aborting(attentions(Attention::RegistrationsPreempted, &[1]), &[1]);
    expected.attentions.push((NexusId(500), Attention::RegistrationsPreempted));
    expected.aborted.push(NexusId(500));
    assert_eq!(unit.out(0, PREEMPT_AND_ABORT, 0, 10, 11), Ok(expected));
}

#[test]
fn sessions_that_begin_before_the_commit_are_notified() {
    let mut unit = unit();
    unit.reservations.detach(id(1, 1));
    let list = basic(10, 0, 0, &[]);
    let change = unit.reservations.plan(id(0, 1), &out_cdb(CLEAR, 0, 24), &list).unwrap();
    assert_eq!(unit.keys(), [10, 11, 11], "nothing changes before the commit");
    unit.attach(1, 1);
    unit.reservations.detach(id(2, 1));
    assert_eq!(unit.commit(change), attentions(Attention::ReservationsPreempted, &[1]));
}
