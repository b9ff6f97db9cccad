//! Parameter lists that do not have their format.

use millrace_scsi::reservation::{MAX_PARAMETER_LIST, Refusal};
use proptest::prelude::*;

use super::common::*;

fn plan(unit: &Unit, action: u8, length: usize, list: &[u8]) -> Result<(), Refusal> {
    unit.reservations.plan(id(0, 1), &out_cdb(action, 1, length), list).map(|_| ())
}

#[test]
fn the_length_of_the_parameter_list() {
    let mut unit = Unit::new(1);
    unit.register(0, 5);
    unit.out(0, RESERVE, 1, 5, 0).unwrap();
    let error = Err(Refusal::ParameterListLength);
    let list = basic(5, 5, 0, &[]);
    let long = [&list[..], &[0; 100]].concat();
    for action in 0..8 {
        for length in 0..24 {
            assert_eq!(plan(&unit, action, length, &list), error, "{action} {length}");
            assert_eq!(plan(&unit, action, 24, &list[..length]), error, "fewer bytes than the CDB says");
        }
        if action != REGISTER_AND_MOVE {
            for length in 25..60 {
                assert_eq!(plan(&unit, action, length, &long), error, "{action} {length}");
            }
        }
    }
    // More data than the length in the CDB are ignored.
    assert_eq!(plan(&unit, RESERVE, 24, &long), Ok(()));
    let list = vec![0; MAX_PARAMETER_LIST + 1];
    assert_eq!(plan(&unit, REGISTER_AND_MOVE, list.len(), &list), error);
}

#[test]
fn the_length_of_the_transport_ids() {
    let unit = Unit::new(1);
    let id = initiator(1).transport_id();
    let list = basic(0, 5, SPEC_I_PT, &id);
    assert_eq!(plan(&unit, REGISTER, list.len(), &list), Ok(()));
    for length in 0..list.len() {
        assert_eq!(plan(&unit, REGISTER, length, &list), Err(Refusal::ParameterListLength), "{length}");
    }
    for cut in 1..id.len() {
        let list = basic(0, 5, SPEC_I_PT, &id[..cut]);
        assert_eq!(plan(&unit, REGISTER, list.len(), &list), Err(Refusal::InvalidFieldInParameterList));
    }
    let mut list = list;
    list[24] = 0xff;
    assert_eq!(plan(&unit, REGISTER, list.len(), &list), Err(Refusal::ParameterListLength));
}

#[test]
fn malformed_transport_ids() {
    let mut unit = Unit::new(1);
    unit.register(0, 5);
    unit.out(0, RESERVE, 1, 5, 0).unwrap();
    let id = |head: [u8; 4], text: &[u8]| [&head, text].concat();
    let malformed = [
        id([0x46, 0, 0, 20], b"a,i,0x000000000000\0\0"),     // SAS
        id([0x85, 0, 0, 20], b"a,i,0x000000000000\0\0"),     // format 10b
        id([0x45, 0, 0, 16], b"a,i,0x00000000\0\0"),         // short
        id([0x45, 0, 0, 22], b"a,i,0x000000000000\0\0\0\0"), // no multiple of four
        id([0x45, 0, 0, 20], b"a,i,0x0000000000000\0"),      // 13 digits
        id([0x45, 0, 0, 20], b"a,i,0x00000000000000"),       // no NUL
        id([0x45, 0, 0, 20], b"a,i,0x\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        id([0x45, 0, 0, 20], b"a,i,0x+1\0\0\0\0\0\0\0\0\0\0\0\0"),
        id([0x45, 0, 0, 20], b"abcdefghijklmnopqrs\0"), // no ISID
        id([0x45, 0, 0, 20], b",i,0x000000000000\0\0\0"), // no name
        id([0x45, 0, 0, 20], b"\xff,i,0x000000000000\0\0"),
        id([0x45, 0, 0, 20], b"a,i,0x000000000000\0\0\0"), // a byte after it
    ];
    for bytes in malformed {
        let list = moving(5, 6, 0, 1, &bytes);
        let planned = plan(&unit, REGISTER_AND_MOVE, list.len(), &list);
        assert_eq!(planned, Err(Refusal::InvalidFieldInParameterList), "{bytes:?}");
    }
    // Fewer digits than 12 are a number, and the case of the digits and of the name has no meaning.
    unit.attach(1, 1);
    let short = id([0x45, 0, 0, 44], b"iqn.2024-01.org.Example:host1,i,0x400000010001\0\0");
    let short = [&short[..3], &[48], &short[4..]].concat();
    assert!(unit.send(super::common::id(0, 1), REGISTER_AND_MOVE, 0, &moving(5, 6, 0, 1, &short)).is_ok());
    assert_eq!(unit.out(1, RELEASE, 1, 6, 0).map(|_| ()), Ok(()));
    assert_eq!(unit.reservation(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any CDB and any bytes: no panic, and a refused command changes nothing.
    #[test]
    fn any_bytes(cdb: [u8; 10], short in any::<bool>(), mut list in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut unit = Unit::new(2);
        unit.register(0, 0x0505_0505_0505_0505);
        unit.out(0, RESERVE, 1, 0x0505_0505_0505_0505, 0).unwrap();
        let mut cdb = cdb;
        if short {
            cdb[5..7].fill(0);
            cdb[7..9].copy_from_slice(&u16::try_from(list.len()).unwrap().to_be_bytes());
        }
        if let Some(key) = list.get_mut(..8) { key.fill(5); }
        let before = unit.report(3);
        if let Ok(change) = unit.reservations.plan(id(0, 1), &cdb, &list) {
            unit.commit(change);
        } else {
            prop_assert_eq!(before, unit.report(3));
        }
        let _ = unit.reservations.report(&cdb);
    }

    /// A valid list of TransportIDs with changed bytes.
    #[test]
    fn damaged_lists(changes in prop::collection::vec((0..140usize, any::<u8>()), 1..8), action in 0..8u8) {
        let mut unit = Unit::new(2);
        let ids = [initiator(1).transport_id(), initiator(2).transport_id()].concat();
        let mut list = basic(0, 5, SPEC_I_PT, &ids);
        if action == REGISTER_AND_MOVE {
            unit.register(0, 5);
            unit.out(0, RESERVE, 1, 5, 0).unwrap();
            list = moving(5, 5, 0, 1, &initiator(1).transport_id());
        }
        for (offset, value) in changes {
            if let Some(byte) = list.get_mut(offset) { *byte = value; }
        }
        let _ = unit.send(id(0, 1), action, 1, &list);
        unit.report(3);
    }
}
