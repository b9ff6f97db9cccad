//! Parameter data of PERSISTENT RESERVE IN, and TransportIDs, byte for byte.

use millrace_scsi::reservation::{Attention, InitiatorPort, InvalidName, Refusal};

use super::common::*;

#[test]
fn transport_ids_have_format_01b() {
    let port =
        InitiatorPort::new("iqn.1993-08.org.debian:01:ABC", [0x80, 0x12, 0x34, 0x56, 0, 0x1f]).unwrap();
    let mut expected = vec![0x45, 0, 0, 48];
    expected.extend(b"iqn.1993-08.org.debian:01:abc,i,0x80123456001f\0\0");
    assert_eq!(port.transport_id(), expected);
    // The smallest ADDITIONAL LENGTH is 20.
    let mut expected = vec![0x45, 0, 0, 20];
    expected.extend(b"a,i,0x000000000000\0\0");
    assert_eq!(InitiatorPort::new("a", [0; 6]).unwrap().transport_id(), expected);
    let longest = InitiatorPort::new(&"n".repeat(223), [0xff; 6]).unwrap().transport_id();
    assert_eq!((longest.len(), &longest[..4]), (248, &[0x45, 0, 0, 244][..]));
    for name in ["", "a,b", "a b", "a\0b", &"n".repeat(224)] {
        assert_eq!(InitiatorPort::new(name, [0; 6]), Err(InvalidName), "{name}");
    }
}

#[test]
fn an_empty_unit_reports_no_key_and_no_reservation() {
    let unit = Unit::new(1);
    assert_eq!(unit.report(0), [0; 8]);
    assert_eq!(unit.report(1), [0; 8]);
    assert_eq!(unit.report(2), [0, 8, 0x0d, 0x80, 0xea, 0x01, 0, 0]);
    assert_eq!(unit.report(3), [0; 8]);
}

#[test]
fn read_keys_and_read_reservation() {
    let mut unit = Unit::new(2);
    unit.register(0, 0x0102_0304_0506_0708);
    unit.register(1, 0xa);
    unit.out(0, RESERVE, 5, 0x0102_0304_0506_0708, 0).unwrap();
    let keys = [0, 0, 0, 2, 0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0xa];
    assert_eq!(unit.report(0), keys);
    let reservation = [0, 0, 0, 2, 0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 5, 0, 0];
    assert_eq!(unit.report(1), reservation);
    for length in 0..30_u16 {
        let data = unit.reservations.report(&in_cdb(0, length)).unwrap();
        assert_eq!(data, keys[..keys.len().min(length.into())]);
    }
}

#[test]
fn the_key_of_an_all_registrants_reservation_is_zero() {
    let mut unit = Unit::new(1);
    unit.register(0, 9);
    unit.out(0, RESERVE, 8, 9, 0).unwrap();
    assert_eq!(unit.report(1), [0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
}

#[test]
fn read_full_status_describes_each_nexus() {
    let mut unit = Unit::new(1);
    unit.attach(1, 2);
    unit.register(0, 7);
    unit.send(id(1, 2), REGISTER, 0, &basic(0, 8, 0, &[])).unwrap();
    unit.send(id(1, 2), RESERVE, 3, &basic(8, 0, 0, &[])).unwrap();
    let id0 = b"\x45\0\0\x30iqn.2024-01.org.example:host0,i,0x400000010000\0\0";
    let id1 = b"\x45\0\0\x30iqn.2024-01.org.example:host1,i,0x400000010001\0\0";
    assert_eq!(id0.len(), 52);
    let mut expected = vec![0, 0, 0, 2, 0, 0, 0, 152];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 52]);
    expected.extend(id0);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 2, 0, 0, 0, 52]);
    expected.extend(id1);
    assert_eq!(unit.report(3), expected);
}

#[test]
fn report_capabilities_shows_whether_aptpl_is_active() {
    let mut unit = Unit::new(1);
    unit.send(id(0, 1), REGISTER, 0, &basic(0, 1, APTPL, &[])).unwrap();
    assert_eq!(unit.report(2), [0, 8, 0x0d, 0x81, 0xea, 0x01, 0, 0]);
}

#[test]
fn unknown_service_actions_are_refused() {
    let mut unit = Unit::new(1);
    for action in 4..32 {
        assert_eq!(unit.reservations.report(&in_cdb(action, 8)), Err(Refusal::InvalidFieldInCdb));
    }
    for action in 8..32 {
        assert_eq!(unit.out(0, action, 1, 0, 0), Err(Refusal::InvalidFieldInCdb));
    }
}

#[test]
fn sense_data() {
    assert_eq!(Refusal::Conflict.additional_sense(), None);
    assert_eq!(Refusal::InvalidFieldInCdb.additional_sense(), Some((0x24, 0)));
    assert_eq!(Refusal::InvalidFieldInParameterList.additional_sense(), Some((0x26, 0)));
    assert_eq!(Refusal::ParameterListLength.additional_sense(), Some((0x1a, 0)));
    assert_eq!(Refusal::InvalidRelease.additional_sense(), Some((0x26, 4)));
    assert_eq!(Refusal::InsufficientRegistrationResources.additional_sense(), Some((0x55, 4)));
    assert_eq!(Attention::ReservationsPreempted.additional_sense(), (0x2a, 3));
    assert_eq!(Attention::ReservationsReleased.additional_sense(), (0x2a, 4));
    assert_eq!(Attention::RegistrationsPreempted.additional_sense(), (0x2a, 5));
}
