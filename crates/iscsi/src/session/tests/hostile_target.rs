//! Targets that violate the protocol: each violation is an error of the right type, and no task gets wrong data.

use super::*;
use crate::{
    iser::RemoteBuffer,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, Invalid, NopIn, Numbers, R2t, RESERVED_TAG, Reject,
        RejectReason, Residual, ScsiResponse, TextResponse,
    },
};

const NUMBERS: Numbers = Numbers { stat_sn: 0x20, exp_cmd_sn: 0x11, max_cmd_sn: 0x18 };

/// An initiator with the sent task 0.
fn initiated(direction: Direction, limits: Parameters) -> InitiatorSession {
    let mut i = initiator(limits, Transport::Tcp);
    i.submit(command(direction, 4096), None).unwrap();
    i.poll_transmit().unwrap();
    i
}

fn data_in(data_sn: u32, offset: u32, last: bool, status: Option<Residual>) -> Response {
    let status = status.map(|residual| DataInStatus { status: 0, residual });
    Response::DataIn(DataIn { last, status, itt: 0, numbers: NUMBERS, data_sn, offset })
}

fn response(itt: u32, status: u8, residual: Residual) -> Response {
    Response::Scsi(ScsiResponse { response: 0, status, itt, numbers: NUMBERS, exp_data_sn: 0, residual })
}

fn r2t(ttt: u32, r2t_sn: u32, offset: u32, length: u32) -> Response {
    Response::R2t(R2t { lun: 0, itt: 0, ttt, numbers: NUMBERS, r2t_sn, offset, length })
}

#[test]
fn data_in_is_in_order_and_inside_of_the_task() {
    let cases = [
        (data_in(1, 0, false, None), 512, Violation::DataNumber { itt: 0, expected: 0, received: 1 }),
        (data_in(0, 512, false, None), 512, Violation::DataOffset { itt: 0, expected: 0, received: 512 }),
        (
            data_in(0, u32::MAX, false, None),
            512,
            Violation::DataOffset { itt: 0, expected: 0, received: u32::MAX },
        ),
        (
            data_in(0, 0, true, Some(Residual::None)),
            512,
            Violation::Residual { itt: 0, expected: 4096, transferred: 512, residual: Residual::None },
        ),
        (
            data_in(0, 0, true, Some(Residual::Underflow(5000))),
            512,
            Violation::Residual {
                itt: 0,
                expected: 4096,
                transferred: 512,
                residual: Residual::Underflow(5000),
            },
        ),
    ];
    for (pdu, length, error) in cases {
        let mut i = initiated(Direction::Read, LIMITS);
        assert_eq!(respond(&mut i, &pdu, &vec![0; length]), Err(error));
        assert_eq!(i.poll_event(), None);
        assert_eq!(i.unfinished().len(), 1);
        assert_eq!(
            respond(&mut i, &pdu, &[]),
            Err(Violation::Unexpected("PDU after the end of the session"))
        );
    }
    let mut i = initiated(Direction::Read, LIMITS);
    for n in 0..3 {
        respond(&mut i, &data_in(n, n * 1024, false, None), &[0; 1024]).unwrap();
    }
    respond(&mut i, &data_in(3, 3072, false, None), &[0; 1000]).unwrap();
    let error = respond(&mut i, &data_in(4, 4072, true, None), &[0; 25]);
    let beyond = Violation::DataLength { itt: 0, length: 25, maximum: 24 };
    assert_eq!(error, Err(beyond), "beyond the buffer, although not beyond MaxBurstLength");
    let error = respond(&mut initiated(Direction::Write, LIMITS), &data_in(0, 0, true, None), &[0; 8]);
    assert_eq!(error, Err(Violation::Unexpected("Data-In PDU")));
}

#[test]
fn a_success_with_too_little_data_is_a_violation() {
    for direction in [Direction::Read, Direction::Write] {
        let error = respond(&mut initiated(direction, LIMITS), &response(0, 0, Residual::None), &[]);
        let residual = Residual::None;
        assert_eq!(error, Err(Violation::Residual { itt: 0, expected: 4096, transferred: 0, residual }));
    }
    let mut i = initiated(Direction::Read, LIMITS);
    respond(&mut i, &response(0, 2, Residual::None), &[]).unwrap();
    assert!(matches!(i.poll_event(), Some(InitiatorEvent::Completed { .. })));
    let again = respond(&mut i, &response(0, 0, Residual::None), &[]);
    assert!(matches!(again, Err(Violation::StatusNumber { .. })));
    let unknown = respond(&mut initiated(Direction::Read, LIMITS), &response(5, 0, Residual::None), &[]);
    assert_eq!(unknown, Err(Violation::UnknownTask { pdu: "SCSI Response", itt: 5 }));
    for sense in [&[0][..], &[0, 2, 0x70], &[0xff, 0xff]] {
        let error = respond(&mut initiated(Direction::Read, LIMITS), &response(0, 2, Residual::None), sense);
        assert_eq!(error, Err(Violation::Malformed("SCSI Response")));
    }
}

#[test]
fn r2ts_are_in_order_and_inside_of_the_task() {
    let cases = [
        (r2t(0, 1, 0, 512), Violation::DataNumber { itt: 0, expected: 0, received: 1 }),
        (r2t(0, 0, 512, 512), Violation::DataOffset { itt: 0, expected: 0, received: 512 }),
        (r2t(0, 0, 0, 2049), Violation::DataLength { itt: 0, length: 2049, maximum: 2048 }),
        (r2t(0, 0, 0, u32::MAX), Violation::DataLength { itt: 0, length: u32::MAX, maximum: 2048 }),
        (r2t(RESERVED_TAG, 0, 0, 512), Invalid::Field("target transfer tag of an R2T").into()),
    ];
    for (pdu, error) in cases {
        assert_eq!(respond(&mut initiated(Direction::Write, LIMITS), &pdu, &[]), Err(error));
    }
    let mut i = initiated(Direction::Write, LIMITS);
    respond(&mut i, &r2t(0, 0, 0, 512), &[]).unwrap();
    assert_eq!(respond(&mut i, &r2t(1, 1, 512, 512), &[]), Err(Violation::OutstandingR2t { itt: 0 }));
    let error = respond(&mut initiated(Direction::Read, LIMITS), &r2t(0, 0, 0, 512), &[]);
    assert_eq!(error, Err(Violation::Unexpected("R2T")));
    let mut i = initiator(LIMITS, ISER);
    i.submit(command(Direction::Write, 4096), Some(RemoteBuffer { stag: 1, base: 0 })).unwrap();
    i.poll_transmit().unwrap();
    assert_eq!(respond(&mut i, &r2t(0, 0, 0, 512), &[]), Err(Violation::Unexpected("R2T")));
}

#[test]
fn numbers_and_tags_of_responses_are_checked() {
    let nop = |itt, numbers| Response::NopIn(NopIn { lun: 0, itt, ttt: RESERVED_TAG, numbers });
    let mut i = initiator(LIMITS, Transport::Tcp);
    let early = Numbers { exp_cmd_sn: 0x11, ..NUMBERS };
    let error = respond(&mut i, &nop(RESERVED_TAG, early), &[]);
    assert_eq!(error, Err(Violation::CommandAcknowledged { next: 0x10, received: 0x11 }));
    let valid = Numbers { exp_cmd_sn: 0x10, ..NUMBERS };
    let mut i = initiator(LIMITS, Transport::Tcp);
    let error = respond(&mut i, &nop(3, valid), &[]);
    assert_eq!(error, Err(Violation::UnknownTask { pdu: "NOP-In", itt: 3 }));
    let mut i = initiator(LIMITS, Transport::Tcp);
    let bhs = nop(RESERVED_TAG, valid).encode(0);
    assert_eq!(i.begin(&bhs, &[], Some(5)), Err(Violation::Invalidated(5)));
    let mut i = initiator(LIMITS, Transport::Tcp);
    let itt = i.send_text(b"SendTargets=All\0".to_vec()).unwrap();
    i.poll_transmit().unwrap();
    let text = TextResponse { last: false, continued: true, lun: 0, itt, ttt: 4, numbers: valid };
    let error = respond(&mut i, &Response::Text(text), &[]);
    assert_eq!(error, Err(Violation::Unexpected("Text Response without text or an end")));
}

#[test]
fn a_storm_of_pings_of_a_target_stops_the_input() {
    let mut i = initiator(LIMITS, Transport::Tcp);
    let numbers = Numbers { exp_cmd_sn: 0x10, ..NUMBERS };
    let ping = |ttt| Response::NopIn(NopIn { lun: 0, itt: RESERVED_TAG, ttt, numbers });
    let accepted = (0..1000).take_while(|ttt| i.accepts_input() && respond(&mut i, &ping(*ttt), &[]).is_ok());
    let accepted = accepted.count();
    assert!(accepted < 20, "{accepted}");
    assert_eq!(std::iter::from_fn(|| i.poll_transmit()).count(), accepted, "each ping is answered");
    assert!(i.accepts_input());
}

#[test]
fn lengths_and_opcodes_of_responses_are_checked() {
    let numbers = Numbers { exp_cmd_sn: 0x10, ..NUMBERS };
    let ping = Response::NopIn(NopIn { lun: 0, itt: RESERVED_TAG, ttt: 1, numbers });
    let maximum = LIMITS.max_receive_data;
    let error = initiator(LIMITS, Transport::Tcp).begin(&ping.encode(maximum + 1), &[], None);
    assert_eq!(error, Err(Invalid::DataLength { length: maximum + 1, maximum }.into()));
    let error = initiator(LIMITS, Transport::Tcp).begin(&ping.encode(0), &[0; 1020], None);
    assert_eq!(error, Err(Invalid::Ahs.into()));
    for opcode in [0x01, 0x1f, 0x2a, 0x3e] {
        let mut bhs = ping.encode(0);
        bhs[0] = opcode;
        let error = initiator(LIMITS, Transport::Tcp).begin(&bhs, &[], None);
        assert_eq!(error, Err(Invalid::Opcode(opcode).into()));
    }
}

#[test]
fn a_rejected_command_ends_and_a_rejected_protocol_error_ends_the_connection() {
    let reject = |reason| Response::Reject(Reject { reason, numbers: NUMBERS, data_sn: 0 });
    let mut i = initiated(Direction::Read, LIMITS);
    let mut header = [0; 48];
    header[0] = 1;
    respond(&mut i, &reject(RejectReason::COMMAND_NOT_SUPPORTED), &header).unwrap();
    let outcome = Outcome::Rejected(RejectReason::COMMAND_NOT_SUPPORTED);
    assert_eq!(i.poll_event(), Some(InitiatorEvent::Completed { itt: 0, outcome }));
    let mut i = initiated(Direction::Read, LIMITS);
    let error = respond(&mut i, &reject(RejectReason::PROTOCOL_ERROR), &header);
    assert_eq!(error, Err(Violation::Rejected(RejectReason::PROTOCOL_ERROR)));
    let error = respond(&mut initiated(Direction::Read, LIMITS), &reject(RejectReason(9)), &[0; 47]);
    assert_eq!(error, Err(Violation::Malformed("Reject")));
    let event = AsyncEvent::SCSI;
    let message = AsyncMessage { lun: 0, numbers: NUMBERS, event, vendor_code: 0, parameters: [0; 3] };
    let error = respond(&mut initiated(Direction::Read, LIMITS), &Response::Async(message), &[1]);
    assert_eq!(error, Err(Violation::Malformed("Asynchronous Message")));
}
