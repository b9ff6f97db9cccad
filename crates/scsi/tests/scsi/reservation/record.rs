//! Records of the state that survives power loss.

use millrace_scsi::reservation::{MAX_RECORD, RecordError, Reservations};
use proptest::prelude::*;

use super::common::*;

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

fn sealed(body: &[u8]) -> Vec<u8> {
    [body, &crc32c(body).to_be_bytes()].concat()
}

/// Two registrations with APTPL; the second holds Exclusive Access.
fn persistent() -> Unit {
    let mut unit = Unit::new(2);
    unit.send(id(0, 1), REGISTER, 0, &basic(0, 5, APTPL, &[])).unwrap();
    unit.send(id(1, 1), REGISTER, 0, &basic(0, 6, APTPL, &[])).unwrap();
    unit.out(1, RESERVE, 3, 6, 0).unwrap();
    unit
}

#[test]
fn records_byte_for_byte() {
    let unit = persistent();
    let mut body = b"MRPR\0\x01\x01\x03\0\x01\0\x02".to_vec();
    body.extend(b"\0\0\0\0\0\0\0\x05\0\x01\x40\0\0\x01\0\0\x1diqn.2024-01.org.example:host0");
    body.extend(b"\0\0\0\0\0\0\0\x06\0\x01\x40\0\0\x01\0\x01\x1diqn.2024-01.org.example:host1");
    assert_eq!(unit.stored.unwrap(), sealed(&body));
}

#[test]
fn aptpl_decides_what_survives() {
    let mut unit = persistent();
    unit.restart();
    assert_eq!((unit.generation(), unit.keys(), unit.reservation()), (0, vec![5, 6], Some((6, 3))));
    assert_eq!(unit.report(2)[3], 0x81);
    // APTPL zero in the most recent registration: nothing survives.
    unit.attach(0, 1);
    unit.out(0, REGISTER, 0, 5, 7).unwrap();
    assert_eq!(unit.keys(), [7, 6]);
    unit.restart();
    assert_eq!((unit.keys(), unit.reservation(), unit.report(2)[3]), (vec![], None, 0x80));
}

#[test]
fn only_durable_changes_have_a_record() {
    let mut unit = Unit::new(1);
    unit.register(0, 5);
    unit.out(0, RESERVE, 3, 5, 0).unwrap();
    assert_eq!(unit.stored, None, "without APTPL");
    unit.send(id(0, 1), REGISTER, 0, &basic(5, 5, APTPL, &[])).unwrap();
    assert!(unit.stored.take().is_some(), "APTPL is set");
    unit.send(id(0, 1), REGISTER, 0, &basic(5, 5, APTPL, &[])).unwrap();
    unit.out(0, RESERVE, 3, 5, 0).unwrap();
    assert_eq!(unit.stored, None, "only PRgeneration changes");
    unit.out(0, RELEASE, 3, 5, 0).unwrap();
    assert!(unit.stored.is_some());
}

#[test]
fn a_record_that_was_not_stored_changes_nothing() {
    let mut unit = persistent();
    let before = (unit.report(0), unit.report(3), unit.stored.clone());
    let list = basic(5, 6, 0, &[]);
    let change = unit.reservations.plan(id(0, 1), &out_cdb(PREEMPT, 1, 24), &list).unwrap();
    assert!(change.record().is_some());
    drop(change);
    assert_eq!((unit.report(0), unit.report(3), unit.stored.clone()), before);
    assert!(unit.out(0, PREEMPT, 1, 5, 6).is_ok());
}

#[test]
fn a_full_table_has_a_record() {
    let mut unit = Unit::new(1);
    let ids: Vec<u8> = (1..128).flat_map(|index| initiator(index).transport_id()).collect();
    unit.send(id(0, 1), REGISTER, 0, &basic(0, 5, SPEC_I_PT | APTPL, &ids)).unwrap();
    let record = unit.stored.clone().unwrap();
    assert!(record.len() <= MAX_RECORD);
    unit.restart();
    assert_eq!(unit.keys(), [5; 128]);
}

#[test]
fn damage_is_detected() {
    let record = persistent().stored.unwrap();
    let restore = |bytes: &[u8]| Reservations::restore(&PORTS, bytes).map(|_| ());
    assert_eq!(restore(&record), Ok(()));
    for length in 0..record.len() {
        assert_eq!(restore(&record[..length]), Err(RecordError::Damaged));
    }
    for bit in 0..record.len() * 8 {
        let mut damaged = record.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(restore(&damaged), Err(RecordError::Damaged), "bit {bit}");
    }
    assert_eq!(restore(&sealed(&[0; MAX_RECORD])), Err(RecordError::Damaged));
}

#[test]
fn inconsistent_records_are_refused() {
    let record = persistent().stored.unwrap();
    let body = &record[..record.len() - 4];
    // Offset and new value: APTPL, type, holder, count, key, name.
    let changes: [(usize, u8); 13] = [
        (6, 0),
        (6, 2),
        (7, 0),
        (7, 2),
        (7, 7),
        (8, 0xff),
        (9, 2),
        (11, 1),
        (11, 3),
        (19, 0),
        (28, 0x1e),
        (29, b','),
        (29, 0xff),
    ];
    for (offset, value) in changes {
        let mut changed = body.to_vec();
        assert_ne!(changed[offset], value);
        changed[offset] = value;
        let restored = Reservations::restore(&PORTS, &sealed(&changed)).map(|_| ());
        assert_eq!(restored, Err(RecordError::Inconsistent), "{offset} {value}");
    }
    let mut twice = body.to_vec();
    let first = body[12..58].to_vec();
    twice[58..].copy_from_slice(&first);
    assert!(Reservations::restore(&PORTS, &sealed(&twice)).is_err(), "one nexus twice");
    let mut version = body.to_vec();
    version[5] = 2;
    assert_eq!(Reservations::restore(&PORTS, &sealed(&version)).map(|_| ()), Err(RecordError::Version(2)));
}

proptest! {
    /// A record with any content and the right checksum is refused, or restores a unit that reports.
    #[test]
    fn hostile_records(changes in prop::collection::vec((0..120usize, any::<u8>()), 1..6), cut in 0..120usize) {
        let record = persistent().stored.unwrap();
        let mut body = record[..record.len() - 4].to_vec();
        for (offset, value) in changes {
            if let Some(byte) = body.get_mut(offset) { *byte = value; }
        }
        if cut > 60 { body.truncate(cut); }
        if let Ok(reservations) = Reservations::restore(&PORTS, &sealed(&body)) {
            for action in 0..4 {
                reservations.report(&in_cdb(action, u16::MAX)).unwrap();
            }
        }
    }
}
