//! Initiators that violate the protocol: each violation is an error of the right type.

use super::*;
use crate::{
    iser::RemoteBuffer,
    pdu::{
        DataOut, Invalid, LogoutReason, LogoutRequest, NopOut, RESERVED_TAG, RejectReason, RequestNumbers,
        Residual, ScsiCommand, TaskAttribute, TaskFunction, TaskRequest, TaskResult, TextRequest,
    },
};

fn scsi(itt: u32, cmd_sn: u32, read: bool, write: bool, expected: u32) -> ScsiCommand {
    ScsiCommand {
        immediate: false,
        last: true,
        read,
        write,
        attribute: TaskAttribute::SIMPLE,
        lun: 0,
        itt,
        expected,
        numbers: RequestNumbers { cmd_sn, exp_stat_sn: 0x20 },
        cdb: [0; 16],
    }
}

fn data_out(itt: u32, ttt: u32, data_sn: u32, offset: u32, last: bool) -> Request {
    Request::DataOut(DataOut { last, lun: 0, itt, ttt, exp_stat_sn: 0x20, data_sn, offset })
}

fn nop(itt: u32, ttt: u32, numbers: RequestNumbers) -> Request {
    Request::NopOut(NopOut { immediate: true, lun: 0, itt, ttt, numbers })
}

/// A target with a write of 4096 bytes whose first R2T (tag 0, 2048 bytes) was sent.
fn writing() -> TargetSession {
    let mut t = target(LIMITS, Transport::Tcp);
    request(&mut t, &Request::ScsiCommand(scsi(1, 0x10, false, true, 4096)), 0).unwrap();
    t.fetch(1, 4096);
    assert!(matches!(transmits(&mut t)[..], [TargetTransmit::Pdu(_)]));
    t
}

/// The reason of the Reject that a target sends before it closes.
fn reject_reason(t: &mut TargetSession) -> RejectReason {
    match &transmits(t)[..] {
        [TargetTransmit::Pdu(TargetPdu { header: Response::Reject(r), .. }), TargetTransmit::Close] => {
            r.reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_outside_of_the_window_are_ignored_and_gaps_end_the_connection() {
    let mut t = target(LIMITS, Transport::Tcp);
    for cmd_sn in [0x0f, 0x18, 0x10 ^ 1 << 31] {
        let placement = request(&mut t, &Request::ScsiCommand(scsi(1, cmd_sn, false, true, 512)), 512);
        assert_eq!(placement, Ok(Placement::Discard { length: 512 }), "{cmd_sn:#x}");
    }
    assert!(events(&mut t).is_empty() && t.tasks().next().is_none());
    let error = request(&mut t, &Request::ScsiCommand(scsi(1, 0x12, true, false, 512)), 0);
    assert_eq!(error, Err(Violation::CommandGap { expected: 0x10, received: 0x12 }));
    assert_eq!(reject_reason(&mut t), RejectReason::PROTOCOL_ERROR);
    let placement = request(&mut t, &Request::ScsiCommand(scsi(1, 0x10, false, true, 512)), 9);
    assert_eq!(placement, Ok(Placement::Discard { length: 9 }), "after the end");
}

#[test]
fn a_tag_in_use_is_rejected_and_the_first_task_continues() {
    let mut t = target(LIMITS, Transport::Tcp);
    request(&mut t, &Request::ScsiCommand(scsi(1, 0x10, true, false, 512)), 0).unwrap();
    request(&mut t, &Request::ScsiCommand(scsi(1, 0x11, true, false, 512)), 0).unwrap();
    assert_eq!(events(&mut t).len(), 1);
    let rejects = transmits(&mut t);
    assert!(matches!(&rejects[..], [TargetTransmit::Pdu(TargetPdu { header: Response::Reject(r), .. })]
        if r.reason == RejectReason::TASK_IN_PROGRESS && r.numbers.exp_cmd_sn == 0x12));
    t.complete(1, Completion { status: 0, length: 512, sense: Vec::new() });
    assert_eq!(transmits(&mut t).len(), 1);
}

#[test]
fn bidirectional_commands_and_extended_cdbs_end_with_illegal_request() {
    let mut t = target(UNSOLICITED, Transport::Tcp);
    let placement = request(&mut t, &Request::ScsiCommand(scsi(1, 0x10, true, true, 512)), 512);
    assert_eq!(placement, Ok(Placement::Discard { length: 512 }));
    let bhs = Request::ScsiCommand(scsi(2, 0x11, true, false, 512)).encode(0);
    t.begin(&bhs, &[0, 5, 1, 0, 1, 2, 3, 4], Advertised::default()).unwrap();
    t.finish(&[]).unwrap();
    assert_eq!(events(&mut t), []);
    let sent = transmits(&mut t);
    for (transmit, code) in sent.iter().zip([0x24, 0x20]) {
        let TargetTransmit::Pdu(TargetPdu { header: Response::Scsi(r), data: Payload::Bytes(data), .. }) =
            transmit
        else {
            panic!("{transmit:?}");
        };
        assert_eq!((r.status, r.residual, data[4], data[14]), (2, Residual::Underflow(512), 5, code));
    }
    assert_eq!(sent.len(), 2);
}

#[test]
fn a_command_without_a_direction_or_length_has_no_data() {
    let mut t = target(UNSOLICITED, Transport::Tcp);
    request(&mut t, &Request::ScsiCommand(scsi(1, 0x10, true, false, 0)), 0).unwrap();
    request(&mut t, &Request::ScsiCommand(scsi(2, 0x11, false, false, u32::MAX)), 0).unwrap();
    for event in events(&mut t) {
        assert!(matches!(event, TargetEvent::Execute { command: Command { expected: 0, .. }, .. }));
    }
    t.complete(1, Completion { status: 0, length: u64::MAX, sense: Vec::new() });
    let sent = transmits(&mut t);
    assert!(matches!(&sent[..], [TargetTransmit::Pdu(TargetPdu { header: Response::Scsi(r), .. })]
        if r.residual == Residual::Overflow(u32::MAX)));
    let error = request(&mut t, &Request::ScsiCommand(scsi(3, 0x12, false, true, 0)), 4);
    assert_eq!(error, Err(Violation::UnsolicitedData { itt: 3, length: 4, maximum: 0 }));
}

#[test]
fn unsolicited_data_obeys_the_negotiated_limits() {
    let write =
        |last, expected| Request::ScsiCommand(ScsiCommand { last, ..scsi(1, 0x10, false, true, expected) });
    let error = request(&mut target(LIMITS, Transport::Tcp), &write(true, 4096), 1);
    assert_eq!(error, Err(Violation::UnsolicitedData { itt: 1, length: 1, maximum: 0 }));
    let error = request(&mut target(LIMITS, Transport::Tcp), &write(false, 4096), 0);
    assert_eq!(error, Err(Violation::Unexpected("SCSI Command that announces unsolicited data")));
    let error = request(&mut target(UNSOLICITED, Transport::Tcp), &write(true, 100), 101);
    assert_eq!(error, Err(Violation::UnsolicitedData { itt: 1, length: 101, maximum: 100 }));
    let limits = Parameters { max_receive_data: 4096, ..UNSOLICITED };
    let mut t = target(limits, Transport::Tcp);
    request(&mut t, &write(false, 4096), 1000).unwrap();
    let error = request(&mut t, &data_out(1, RESERVED_TAG, 0, 1000, true), 25);
    assert_eq!(error, Err(Violation::UnsolicitedData { itt: 1, length: 1025, maximum: 1024 }));
    let mut t = target(limits, Transport::Tcp);
    request(&mut t, &write(true, 4096), 1000).unwrap();
    let error = request(&mut t, &data_out(1, RESERVED_TAG, 0, 1000, true), 24);
    assert_eq!(error, Err(Violation::Unexpected("unsolicited Data-Out PDU")));
}

#[test]
fn solicited_data_answers_the_r2t_exactly() {
    let cases = [
        (data_out(1, 7, 0, 0, false), 512, Violation::TransferTag(7)),
        (data_out(1, 0, 1, 0, false), 512, Violation::DataNumber { itt: 1, expected: 0, received: 1 }),
        (data_out(1, 0, 0, 512, false), 512, Violation::DataOffset { itt: 1, expected: 0, received: 512 }),
        (data_out(1, 0, 0, 0, true), 512, Violation::Final { itt: 1, missing: 1536 }),
    ];
    for (pdu, length, error) in cases {
        let mut t = writing();
        assert_eq!(request(&mut t, &pdu, length), Err(error));
        assert_eq!(reject_reason(&mut t), RejectReason::PROTOCOL_ERROR);
    }
    let mut t = writing();
    request(&mut t, &data_out(1, 0, 0, 0, false), 1024).unwrap();
    request(&mut t, &data_out(1, 0, 1, 1024, false), 1000).unwrap();
    let error = request(&mut t, &data_out(1, 0, 2, 2024, false), 25);
    assert_eq!(error, Err(Violation::DataLength { itt: 1, length: 25, maximum: 24 }));
    let mut t = writing();
    request(&mut t, &data_out(1, 0, 0, 0, false), 1024).unwrap();
    let error = request(&mut t, &data_out(1, 0, 1, 1024, false), 1024);
    assert_eq!(error, Err(Violation::Final { itt: 1, missing: 0 }), "the sequence has no end");
    let error = request(&mut writing(), &data_out(1, 0, 0, 0, false), 1025);
    assert_eq!(error, Err(Invalid::DataLength { length: 1025, maximum: 1024 }.into()));
}

/// ABORT TASK for the task `referenced`, whose command has the number `ref_cmd_sn`.
fn abort(referenced: u32, ref_cmd_sn: u32) -> Request {
    Request::Task(TaskRequest {
        immediate: true,
        function: TaskFunction::ABORT_TASK,
        lun: 0,
        itt: 9,
        referenced,
        numbers: RequestNumbers { cmd_sn: 0x13, exp_stat_sn: 0x20 },
        ref_cmd_sn,
        exp_data_sn: 0,
    })
}

#[test]
fn data_of_an_aborted_task_is_discarded() {
    let mut t = writing();
    request(&mut t, &abort(1, 0x10), 0).unwrap();
    assert_eq!(events(&mut t).last(), Some(&TargetEvent::Abort { itt: 1 }));
    let late = |t: &mut TargetSession| request(t, &data_out(1, 0, 0, 0, false), 512);
    assert_eq!(late(&mut t), Ok(Placement::Discard { length: 512 }));
    assert_eq!(transmits(&mut t), []);
    t.complete(1, Completion::default());
    let results = |t: &mut TargetSession| match &transmits(t)[..] {
        [TargetTransmit::Pdu(TargetPdu { header: Response::Task(r), .. })] => {
            (r.result, r.numbers.exp_cmd_sn)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(results(&mut t), (TaskResult::COMPLETE, 0x11));
    assert_eq!(late(&mut t), Ok(Placement::Discard { length: 512 }), "after the end of the task");
    // A task that does not exist, before and inside of the window.
    request(&mut t, &abort(77, 0x10), 0).unwrap();
    assert_eq!(results(&mut t), (TaskResult::NO_TASK, 0x11));
    request(&mut t, &abort(77, 0x11), 0).unwrap();
    assert_eq!(results(&mut t), (TaskResult::COMPLETE, 0x12), "the command is accounted for");
}

#[test]
fn iser_commands_advertise_the_buffers_that_they_need() {
    let buffer = |base| Some(RemoteBuffer { stag: 1, base });
    let read = Request::ScsiCommand(scsi(1, 0x10, true, false, 512));
    let write = Request::ScsiCommand(scsi(1, 0x10, false, true, 2048));
    let none = Advertised::default();
    let high = Advertised { read: buffer(u64::MAX - 100), write: buffer(u64::MAX - 1000) };
    for (pdu, data, advertised) in
        [(read, 0, none), (write, 1000, none), (read, 0, high), (write, 1000, high)]
    {
        let error = advertise(&mut target(UNSOLICITED, ISER), &pdu, data, advertised);
        assert_eq!(error, Err(Violation::NoBuffer { itt: 1 }));
    }
    let all = Request::ScsiCommand(scsi(1, 0x10, false, true, 1000));
    assert!(advertise(&mut target(UNSOLICITED, ISER), &all, 1000, none).is_ok());
    let mut t = target(UNSOLICITED, ISER);
    let last = ScsiCommand { last: false, ..scsi(1, 0x10, false, true, 2048) };
    advertise(&mut t, &Request::ScsiCommand(last), 1000, none).unwrap();
    let error = request(&mut t, &data_out(1, RESERVED_TAG, 0, 1000, true), 24);
    assert_eq!(error, Err(Violation::NoBuffer { itt: 1 }), "at the end of the unsolicited data");
}

#[test]
fn an_abort_is_answered_after_the_rdma_operations() {
    let buffer = Some(RemoteBuffer { stag: 1, base: 0 });
    let mut t = target(LIMITS, ISER);
    let write = Request::ScsiCommand(scsi(1, 0x10, false, true, 2048));
    advertise(&mut t, &write, 0, Advertised { write: buffer, read: None }).unwrap();
    t.fetch(1, 2048);
    assert!(matches!(
        events(&mut t)[..],
        [TargetEvent::Execute { .. }, TargetEvent::RdmaRead { itt: 1, .. }]
    ));
    request(&mut t, &abort(1, 0x10), 0).unwrap();
    assert_eq!(events(&mut t), [TargetEvent::Abort { itt: 1 }]);
    assert_eq!(transmits(&mut t), [], "the RDMA Read is in progress");
    // Another command with the same buffer does not end the wait.
    let read = Request::ScsiCommand(scsi(2, 0x11, true, false, 512));
    advertise(&mut t, &read, 0, Advertised { write: None, read: buffer }).unwrap();
    assert!(matches!(events(&mut t)[..], [TargetEvent::Execute { itt: 2, .. }]));
    t.complete(2, Completion { status: 0, length: 512, sense: Vec::new() });
    let sent = transmits(&mut t);
    assert!(
        matches!(&sent[..], [TargetTransmit::RdmaWrite { itt: 2, .. }, TargetTransmit::Pdu(_)]),
        "{sent:?}"
    );
    t.complete(1, Completion::default());
    let sent = transmits(&mut t);
    let [TargetTransmit::Pdu(TargetPdu { header: Response::Task(r), .. })] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(r.result, TaskResult::COMPLETE);
    // The initiator uses the buffer again: nothing of the aborted task follows.
    t.rdma_read_done(1);
    assert!(transmits(&mut t).is_empty() && events(&mut t).is_empty());
}

#[test]
fn unexpected_pdus_of_a_target_obey_the_limit() {
    let transport = Transport::Iser { remote_invalidate: false, max_unexpected: 2 };
    let mut t = target(LIMITS, transport);
    assert!(t.ping() && t.request_logout(1));
    assert!(!t.request_logout(2));
    let mut t = target(LIMITS, transport);
    assert!(t.request_logout(1) && t.request_logout(2) && !t.ping());
    assert_eq!(transmits(&mut t).len(), 2);
    assert!(!t.ping(), "nothing is acknowledged");
    request(&mut t, &nop(RESERVED_TAG, RESERVED_TAG, RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x21 }), 0)
        .unwrap();
    assert!(t.ping() && !t.request_logout(3));
    let error = request(&mut t, &data_out(1, 9, 0, 0, true), 2000);
    assert!(error.is_err());
    assert_eq!(transmits(&mut t), [TargetTransmit::Close], "no Reject at the limit");
}

#[test]
fn a_storm_of_pings_stops_the_input() {
    let mut t = target(LIMITS, Transport::Tcp);
    let ping = nop(5, RESERVED_TAG, RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x20 });
    let accepted =
        (0..1000).take_while(|_| t.accepts_input() && request(&mut t, &ping, 1024).is_ok()).count();
    assert!(accepted < 20, "{accepted}");
    assert_eq!(transmits(&mut t).len(), accepted);
    assert!(t.accepts_input());
    let error = request(&mut t, &nop(RESERVED_TAG, 3, RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x20 }), 0);
    assert_eq!(error, Err(Violation::TransferTag(3)), "the answer to no ping");
    let mut t = target(LIMITS, Transport::Tcp);
    assert!(t.ping() && t.request_logout(1));
    request(&mut t, &nop(RESERVED_TAG, 0, RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x20 }), 0).unwrap();
    let sent = transmits(&mut t);
    assert_eq!(sent.len(), 1, "the answer came before the ping; the other message is sent");
    let mut t = target(LIMITS, Transport::Tcp);
    let future = nop(5, RESERVED_TAG, RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x21 });
    request(&mut t, &future, 0).unwrap();
    assert_eq!(transmits(&mut t).len(), 1, "an acknowledgement of a status that was not sent has no effect");
}

#[test]
fn text_without_an_end_is_limited() {
    let mut t = target(LIMITS, Transport::Tcp);
    let mut text = TextRequest {
        immediate: true,
        last: false,
        continued: true,
        lun: 0,
        itt: 5,
        ttt: RESERVED_TAG,
        numbers: RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x20 },
    };
    for _ in 0..16 {
        request(&mut t, &Request::Text(text), 1024).unwrap();
        let sent = transmits(&mut t);
        let [TargetTransmit::Pdu(TargetPdu { header: Response::Text(r), .. })] = &sent[..] else {
            panic!("{sent:?}");
        };
        text.ttt = r.ttt;
    }
    let error = request(&mut t, &Request::Text(text), 1024);
    assert_eq!(error, Err(Violation::TextLength(16 << 10)));
    let mut t = target(LIMITS, Transport::Tcp);
    assert_eq!(request(&mut t, &Request::Text(text), 0), Err(Violation::TransferTag(text.ttt)));
}

#[test]
fn logouts_of_other_connections_fail_and_the_session_continues() {
    let mut t = target(LIMITS, Transport::Tcp);
    let logout = |reason, cid| {
        let numbers = RequestNumbers { cmd_sn: 0x10, exp_stat_sn: 0x20 };
        Request::Logout(LogoutRequest { immediate: true, reason, itt: 1, cid, numbers })
    };
    for pdu in [logout(LogoutReason::CONNECTION, 2), logout(LogoutReason::RECOVERY, 1)] {
        request(&mut t, &pdu, 0).unwrap();
        assert!(
            matches!(&transmits(&mut t)[..], [TargetTransmit::Pdu(TargetPdu { header: Response::Logout(r), .. })]
            if r.result.0 != 0)
        );
    }
    let error = request(&mut t, &logout(LogoutReason(9), 1), 0);
    assert_eq!(error, Err(Invalid::Field("logout reason").into()));
}

#[test]
fn immediate_commands_are_limited() {
    let mut t = target(LIMITS, Transport::Tcp);
    for itt in 0..6 {
        let pdu = ScsiCommand { immediate: true, ..scsi(itt, 0x10, true, false, 512) };
        request(&mut t, &Request::ScsiCommand(pdu), 0).unwrap();
    }
    assert_eq!(events(&mut t).len(), 4);
    assert_eq!(transmits(&mut t).len(), 2, "two Rejects");
}
