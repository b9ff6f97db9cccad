//! The commands that reservations allow (SPC-4 table 63, SBC-3 table 15, SPC-2 table 10).

use millrace_scsi::reservation::{Access, NexusId, Refusal};

use super::common::*;

const ACCESSES: [Access; 4] = [Access::Always, Access::Status, Access::Read, Access::Write];

/// Allowed accesses of a nexus, in the order of `ACCESSES`.
fn allowed(unit: &Unit, id: NexusId) -> [bool; 4] {
    ACCESSES.map(|access| unit.reservations.allows(id, access))
}

const ALL: [bool; 4] = [true; 4];
const READS: [bool; 4] = [true, true, true, false];
const STATUS: [bool; 4] = [true, true, false, false];
const NONE: [bool; 4] = [true, false, false, false];

#[test]
fn persistent_reservations() {
    // Type; holder, another registered nexus, an unregistered one.
    let table = [
        (1, ALL, READS, READS),
        (3, ALL, STATUS, STATUS),
        (5, ALL, ALL, READS),
        (6, ALL, ALL, STATUS),
        (7, ALL, ALL, READS),
        (8, ALL, ALL, STATUS),
    ];
    for (kind, holder, registered, unregistered) in table {
        let mut unit = Unit::new(3);
        unit.register(0, 10);
        unit.register(1, 11);
        for index in 0..3 {
            assert_eq!(allowed(&unit, id(index, 1)), ALL, "without a reservation");
        }
        unit.out(0, RESERVE, kind, 10, 0).unwrap();
        assert_eq!(allowed(&unit, id(0, 1)), holder, "type {kind}, holder");
        assert_eq!(allowed(&unit, id(1, 1)), registered, "type {kind}, registered");
        assert_eq!(allowed(&unit, id(2, 1)), unregistered, "type {kind}, unregistered");
        assert_eq!(allowed(&unit, NexusId(99)), unregistered, "type {kind}, no such nexus");
    }
}

#[test]
fn the_same_initiator_at_another_target_port_is_another_nexus() {
    let mut unit = Unit::new(1);
    unit.attach(0, 2);
    unit.register(0, 10);
    unit.out(0, RESERVE, 3, 10, 0).unwrap();
    assert_eq!(allowed(&unit, id(0, 2)), STATUS);
}

#[test]
fn reserve_excludes_other_nexuses() {
    let mut unit = Unit::new(2);
    unit.reservations.reserve(id(0, 1)).unwrap();
    unit.reservations.reserve(id(0, 1)).unwrap();
    assert_eq!(allowed(&unit, id(0, 1)), ALL);
    assert_eq!(allowed(&unit, id(1, 1)), NONE);
    assert_eq!(unit.reservations.reserve(id(1, 1)), Err(Refusal::Conflict));
    assert_eq!(unit.reservations.release(id(1, 1)), Ok(()), "without effect");
    assert_eq!(allowed(&unit, id(1, 1)), NONE);
    unit.reservations.release(id(0, 1)).unwrap();
    assert_eq!(allowed(&unit, id(1, 1)), ALL);
}

#[test]
fn reserve_ends_with_the_nexus_and_with_a_reset() {
    let mut unit = Unit::new(2);
    unit.reservations.reserve(id(0, 1)).unwrap();
    unit.reservations.detach(id(1, 1));
    assert_eq!(allowed(&unit, id(1, 1)), NONE);
    unit.reservations.detach(id(0, 1));
    assert_eq!(allowed(&unit, id(1, 1)), ALL);
    assert_eq!(unit.reservations.reserve(id(0, 1)), Err(Refusal::Conflict), "no such nexus");
    unit.attach(0, 1);
    unit.reservations.reserve(id(0, 1)).unwrap();
    unit.reservations.reset();
    assert_eq!(allowed(&unit, id(1, 1)), ALL);
}

#[test]
fn reserve_and_registrations_exclude_each_other() {
    let mut unit = Unit::new(2);
    unit.reservations.reserve(id(0, 1)).unwrap();
    for index in 0..2 {
        assert_eq!(unit.out(index, REGISTER, 0, 0, 1), Err(Refusal::Conflict));
        assert_eq!(unit.reservations.report(&in_cdb(0, 8)), Err(Refusal::Conflict));
    }
    unit.reservations.release(id(0, 1)).unwrap();
    unit.register(0, 1);
    for index in 0..2 {
        assert_eq!(unit.reservations.reserve(id(index, 1)), Err(Refusal::Conflict));
        assert_eq!(unit.reservations.release(id(index, 1)), Err(Refusal::Conflict));
    }
    unit.out(0, REGISTER, 0, 1, 0).unwrap();
    unit.reservations.reserve(id(1, 1)).unwrap();
}

#[test]
fn a_reset_keeps_persistent_reservations() {
    let mut unit = Unit::new(2);
    unit.register(0, 1);
    unit.out(0, RESERVE, 3, 1, 0).unwrap();
    unit.reservations.reset();
    assert_eq!(allowed(&unit, id(1, 1)), STATUS);
}
