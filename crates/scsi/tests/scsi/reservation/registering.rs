//! REGISTER, REGISTER AND IGNORE EXISTING KEY and REGISTER AND MOVE (SPC-4 tables 67 to 70).

use millrace_scsi::reservation::{Effects, MAX_REGISTRATIONS, Refusal};

use super::common::*;

const QUIET: Effects = Effects { attentions: Vec::new(), aborted: Vec::new() };

#[test]
fn register() {
    let mut unit = Unit::new(1);
    assert_eq!(unit.out(0, REGISTER, 0xff, 0, 0), Ok(QUIET), "unregistered: nothing");
    assert_eq!(unit.generation(), 0);
    assert_eq!(unit.out(0, REGISTER, 0, 5, 6), Err(Refusal::Conflict));
    assert_eq!(unit.out(0, REGISTER, 0xff, 0, 5), Ok(QUIET), "SCOPE and TYPE are ignored");
    assert_eq!((unit.generation(), unit.keys()), (1, vec![5]));
    assert_eq!(unit.out(0, REGISTER, 0, 0, 6), Err(Refusal::Conflict));
    assert_eq!(unit.out(0, REGISTER, 0, 6, 6), Err(Refusal::Conflict));
    assert_eq!(unit.out(0, REGISTER, 0, 5, 6), Ok(QUIET));
    assert_eq!((unit.generation(), unit.keys()), (2, vec![6]));
    assert_eq!(unit.out(0, REGISTER, 0, 6, 0), Ok(QUIET));
    assert_eq!((unit.generation(), unit.keys()), (3, vec![]));
}

#[test]
fn register_and_ignore_existing_key() {
    let mut unit = Unit::new(1);
    assert_eq!(unit.out(0, REGISTER_AND_IGNORE, 0, 77, 0), Ok(QUIET));
    assert_eq!(unit.generation(), 0);
    assert_eq!(unit.out(0, REGISTER_AND_IGNORE, 0, 77, 5), Ok(QUIET));
    assert_eq!(unit.out(0, REGISTER_AND_IGNORE, 0, 77, 6), Ok(QUIET));
    assert_eq!((unit.generation(), unit.keys()), (2, vec![6]));
    assert_eq!(unit.out(0, REGISTER_AND_IGNORE, 0, 77, 0), Ok(QUIET));
    assert_eq!((unit.generation(), unit.keys()), (3, vec![]));
    let list = basic(0, 1, SPEC_I_PT, &initiator(1).transport_id());
    assert_eq!(unit.send(id(0, 1), REGISTER_AND_IGNORE, 0, &list), Err(Refusal::InvalidFieldInParameterList));
}

#[test]
fn a_registration_survives_the_loss_of_the_nexus() {
    let mut unit = Unit::new(1);
    unit.register(0, 5);
    unit.out(0, RESERVE, 3, 5, 0).unwrap();
    unit.reservations.detach(id(0, 1));
    assert_eq!(unit.reservation(), Some((5, 3)));
    let again = millrace_scsi::reservation::NexusId(1000);
    unit.reservations.attach(again, nexus(0, 1));
    assert_eq!(unit.send(again, RELEASE, 3, &basic(5, 0, 0, &[])), Ok(QUIET));
    assert_eq!(unit.reservation(), None);
}

#[test]
fn all_target_ports() {
    let mut unit = Unit::new(1);
    unit.attach(0, 2);
    unit.send(id(0, 2), REGISTER, 0, &basic(0, 5, ALL_TG_PT, &[])).unwrap();
    assert_eq!((unit.generation(), unit.keys()), (1, vec![5, 5]));
    assert_eq!(unit.out(0, REGISTER, 0, 5, 6), Ok(QUIET), "only port 1");
    // The request fails through port 1, so no registration changes.
    let list = basic(5, 7, ALL_TG_PT, &[]);
    assert_eq!(unit.send(id(0, 2), REGISTER, 0, &list), Err(Refusal::Conflict));
    assert_eq!(unit.keys(), [5, 6]);
    unit.send(id(0, 2), REGISTER_AND_IGNORE, 0, &list).unwrap();
    assert_eq!(unit.keys(), [7, 7]);
    unit.send(id(0, 2), REGISTER, 0, &basic(7, 0, ALL_TG_PT, &[])).unwrap();
    assert_eq!(unit.keys(), []);
}

#[test]
fn specified_initiator_ports() {
    let mut unit = Unit::new(3);
    let ids =
        [initiator(1).transport_id(), initiator(2).transport_id(), initiator(0).transport_id()].concat();
    let list = basic(0, 5, SPEC_I_PT, &ids);
    assert_eq!(unit.send(id(0, 1), REGISTER, 0, &list), Ok(QUIET));
    assert_eq!((unit.generation(), unit.keys()), (1, vec![5, 5, 5]));
    assert_eq!(unit.out(2, RESERVE, 1, 5, 0), Ok(QUIET));
    // Registered: with a matching key only without SPEC_I_PT.
    let list = basic(5, 6, SPEC_I_PT, &[]);
    assert_eq!(unit.send(id(0, 1), REGISTER, 0, &list), Err(Refusal::InvalidFieldInParameterList));
    // Another initiator port cannot be registered again, and then none is.
    unit.out(0, REGISTER, 0, 5, 0).unwrap();
    let list = basic(0, 6, SPEC_I_PT, &[initiator(7).transport_id(), initiator(1).transport_id()].concat());
    assert_eq!(unit.send(id(0, 1), REGISTER, 0, &list), Err(Refusal::InvalidFieldInParameterList));
    assert_eq!(unit.keys(), [5, 5]);
    // Ports that are not present can be registered, with all target ports.
    let list = basic(0, 6, SPEC_I_PT | ALL_TG_PT, &initiator(7).transport_id());
    assert_eq!(unit.send(id(0, 1), REGISTER, 0, &list), Ok(QUIET));
    assert_eq!(unit.keys(), [5, 5, 6, 6, 6, 6]);
}

#[test]
fn a_transport_id_of_a_node_registers_its_present_ports() {
    let mut unit = Unit::new(3);
    let node = |index: u8| {
        let mut id = b"\x05\0\0\x20IQN.2024-01.org.example:host".to_vec();
        id.extend([b'0' + index, 0, 0, 0]);
        id
    };
    assert_eq!(unit.send(id(0, 1), REGISTER, 0, &basic(0, 5, SPEC_I_PT, &node(1))), Ok(QUIET));
    assert_eq!(unit.keys(), [5, 5]);
    assert_eq!(unit.out(1, RESERVE, 1, 5, 0), Ok(QUIET));
    let absent = basic(0, 5, SPEC_I_PT, &node(8));
    assert_eq!(unit.send(id(2, 1), REGISTER, 0, &absent), Err(Refusal::InvalidFieldInParameterList));
    let to_node = moving(5, 6, 0, 1, &node(0));
    assert_eq!(
        unit.send(id(1, 1), REGISTER_AND_MOVE, 0, &to_node),
        Err(Refusal::InvalidFieldInParameterList)
    );
}

#[test]
fn registrations_are_bounded() {
    let mut unit = Unit::new(0);
    for index in 0..=u8::try_from(MAX_REGISTRATIONS).unwrap() {
        unit.attach(index, 1);
    }
    let full = u8::try_from(MAX_REGISTRATIONS).unwrap();
    (0..full).for_each(|index| unit.register(index, 5));
    assert_eq!(unit.out(full, REGISTER, 0, 0, 5), Err(Refusal::InsufficientRegistrationResources));
    assert_eq!(unit.out(0, REGISTER, 0, 5, 6), Ok(QUIET), "the key of a registration can change");
    // REGISTER AND MOVE needs a place, which UNREG provides.
    unit.out(0, RESERVE, 1, 6, 0).unwrap();
    let id_full = initiator(full).transport_id();
    let (keep, unregister) = (moving(6, 7, 0, 1, &id_full), moving(6, 7, 2, 1, &id_full));
    assert_eq!(
        unit.send(id(0, 1), REGISTER_AND_MOVE, 0, &keep),
        Err(Refusal::InsufficientRegistrationResources)
    );
    assert_eq!(unit.send(id(0, 1), REGISTER_AND_MOVE, 0, &unregister), Ok(QUIET));
    assert_eq!((unit.keys().len(), unit.reservation()), (MAX_REGISTRATIONS, Some((7, 1))));
    // With SPEC_I_PT no registration is made if not all are.
    unit.out(1, REGISTER, 0, 5, 0).unwrap();
    let list = basic(0, 5, SPEC_I_PT, &initiator(200).transport_id());
    assert_eq!(unit.send(id(1, 1), REGISTER, 0, &list), Err(Refusal::InsufficientRegistrationResources));
    assert_eq!(unit.keys().len(), MAX_REGISTRATIONS - 1);
}

#[test]
fn register_and_move() {
    let mut unit = Unit::new(3);
    let to_1 = |key, new_key, bits, port| moving(key, new_key, bits, port, &initiator(1).transport_id());
    let send = |unit: &mut Unit, index, list: &[u8]| unit.send(id(index, 1), REGISTER_AND_MOVE, 0xff, list);
    assert_eq!(send(&mut unit, 0, &to_1(5, 6, 0, 1)), Err(Refusal::Conflict), "unregistered");
    unit.register(0, 5);
    unit.register(2, 8);
    assert_eq!(send(&mut unit, 0, &to_1(5, 6, 0, 1)), Err(Refusal::InvalidFieldInCdb), "no reservation");
    unit.out(0, RESERVE, 7, 5, 0).unwrap();
    assert_eq!(send(&mut unit, 0, &to_1(5, 6, 0, 1)), Err(Refusal::Conflict), "all registrants");
    unit.out(0, RELEASE, 7, 5, 0).unwrap();
    unit.out(0, RESERVE, 6, 5, 0).unwrap();
    assert_eq!(send(&mut unit, 2, &to_1(8, 6, 0, 1)), Err(Refusal::Conflict), "not the holder");
    assert_eq!(send(&mut unit, 0, &to_1(9, 6, 0, 1)), Err(Refusal::Conflict), "wrong key");
    for list in [to_1(5, 0, 0, 1), to_1(5, 6, 0, 3), moving(5, 6, 0, 2, &initiator(0).transport_id())] {
        assert_eq!(send(&mut unit, 0, &list), Err(Refusal::InvalidFieldInParameterList));
    }
    assert_eq!(send(&mut unit, 0, &to_1(5, 6, 0, 1)), Ok(QUIET));
    assert_eq!((unit.generation(), unit.reservation(), unit.keys()), (3, Some((6, 6)), vec![5, 8, 6]));
    let to_2 = moving(6, 9, 2, 1, &initiator(2).transport_id());
    assert_eq!(send(&mut unit, 1, &to_2), Ok(QUIET), "UNREG, to a registered nexus");
    assert_eq!((unit.generation(), unit.reservation(), unit.keys()), (4, Some((9, 6)), vec![5, 9]));
}
