//! Exchanges, byte by byte.

use super::*;
use crate::{
    iser::RemoteBuffer,
    pdu::{Residual, TaskFunction, TaskResult},
};

/// The bytes of hexadecimal digits; spaces and line ends are ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn bhs(text: &str) -> Bhs {
    hex(text).try_into().unwrap()
}

/// The header of the next PDU of a target.
fn sent(t: &mut TargetSession) -> (Bhs, TargetPdu) {
    match t.poll_transmit() {
        Some(TargetTransmit::Pdu(pdu)) => (pdu.encode(), pdu),
        other => panic!("{other:?}"),
    }
}

fn pass(i: &mut InitiatorSession, header: &Bhs, data: &[u8]) -> Placement {
    let placement = i.begin(header, &[], None).unwrap();
    i.finish(data).unwrap();
    placement
}

fn take(t: &mut TargetSession, header: &Bhs) -> Placement {
    let placement = t.begin(header, &[], Advertised::default()).unwrap();
    t.finish(&[]).unwrap();
    placement
}

fn next(i: &mut InitiatorSession) -> Bhs {
    i.poll_transmit().unwrap().encode()
}

#[test]
fn a_read_is_a_command_and_data_in_with_status() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    let mut read = command(Direction::Read, 2560);
    read.cdb = hex("28 00 00000008 00 0005 00 000000000000").try_into().unwrap();
    i.submit(read, None).unwrap();
    let header = bhs("01 c1 0000 00 000000 0000000000000000 00000000 00000a00 00000010 00000020
        28 00 00000008 00 0005 00 000000000000");
    assert_eq!(next(&mut i), header);
    assert_eq!(take(&mut t, &header), Placement::None);
    assert_eq!(events(&mut t), [TargetEvent::Execute { itt: 0, command: read }]);
    t.complete(0, Completion { status: 0, length: 2560, sense: Vec::new() });
    // 1024 + 1024 bytes are a sequence of MaxBurstLength; the rest is another one, with the status. Its task has
    // ended, so MaxCmdSN advances.
    let pdus = [
        (
            "25 00 0000 00 000400 0000000000000000 00000000 ffffffff 00000000 00000011 00000017
          00000000 00000000 00000000",
            0,
            1024,
        ),
        (
            "25 80 0000 00 000400 0000000000000000 00000000 ffffffff 00000000 00000011 00000017
          00000001 00000400 00000000",
            1024,
            1024,
        ),
        (
            "25 81 0000 00 000200 0000000000000000 00000000 ffffffff 00000020 00000011 00000018
          00000002 00000800 00000000",
            2048,
            512,
        ),
    ];
    for (expected, offset, length) in pdus {
        let (header, pdu) = sent(&mut t);
        assert_eq!(header, bhs(expected));
        assert_eq!(pdu.data, Payload::Task { itt: 0, offset, length });
        assert_eq!(pass(&mut i, &header, &[]), Placement::Task { itt: 0, offset, length, excess: 0 });
    }
    assert_eq!((t.poll_transmit(), t.tasks().next()), (None, None));
    let outcome =
        Outcome::Completed { status: 0, sense: Vec::new(), residual: Residual::None, transferred: 2560 };
    assert_eq!(i.poll_event(), Some(InitiatorEvent::Completed { itt: 0, outcome }));
}

#[test]
fn a_write_has_immediate_unsolicited_and_solicited_data() {
    let limits = Parameters { initial_r2t: false, immediate_data: true, first_burst: 1536, ..LIMITS };
    let limits = Parameters { max_outstanding_r2t: 2, ..limits };
    let (mut i, mut t) = (initiator(limits, Transport::Tcp), target(limits, Transport::Tcp));
    let write = Command { lun: 1 << 48, ..command(Direction::Write, 5120) };
    i.submit(write, None).unwrap();
    let header = bhs("01 21 0000 00 000400 0001000000000000 00000000 00001400 00000010 00000020
        28282828282828282828282828282828");
    assert_eq!(next(&mut i), header);
    assert_eq!(take(&mut t, &header), Placement::Task { itt: 0, offset: 0, length: 1024, excess: 0 });
    let header = bhs("05 80 0000 00 000200 0000000000000000 00000000 ffffffff 00000000 00000020 00000000
        00000000 00000400 00000000");
    assert_eq!(next(&mut i), header);
    assert_eq!(i.poll_transmit(), None);
    assert_eq!(events(&mut t).len(), 1);
    t.fetch(0, 5120);
    assert_eq!(t.poll_transmit(), None, "no R2T before the end of the unsolicited data");
    assert_eq!(take(&mut t, &header), Placement::Task { itt: 0, offset: 1024, length: 512, excess: 0 });
    // Two R2Ts, of MaxBurstLength and of the rest.
    let r2ts = [
        "31 80 0000 00 000000 0001000000000000 00000000 00000000 00000020 00000011 00000017
         00000000 00000600 00000800",
        "31 80 0000 00 000000 0001000000000000 00000000 00000001 00000020 00000011 00000017
         00000001 00000e00 00000600",
    ];
    for expected in r2ts {
        let (header, _) = sent(&mut t);
        assert_eq!(header, bhs(expected));
        pass(&mut i, &header, &[]);
    }
    let data = [
        "05 00 0000 00 000400 0001000000000000 00000000 00000000 00000000 00000020 00000000 00000000 00000600",
        "05 80 0000 00 000400 0001000000000000 00000000 00000000 00000000 00000020 00000000 00000001 00000a00",
        "05 00 0000 00 000400 0001000000000000 00000000 00000001 00000000 00000020 00000000 00000000 00000e00",
        "05 80 0000 00 000200 0001000000000000 00000000 00000001 00000000 00000020 00000000 00000001 00001200",
    ];
    for expected in data {
        assert_eq!(events(&mut t), []);
        let header = next(&mut i);
        assert_eq!(header, bhs(&format!("{expected} 00000000")));
        assert!(matches!(take(&mut t, &header), Placement::Task { excess: 0, .. }));
    }
    assert_eq!(events(&mut t), [TargetEvent::DataReady { itt: 0 }]);
    t.complete(0, Completion { status: 0, length: 5120, sense: Vec::new() });
    let (header, pdu) = sent(&mut t);
    let expected = bhs("21 80 0000 00 000000 0000000000000000 00000000 00000000 00000020 00000011 00000018
        00000002 00000000 00000000");
    assert_eq!((header, pdu.ends), (expected, Some(0)));
    pass(&mut i, &header, &[]);
    assert!(matches!(i.poll_event(), Some(InitiatorEvent::Completed { itt: 0, .. })));
}

#[test]
fn a_failed_command_has_sense_data_and_a_residual_count() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    i.submit(command(Direction::Read, 512), None).unwrap();
    take(&mut t, &next(&mut i));
    assert!(t.sense_acknowledged());
    t.complete(0, Completion { status: 2, length: 0, sense: vec![0x70, 0, 5] });
    assert!(!t.sense_acknowledged(), "it is not sent");
    let (header, pdu) = sent(&mut t);
    let expected = bhs("21 82 0002 00 000005 0000000000000000 00000000 00000000 00000020 00000011 00000018
        00000000 00000000 00000200");
    assert_eq!((header, &pdu.data), (expected, &Payload::Bytes(vec![0, 3, 0x70, 0, 5])));
    let placement = pass(&mut i, &header, &[0, 3, 0x70, 0, 5]);
    assert_eq!(placement, Placement::Control { length: 5 });
    let residual = Residual::Underflow(512);
    let outcome = Outcome::Completed { status: 2, sense: vec![0x70, 0, 5], residual, transferred: 0 };
    assert_eq!(i.poll_event(), Some(InitiatorEvent::Completed { itt: 0, outcome }));
    assert!(!t.sense_acknowledged());
    i.submit(command(Direction::None, 0), None).unwrap();
    take(&mut t, &next(&mut i));
    assert!(t.sense_acknowledged(), "the next command acknowledges the status");
}

#[test]
fn a_response_waits_for_the_data_that_is_under_way() {
    let limits = Parameters { initial_r2t: false, ..LIMITS };
    let (mut i, mut t) = (initiator(limits, Transport::Tcp), target(limits, Transport::Tcp));
    i.submit(command(Direction::Write, 3072), None).unwrap();
    take(&mut t, &next(&mut i));
    t.fetch(0, 3072);
    take(&mut t, &next(&mut i));
    let (r2t, _) = sent(&mut t);
    t.complete(0, Completion { status: 2, length: 0, sense: Vec::new() });
    pass(&mut i, &r2t, &[]);
    assert_eq!(t.poll_transmit(), None);
    assert_eq!(take(&mut t, &next(&mut i)), Placement::Discard { length: 1024 });
    assert_eq!(t.poll_transmit(), None);
    take(&mut t, &next(&mut i));
    assert!(matches!(sent(&mut t).1.header, Response::Scsi(_)));
}

#[test]
fn the_length_of_the_cdb_limits_the_data_of_a_write() {
    let limits = Parameters { immediate_data: true, ..LIMITS };
    let mut t = target(limits, Transport::Tcp);
    let mut i = initiator(limits, Transport::Tcp);
    i.submit(command(Direction::Write, 3000), None).unwrap();
    take(&mut t, &next(&mut i));
    t.fetch(0, 1500);
    let (header, pdu) = sent(&mut t);
    assert!(matches!(pdu.header, Response::R2t(r) if (r.offset, r.length) == (1024, 476)));
    pass(&mut i, &header, &[]);
    take(&mut t, &next(&mut i));
    t.complete(0, Completion { status: 0, length: 1500, sense: Vec::new() });
    let (header, pdu) = sent(&mut t);
    assert!(matches!(pdu.header, Response::Scsi(r) if r.residual == Residual::Underflow(1500)));
    pass(&mut i, &header, &[]);
    let event = i.poll_event();
    assert!(
        matches!(
            event,
            Some(InitiatorEvent::Completed { outcome: Outcome::Completed { transferred: 1500, .. }, .. })
        ),
        "{event:?}"
    );
}

#[test]
fn an_iser_read_is_an_rdma_write_and_a_response() {
    let (mut i, mut t) = (initiator(LIMITS, ISER), target(LIMITS, ISER));
    let buffer = RemoteBuffer { stag: 0x501, base: 0x7f00_0000_1000 };
    let mut read = command(Direction::Read, 4096);
    read.cdb = hex("28 00 00000008 00 0008 00 000000000000").try_into().unwrap();
    i.submit(command(Direction::None, 0), None).unwrap();
    take(&mut t, &next(&mut i));
    i.submit(read, Some(buffer)).unwrap();
    let pdu = i.poll_transmit().unwrap();
    let expected = bhs("01 c1 0000 00 000000 0000000000000000 00000001 00001000 00000011 00000020
        28 00 00000008 00 0008 00 000000000000");
    assert_eq!((pdu.encode(), pdu.advertised), (expected, Advertised { read: Some(buffer), write: None }));
    assert_eq!(advertise(&mut t, &pdu.header, 0, pdu.advertised), Ok(Placement::None));
    t.complete(1, Completion { status: 0, length: 4096, sense: Vec::new() });
    let write = TargetTransmit::RdmaWrite { itt: 1, sink: buffer, offset: 0, length: 4096 };
    assert_eq!(t.poll_transmit(), Some(write));
    let (header, pdu) = sent(&mut t);
    assert_eq!(header[..4], hex("21 80 00 00"));
    assert_eq!((pdu.ends, pdu.invalidate), (Some(1), None));
}

#[test]
fn an_iser_write_is_an_rdma_read_of_the_solicited_data() {
    let limits = Parameters { immediate_data: true, ..LIMITS };
    let transport = Transport::Iser { remote_invalidate: true, max_unexpected: 0 };
    let (mut i, mut t) = (initiator(limits, transport), target(limits, transport));
    let buffer = RemoteBuffer { stag: 9, base: 0x10_0000 };
    i.submit(command(Direction::Write, 4096), Some(buffer)).unwrap();
    let pdu = i.poll_transmit().unwrap();
    // The Write Base Offset is the address of the first byte after the immediate data.
    let source = RemoteBuffer { stag: 9, base: 0x10_0400 };
    assert_eq!(pdu.advertised, Advertised { write: Some(source), read: None });
    advertise(&mut t, &pdu.header, 1024, pdu.advertised).unwrap();
    t.fetch(0, 4096);
    let read = TargetEvent::RdmaRead { itt: 0, source, offset: 1024, length: 3072 };
    assert_eq!(events(&mut t)[1..], [read]);
    t.rdma_read_done(0);
    assert_eq!(events(&mut t), [TargetEvent::DataReady { itt: 0 }]);
    t.complete(0, Completion { status: 0, length: 4096, sense: Vec::new() });
    let (header, pdu) = sent(&mut t);
    assert_eq!(pdu.invalidate, Some(9));
    assert_eq!(i.begin(&header, &[], Some(9)), Ok(Placement::None));
    // Immediate data that is all the data needs no buffer.
    i.finish(&[]).unwrap();
    i.submit(command(Direction::Write, 1024), None).unwrap();
    assert_eq!(i.poll_transmit().unwrap().advertised, Advertised::default());
}

#[test]
fn pings_in_both_directions() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    i.ping(b"hello".to_vec()).unwrap();
    let header = bhs("40 80 0000 00 000005 0000000000000000 00000000 ffffffff 00000010 00000020
        00000000000000000000000000000000");
    assert_eq!(next(&mut i), header);
    assert_eq!(t.begin(&header, &[], Advertised::default()), Ok(Placement::Control { length: 5 }));
    t.finish(b"hello").unwrap();
    let (header, pdu) = sent(&mut t);
    let expected = bhs("20 80 0000 00 000005 0000000000000000 00000000 ffffffff 00000020 00000010 00000017
        00000000 00000000 00000000");
    assert_eq!((header, pdu.data), (expected, Payload::Bytes(b"hello".to_vec())));
    pass(&mut i, &header, &[]);
    assert_eq!(i.poll_event(), Some(InitiatorEvent::Pong { itt: 0 }));

    assert!(t.ping() && !t.ping());
    let (header, _) = sent(&mut t);
    let expected = bhs("20 80 0000 00 000000 0000000000000000 ffffffff 00000000 00000021 00000010 00000017
        00000000 00000000 00000000");
    assert_eq!(header, expected);
    pass(&mut i, &header, &[]);
    let header = bhs("40 80 0000 00 000000 0000000000000000 ffffffff 00000000 00000010 00000021
        00000000000000000000000000000000");
    assert_eq!(next(&mut i), header);
    take(&mut t, &header);
    assert!(!t.ping_outstanding() && t.poll_transmit().is_none());
}

#[test]
fn a_task_management_response_waits_for_the_tasks() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    i.submit(command(Direction::Read, 512), None).unwrap();
    i.submit(command(Direction::Read, 512), None).unwrap();
    take(&mut t, &next(&mut i));
    take(&mut t, &next(&mut i));
    events(&mut t);
    i.manage(TaskFunction::LOGICAL_UNIT_RESET, 0).unwrap();
    let header =
        bhs("42 85 0000 00 000000 0000000000000000 00000002 ffffffff 00000012 00000020 00000000 00000000
        0000000000000000");
    assert_eq!(next(&mut i), header);
    take(&mut t, &header);
    assert_eq!(events(&mut t).len(), 3, "Manage and two Aborts");
    t.complete(0, Completion { status: 0, length: 512, sense: Vec::new() });
    t.managed(2, TaskResult::COMPLETE);
    assert_eq!(t.poll_transmit(), None);
    t.complete(1, Completion::default());
    let (header, _) = sent(&mut t);
    let expected = bhs("22 80 0000 00 000000 0000000000000000 00000002 00000000 00000020 00000012 00000019
        00000000 00000000 00000000");
    assert_eq!(header, expected);
    pass(&mut i, &header, &[]);
    let events: Vec<_> = std::iter::from_fn(|| i.poll_event()).collect();
    let aborted = |itt| InitiatorEvent::Completed { itt, outcome: Outcome::Aborted };
    let managed = InitiatorEvent::Managed { itt: 2, result: TaskResult::COMPLETE };
    assert_eq!(events, [aborted(0), aborted(1), managed]);
}

#[test]
fn a_logout_aborts_the_tasks_and_closes() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    i.submit(command(Direction::Read, 512), None).unwrap();
    take(&mut t, &next(&mut i));
    events(&mut t);
    i.logout().unwrap();
    i.submit(command(Direction::Read, 512), None).unwrap_err();
    let header = bhs("46 80 0000 00 000000 0000000000000000 00000001 00010000 00000011 00000020
        00000000000000000000000000000000");
    assert_eq!(next(&mut i), header);
    take(&mut t, &header);
    assert_eq!(events(&mut t), [TargetEvent::Abort { itt: 0 }]);
    assert_eq!(t.poll_transmit(), None);
    t.complete(0, Completion::default());
    let (header, _) = sent(&mut t);
    let expected = bhs("26 80 0000 00 000000 0000000000000000 00000001 00000000 00000020 00000011 00000018
        00000000 00000000 00000000");
    assert_eq!(header, expected);
    assert_eq!(t.poll_transmit(), Some(TargetTransmit::Close));
    pass(&mut i, &header, &[]);
    assert_eq!(i.poll_event(), Some(InitiatorEvent::LoggedOut { time2wait: 0 }));
    let unfinished = Unfinished { itt: 0, command: command(Direction::Read, 512), sent: true };
    assert_eq!(i.unfinished(), [unfinished]);
}

#[test]
fn asynchronous_messages_request_a_logout_and_drop_the_connection() {
    let (mut i, mut t) = (initiator(LIMITS, Transport::Tcp), target(LIMITS, Transport::Tcp));
    assert!(t.request_logout(5) && t.report_event(3, &[0x70, 0, 6]));
    t.drop_connection();
    let (header, _) = sent(&mut t);
    let expected = bhs("32 80 0000 00 000000 0000000000000000 ffffffff 00000000 00000020 00000010 00000017
        01 00 0000 0000 0005 00000000");
    assert_eq!(header, expected);
    pass(&mut i, &header, &[]);
    let (header, _) = sent(&mut t);
    pass(&mut i, &header, &[0, 3, 0x70, 0, 6]);
    let (header, _) = sent(&mut t);
    pass(&mut i, &header, &[]);
    assert_eq!(t.poll_transmit(), Some(TargetTransmit::Close));
    let events: Vec<_> = std::iter::from_fn(|| i.poll_event()).collect();
    let wanted = [
        InitiatorEvent::LogoutRequested { seconds: 5 },
        InitiatorEvent::ScsiEvent { lun: 3, sense: vec![0x70, 0, 6] },
        InitiatorEvent::Dropped { time2wait: 2 },
    ];
    assert_eq!(events, wanted);
    assert_eq!(i.poll_transmit(), None);
}

#[test]
fn an_unknown_opcode_is_rejected_and_the_session_continues() {
    let mut t = target(LIMITS, Transport::Tcp);
    let mut header = [0; 48];
    (header[0], header[7]) = (0x1c, 9);
    assert_eq!(take(&mut t, &header), Placement::Discard { length: 9 });
    let (reject, pdu) = sent(&mut t);
    let expected = bhs("3f 80 0500 00 000030 0000000000000000 ffffffff 00000000 00000020 00000010 00000017
        00000000 00000000 00000000");
    assert_eq!((reject, pdu.data), (expected, Payload::Bytes(header.to_vec())));
    assert_eq!(t.poll_transmit(), None);
}

#[test]
fn sense_data_is_truncated_to_the_data_segment() {
    let limits = Parameters { max_send_data: 8, ..LIMITS };
    let mut t = target(limits, ISER);
    take(&mut t, &next(&mut initiator_with(Direction::None, 0)));
    t.complete(0, Completion { status: 2, length: 0, sense: vec![0x70; 18] });
    let (_, pdu) = sent(&mut t);
    assert_eq!(pdu.data, Payload::Bytes(hex("0006 707070707070")));
}

fn initiator_with(direction: Direction, expected: u32) -> InitiatorSession {
    let mut i = initiator(LIMITS, Transport::Tcp);
    i.submit(command(direction, expected), None).unwrap();
    i
}

#[test]
fn data_is_unsolicited_only_if_it_is_all_of_a_command() {
    let buffer = RemoteBuffer { stag: 7, base: 0x1000 };
    for (transport, limits) in [
        (ISER, UNSOLICITED),
        (ISER, Parameters { initial_r2t: true, ..UNSOLICITED }),
        (Transport::Tcp, UNSOLICITED),
    ] {
        let mut i = initiator(limits, transport).with_whole_unsolicited_data();
        for expected in [1024, 1025] {
            i.submit(command(Direction::Write, expected), Some(buffer)).unwrap();
            let pdu = i.poll_transmit().unwrap();
            let whole = expected == 1024;
            let length = if whole { 1024 } else { 0 };
            assert_eq!(Lengths::of(&pdu.encode()).data, length, "{transport:?}");
            let advertised = (transport == ISER && !whole).then_some(buffer);
            assert_eq!(pdu.advertised, Advertised { write: advertised, read: None });
            assert_eq!(pdu.encode()[1] & 0x80, 0x80, "no Data-Out PDU follows");
        }
        assert!(i.poll_transmit().is_none());
    }
}
