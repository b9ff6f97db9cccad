//! CREATE_SESSION, DESTROY_SESSION, SEQUENCE, BIND_CONN_TO_SESSION.

use millrace_oncrpc::{CallbackQueue, Callbacks};

use super::*;

fn identified(state: &State<u64>) -> ClientId {
    state.exchange_id(&identify("a", 1), S(0)).unwrap().client
}

#[test]
fn create_session_is_executed_once_per_sequence_number() {
    let state = state();
    let id = identified(&state);
    assert_eq!(state.create_session(&create(ClientId { number: 5 }, 1), S(0)), Err(Status::StaleClientid));
    assert_eq!(state.create_session(&create(id, 0), S(0)), Err(Status::SeqMisordered), "nothing to repeat");
    assert_eq!(state.create_session(&create(id, 2), S(0)), Err(Status::SeqMisordered));
    let other = CreateSession { principal: b"user", ..create(id, 1) };
    assert_eq!(state.create_session(&other, S(0)), Err(Status::ClidInuse));
    let first = state.create_session(&create(id, 1), S(0)).unwrap();
    assert_eq!(state.create_session(&create(id, 1), S(0)), Ok(first));
    let second = state.create_session(&create(id, 2), S(0)).unwrap();
    assert_ne!(first.session, second.session);
    assert_eq!(state.create_session(&create(id, 1), S(0)), Err(Status::SeqMisordered));
    assert_eq!(state.create_session(&create(id, 3), S(0)), Err(Status::NoSpc), "the limit is 2 sessions");
    assert_eq!(state.create_session(&create(id, 3), S(0)), Err(Status::NoSpc));
    state.destroy_session(first.session).unwrap();
    assert_eq!(state.create_session(&create(id, 3), S(0)), Err(Status::NoSpc), "a repetition");
    assert!(state.create_session(&create(id, 4), S(0)).is_ok());
}

#[test]
fn the_channels_of_linux_are_granted_as_it_asks() {
    let state = with_limits(Limits { back_channel: true, ..limits() });
    let created = state.create_session(&create(identified(&state), 1), S(0)).unwrap();
    assert_eq!((created.fore, created.back, created.back_channel), (FORE, BACK, true));
    let session = state.session(created.session).unwrap();
    assert_eq!((session.fore(), session.back().unwrap().attributes()), (&FORE, &BACK));
}

#[test]
fn the_fore_channel_keeps_the_limits_of_the_server() {
    let state = state();
    let greedy = ChannelAttributes {
        header_pad: u32::MAX,
        request_bytes: u32::MAX,
        response_bytes: u32::MAX,
        cached_bytes: u32::MAX,
        operations: u32::MAX,
        slots: u32::MAX,
    };
    let args = CreateSession { fore: greedy, back: greedy, ..create(identified(&state), 1) };
    let created = state.create_session(&args, S(0)).unwrap();
    let l = limits();
    let expected = ChannelAttributes {
        header_pad: 0,
        request_bytes: l.request_bytes,
        response_bytes: l.response_bytes,
        cached_bytes: l.cached_bytes,
        operations: l.operations,
        slots: l.slots,
    };
    assert_eq!((created.fore, created.back_channel), (expected, false));
    assert!(state.session(created.session).unwrap().back().is_none());
}

#[test]
fn channels_without_room_for_a_compound_are_refused() {
    let of = |fore, back| {
        let state = with_limits(Limits { back_channel: true, ..limits() });
        let args = CreateSession { fore, back, ..create(identified(&state), 1) };
        let result = state.create_session(&args, S(0)).map(|_| ());
        let next = if result.is_ok() { 2 } else { 1 };
        let again = state.create_session(&create(args.client, next), S(0));
        assert!(again.is_ok(), "a failure does not consume the sequence number");
        result
    };
    let fore = FORE;
    assert_eq!(of(ChannelAttributes { request_bytes: 20, ..fore }, BACK), Err(Status::TooSmall));
    assert_eq!(of(ChannelAttributes { response_bytes: 0, ..fore }, BACK), Err(Status::TooSmall));
    assert_eq!(of(ChannelAttributes { operations: 0, ..fore }, BACK), Err(Status::TooSmall));
    assert_eq!(of(ChannelAttributes { slots: 0, ..fore }, BACK), Err(Status::Inval));
    assert_eq!(of(ChannelAttributes { cached_bytes: 0, ..fore }, BACK), Ok(()));
    assert_eq!(of(fore, ChannelAttributes { operations: 1, ..BACK }), Err(Status::TooSmall));
    assert_eq!(of(fore, ChannelAttributes { slots: 0, ..BACK }), Err(Status::Inval));
    let smallest = ChannelAttributes { request_bytes: 88, response_bytes: 80, operations: 1, ..fore };
    assert_eq!(of(smallest, BACK), Ok(()));
}

#[test]
fn slots_are_granted_as_far_as_their_replies_have_room() {
    let total = 400 * u64::from(FORE.cached_bytes);
    let many = Limits { sessions_per_client: 1000, total_cached_bytes: total, ..limits() };
    let state = with_limits(many);
    let (id, mut sequence) = (identified(&state), 1);
    let mut slots = Vec::new();
    let last = loop {
        match state.create_session(&create(id, sequence), S(0)) {
            Ok(created) => slots.push(created.fore.slots),
            Err(status) => break status,
        }
        sequence += 1;
    };
    assert_eq!(last, Status::Delay, "the client has more than one session");
    assert_eq!(
        slots[..4],
        [35, 31, 27, 24],
        "an eighth of three quarters of the rest, without the slots of clients that may be added"
    );
    assert!(slots.is_sorted_by(|a, b| a >= b) && slots.ends_with(&[1]), "{slots:?}");
    for n in 0..10 {
        let owner = format!("other {n}");
        let other = state.exchange_id(&identify(&owner, 1), S(0)).unwrap().client;
        assert_eq!(state.create_session(&create(other, 1), S(0)).unwrap().fore.slots, 1, "{owner}");
    }
}

#[test]
fn session_ids_differ_and_depend_on_the_secret() {
    let (one, two) = (state(), State::<u64>::new(limits(), Identity { epoch: EPOCH, secret: [4; 16] }));
    let id = |state: &State<u64>| state.create_session(&create(identified(state), 1), S(0)).unwrap().session;
    let (one, two) = (id(&one), id(&two));
    assert_ne!(one.0[..8], two.0[..8], "the client ID");
    assert_ne!(one.0[8..], two.0[8..]);
}

#[test]
fn sequence_checks_the_slot_numbers() {
    let state = state();
    let session = client(&state, "a", S(0));
    let check = |slot, highest_slot| {
        session.sequence(&SequenceRequest { sequence: 1, slot, highest_slot }, 0, S(0)).map(|_| ())
    };
    assert_eq!(check(64, 64), Err(Status::BadSlot));
    assert_eq!(check(u32::MAX, u32::MAX), Err(Status::BadSlot));
    assert_eq!(check(3, 2), Err(Status::BadHighSlot));
    assert_eq!(check(3, 64), Err(Status::BadHighSlot));
    assert_eq!(check(3, 63), Ok(()));
    assert_eq!(check(63, 63), Ok(()));
}

#[test]
fn sequence_replies_with_its_arguments_and_the_slots() {
    let state = state();
    let session = client(&state, "a", S(0));
    let Ok(Sequence::Execute(execution, reply)) = session.sequence(&request(5, 1), 9, S(0)) else { panic!() };
    let expected = SequenceOk {
        session: session.id(),
        sequence: 1,
        slot: 5,
        highest_slot: 63,
        target_highest_slot: 63,
        status_flags: 0,
    };
    assert_eq!(reply, expected);
    execution.finish(None);
    assert!(
        matches!(session.sequence(&request(5, 1), 9, S(0)), Ok(Sequence::Uncached(reply)) if reply == expected)
    );
}

#[test]
fn a_reply_is_kept_for_every_connection() {
    let state = state();
    let session = client(&state, "a", S(0));
    let Ok(Sequence::Execute(execution, _)) = session.sequence(&request(0, 1), 9, S(0)) else { panic!() };
    let other = state.session(session.id()).unwrap();
    assert_eq!(other.sequence(&request(0, 1), 9, S(0)).map(|_| ()), Err(Status::Delay));
    drop(session);
    execution.finish(Some(42));
    assert!(matches!(other.sequence(&request(0, 1), 9, S(0)), Ok(Sequence::Replay(42))));
}

#[test]
fn a_request_that_is_dropped_is_not_executed_again() {
    let state = state();
    let session = client(&state, "a", S(0));
    drop(session.sequence(&request(0, 1), 9, S(0)));
    assert!(matches!(session.sequence(&request(0, 1), 9, S(0)), Ok(Sequence::Uncached(_))));
    assert!(matches!(session.sequence(&request(0, 2), 9, S(0)), Ok(Sequence::Execute(..))));
}

#[test]
fn a_destroyed_session_refuses_requests_and_drops_replies() {
    let state = State::<Arc<()>>::new(limits(), Identity { epoch: EPOCH, secret: [3; 16] });
    let id = state.exchange_id(&identify("a", 1), S(0)).unwrap().client;
    let created = state.create_session(&create(id, 1), S(0)).unwrap();
    let session = state.session(created.session).unwrap();
    let reply = Arc::new(());
    let Ok(Sequence::Execute(first, _)) = session.sequence(&request(0, 1), 9, S(0)) else { panic!() };
    let Ok(Sequence::Execute(second, _)) = session.sequence(&request(1, 1), 9, S(0)) else { panic!() };
    first.finish(Some(reply.clone()));
    assert_eq!(Arc::strong_count(&reply), 2);
    assert_eq!(state.destroy_session(session.id()), Ok(()));
    assert_eq!(Arc::strong_count(&reply), 1);
    second.finish(Some(reply.clone()));
    assert_eq!(Arc::strong_count(&reply), 1);
    assert_eq!(session.sequence(&request(0, 1), 9, S(0)).map(|_| ()), Err(Status::BadSession));
    assert_eq!(session.bind(Direction::Fore), Err(Status::BadSession));
    assert_eq!(state.destroy_session(session.id()), Err(Status::BadSession));
    assert!(state.session(session.id()).is_none());
}

#[test]
fn a_connection_gets_the_channels_that_the_session_has() {
    use Direction::*;
    for (back_channel, expected) in [
        (false, [Ok(Fore), Err(Status::Inval), Ok(Fore), Ok(Fore), Err(Status::Inval)]),
        (true, [Ok(Fore), Ok(Back), Ok(Both), Ok(Both), Err(Status::Inval)]),
    ] {
        let state = with_limits(Limits { back_channel, ..limits() });
        let session = client(&state, "a", S(0));
        assert_eq!([Fore, Back, ForeOrBoth, BackOrBoth, Both].map(|wanted| session.bind(wanted)), expected);
    }
}

#[test]
fn a_session_without_callbacks_may_get_them_later() {
    let state = with_limits(Limits { back_channel: true, ..limits() });
    let args = CreateSession { back_channel: false, ..create(identified(&state), 1) };
    let created = state.create_session(&args, S(0)).unwrap();
    assert!(!created.back_channel);
    let session = state.session(created.session).unwrap();
    let back = session.back().unwrap();
    assert_eq!((session.path_flags(), back.is_up()), (0, false));
    assert_eq!(session.bind(Direction::Back), Ok(Direction::Back));
    let connection = Callbacks::new((Ipv4Addr::LOCALHOST, 1).into());
    back.add(&connection);
    assert_eq!((session.path_flags(), back.is_up()), (0, true));
    drop(CallbackQueue::new(connection));
    assert_eq!((session.path_flags(), back.is_up()), (0x201, false));
}

#[test]
fn sequence_reports_back_channels_without_connection() {
    let state = with_limits(Limits { back_channel: true, ..limits() });
    let id = identified(&state);
    let created = [1, 2].map(|n| state.create_session(&create(id, n), S(0)).unwrap().session);
    let sessions = created.map(|id| state.session(id).unwrap());
    let mut sequence = 0;
    let mut flags = |session: usize| {
        sequence += 1;
        match sessions[session].sequence(&request(0, sequence), 0, S(0)).unwrap() {
            Sequence::Execute(execution, reply) => {
                execution.finish(None);
                reply.status_flags
            }
            other => panic!("{other:?}"),
        }
    };
    // CB_PATH_DOWN concerns all sessions of the client, CB_PATH_DOWN_SESSION one.
    assert_eq!(flags(0), 0x201);
    let connection = Callbacks::new((Ipv4Addr::LOCALHOST, 1).into());
    sessions[1].back().unwrap().add(&connection);
    assert_eq!(flags(0), 0x200);
    sessions[0].back().unwrap().add(&connection);
    assert_eq!(flags(0), 0);
    drop(CallbackQueue::new(connection));
    assert_eq!(flags(0), 0x201);
    state.destroy_session(sessions[1].id()).unwrap();
    assert_eq!(flags(0), 0x201);
    assert!(state.callback(id).unwrap().slot().is_none());
}
