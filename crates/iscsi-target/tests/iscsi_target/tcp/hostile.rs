//! Peers that violate the protocol: each ends its own connection at most, and leaves no memory in use.

use millrace_iscsi::{
    login::{LoginPdu, MAX_LOGIN_DATA},
    pdu::{
        Bhs, DataOut, LogoutReason, LogoutRequest, NopOut, RESERVED_TAG, RejectReason, Request,
        RequestNumbers, Response, ScsiCommand, Stage, TaskAttribute, TaskFunction, TaskRequest, TaskResult,
        TextRequest,
    },
};
use millrace_iscsi_target::ConnectionLimits;

use super::common::{Bench, Client, NAMES, NUMBERS, login, run, rw10};

fn with(mut pdu: LoginPdu, change: impl FnOnce(&mut Bhs)) -> LoginPdu {
    change(&mut pdu.bhs);
    pdu
}

/// Sends PDUs in the login phase; the connection ends, and no response grants the login.
async fn refused(bench: &Bench, case: &str, pdus: &[LoginPdu]) {
    let mut client = bench.connect();
    for pdu in pdus {
        // The target may close before it has read all.
        if client.send(&pdu.bhs, &pdu.data).await.is_err() {
            break;
        }
    }
    for response in client.expect_end().await {
        let Response::Login(response) = response else { panic!("{case}: {response:?}") };
        let granted = response.status_class == 0 && response.next == Some(Stage::FullFeature);
        assert!(!granted, "{case}: {response:?}");
    }
    bench.expect_idle().await;
}

#[test]
fn logins() {
    run(ConnectionLimits::default(), async |bench| {
        let mut twice = NAMES.to_vec();
        twice.extend_from_slice(NAMES);
        let chain: Vec<LoginPdu> = (0..200)
            .map(|_| login(|r| (r.continued, r.next) = (true, None), &[b'x'; MAX_LOGIN_DATA as usize]))
            .collect();
        let full_feature = Request::NopOut(nop(RESERVED_TAG)).encode(0);
        let cases: Vec<(&str, Vec<LoginPdu>)> = vec![
            ("another protocol", vec![LoginPdu { bhs: [0x47; 48], data: vec![0x20; 4096] }]),
            ("a PDU of the full feature phase", vec![LoginPdu { bhs: full_feature, data: Vec::new() }]),
            ("stage 2", vec![with(login(|_| {}, NAMES), |bhs| bhs[1] = 0x8b)]),
            ("next stage 2", vec![with(login(|_| {}, NAMES), |bhs| bhs[1] = 0x86)]),
            ("keys twice", vec![login(|_| {}, &twice)]),
            ("no equals sign", vec![login(|_| {}, b"InitiatorName\0")]),
            ("no NUL", vec![login(|_| {}, &NAMES[..NAMES.len() - 1])]),
            ("no names", vec![login(|_| {}, b"")]),
            ("a session that does not exist", vec![login(|r| r.tsih = 77, NAMES)]),
            ("a future version", vec![login(|r| (r.version_max, r.version_min) = (9, 9), NAMES)]),
            ("a long data segment", vec![LoginPdu { bhs: login(|_| {}, &[0; 8193]).bhs, data: Vec::new() }]),
            ("a text without end", chain),
        ];
        for (case, pdus) in cases {
            refused(&bench, case, &pdus).await;
        }
        bench.expect_service().await;
    });
}

/// The first part of a text that continues.
pub(crate) const CONTINUED_TEXT: TextRequest = TextRequest {
    immediate: true,
    last: false,
    continued: true,
    lun: 0,
    itt: 5,
    ttt: RESERVED_TAG,
    numbers: NUMBERS,
};

pub(crate) fn nop(itt: u32) -> NopOut {
    NopOut { immediate: true, lun: 0, itt, ttt: RESERVED_TAG, numbers: NUMBERS }
}

pub(crate) fn write(itt: u32, blocks: u16) -> ScsiCommand {
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&rw10(0x2a, 0, blocks));
    ScsiCommand {
        immediate: false,
        last: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        lun: 0,
        itt,
        expected: u32::from(blocks) * 512,
        numbers: NUMBERS,
        cdb,
    }
}

pub(crate) fn data_out(itt: u32, ttt: u32, data_sn: u32, offset: u32) -> DataOut {
    DataOut { last: true, lun: 0, itt, ttt, exp_stat_sn: 0, data_sn, offset }
}

/// A session without unit attention, whose next command number is 100 plus the result.
pub(crate) async fn session(bench: &Bench) -> (Client, RequestNumbers) {
    let mut client = bench.connect();
    client.settings.initial_r2t = true;
    client.log_in(1).await.unwrap();
    client.clear_attention().await;
    // POWER ON, then GOOD.
    (client, RequestNumbers { cmd_sn: 102, exp_stat_sn: 0 })
}

/// Requests after which the connection ends, perhaps with a Reject.
#[test]
fn violations_end_the_connection() {
    run(ConnectionLimits::default(), async |bench| {
        type Requests = fn(RequestNumbers) -> Vec<(Bhs, Vec<u8>)>;
        let cases: [(&str, Requests); 13] = [
            ("a login", |_| vec![(login(|_| {}, b"").bhs, Vec::new())]),
            ("a missing command", |numbers| {
                let numbers = RequestNumbers { cmd_sn: numbers.cmd_sn + 1, ..numbers };
                vec![(Request::ScsiCommand(ScsiCommand { numbers, ..write(50, 0) }).encode(0), Vec::new())]
            }),
            ("a data segment above the limit", |numbers| {
                vec![(
                    Request::ScsiCommand(ScsiCommand { numbers, ..write(50, 8) }).encode(0xff_ffff),
                    Vec::new(),
                )]
            }),
            ("immediate data above the expected length", |numbers| {
                let command = ScsiCommand { numbers, ..write(50, 1) };
                vec![(Request::ScsiCommand(command).encode(1024), vec![1; 1024])]
            }),
            ("immediate data of a read", |numbers| {
                let command = ScsiCommand { numbers, read: true, write: false, ..write(50, 1) };
                vec![(Request::ScsiCommand(command).encode(512), vec![1; 512])]
            }),
            ("unsolicited data that is forbidden", |numbers| {
                let command = ScsiCommand { numbers, last: false, ..write(50, 16) };
                vec![
                    (Request::ScsiCommand(command).encode(0), Vec::new()),
                    (Request::DataOut(data_out(50, RESERVED_TAG, 0, 0)).encode(512), vec![1; 512]),
                ]
            }),
            ("data for an R2T that was not sent", |numbers| {
                let command = ScsiCommand { numbers, ..write(50, 16) };
                vec![
                    (Request::ScsiCommand(command).encode(0), Vec::new()),
                    (Request::DataOut(data_out(50, 0x1234, 0, 0)).encode(512), vec![1; 512]),
                ]
            }),
            ("data at a wrong offset", |numbers| {
                let command = ScsiCommand { numbers, ..write(50, 16) };
                vec![
                    (Request::ScsiCommand(command).encode(0), Vec::new()),
                    (Request::DataOut(data_out(50, 0, 0, 0x8000_0000)).encode(512), vec![1; 512]),
                ]
            }),
            ("additional header segments without end", |numbers| {
                let mut bhs = Request::ScsiCommand(ScsiCommand { numbers, ..write(50, 0) }).encode(0);
                bhs[4] = 255;
                vec![(bhs, vec![0xff; 1020])]
            }),
            ("an answer to a ping that was not sent", |_| {
                vec![(Request::NopOut(NopOut { ttt: 7, ..nop(RESERVED_TAG) }).encode(0), Vec::new())]
            }),
            ("a text without end", |_| {
                // The tag of the first exchange of a session is 0.
                let next = TextRequest { ttt: 0, ..CONTINUED_TEXT };
                let pdu = |text: TextRequest| (Request::Text(text).encode(8000), vec![b'x'; 8000]);
                std::iter::once(pdu(CONTINUED_TEXT)).chain((0..5).map(|_| pdu(next))).collect()
            }),
            ("a logout with an invalid reason", |_| {
                let mut bhs = Request::Logout(LogoutRequest {
                    immediate: true,
                    reason: LogoutReason::SESSION,
                    itt: 9,
                    cid: 1,
                    numbers: NUMBERS,
                })
                .encode(0);
                bhs[1] = 0x80 | 0x55;
                vec![(bhs, Vec::new())]
            }),
            ("the end of the stream within data", |numbers| {
                let command = ScsiCommand { numbers, ..write(50, 8) };
                vec![(Request::ScsiCommand(command).encode(4096), vec![1; 100])]
            }),
        ];
        for (case, requests) in cases {
            let (mut client, numbers) = session(&bench).await;
            let numbers = RequestNumbers { exp_stat_sn: client.exp_stat_sn(), ..numbers };
            for (mut bhs, data) in requests(numbers) {
                if bhs[0] & 0x3f != 3 {
                    bhs[28..32].copy_from_slice(&numbers.exp_stat_sn.to_be_bytes());
                }
                let sent = client.send(&bhs, &data).await;
                if sent.is_err() {
                    break;
                }
            }
            if case == "the end of the stream within data" {
                millrace_runtime::ByteStream::shutdown(&mut client.stream);
            }
            let responses = client.expect_end().await;
            let good = |r: &Response| matches!(r, Response::Scsi(r) if r.status == 0);
            assert!(!responses.iter().any(good), "{case}: {responses:?}");
            bench.expect_idle().await;
        }
        bench.expect_service().await;
        bench.expect_idle().await;
    });
}

/// Requests that have an answer, or none, after which the connection works.
#[test]
fn harmless_requests_leave_the_connection() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, mut numbers) = session(&bench).await;
        numbers.exp_stat_sn = client.exp_stat_sn();
        // An unknown opcode.
        let mut unknown = Request::NopOut(NopOut { numbers, ..nop(1) }).encode(0);
        unknown[0] = 0x40 | 0x1e;
        client.send(&unknown, &[]).await.unwrap();
        let (bhs, _) = client.receive().await.unwrap();
        let Response::Reject(reject) = Response::decode(&bhs).unwrap() else { panic!("{bhs:x?}") };
        assert_eq!(reject.reason, RejectReason::COMMAND_NOT_SUPPORTED);
        // A command outside of the window has no answer; a NOP-Out has one.
        let outside = RequestNumbers { cmd_sn: numbers.cmd_sn.wrapping_sub(5), ..numbers };
        client
            .send(&Request::ScsiCommand(ScsiCommand { numbers: outside, ..write(50, 0) }).encode(0), &[])
            .await
            .unwrap();
        client.send(&Request::NopOut(NopOut { numbers, ..nop(3) }).encode(5), b"hello").await.unwrap();
        let (bhs, data) = client.receive().await.unwrap();
        assert!(matches!(Response::decode(&bhs), Ok(Response::NopIn(nop)) if nop.itt == 3));
        assert_eq!(data, b"hello");
        // Task management of a task that does not exist.
        let request = TaskRequest {
            immediate: true,
            function: TaskFunction::ABORT_TASK,
            lun: 0,
            itt: 4,
            referenced: 1234,
            numbers,
            ref_cmd_sn: numbers.cmd_sn.wrapping_sub(1),
            exp_data_sn: 0,
        };
        client.send(&Request::Task(request).encode(0), &[]).await.unwrap();
        let (bhs, _) = client.receive().await.unwrap();
        assert!(matches!(Response::decode(&bhs), Ok(Response::Task(r)) if r.result == TaskResult::NO_TASK));
        // Commands with lengths and directions that do not fit, and to a LUN that does not exist.
        let full = ScsiCommand { expected: u32::MAX, ..write(60, 1) };
        let cases = [
            ScsiCommand { lun: 5 << 48, ..write(60, 1) },
            ScsiCommand { expected: 0, ..write(60, 1) },
            ScsiCommand { expected: 0, read: true, write: false, ..write(60, 1) },
            ScsiCommand { expected: u32::MAX, read: true, write: false, ..full },
        ];
        for command in cases {
            let command = ScsiCommand { numbers, ..command };
            client.send(&Request::ScsiCommand(command).encode(0), &[]).await.unwrap();
            numbers.cmd_sn += 1;
            let (bhs, _) = client.receive().await.unwrap();
            assert!(matches!(Response::decode(&bhs), Ok(Response::Scsi(_))), "{command:?}: {bhs:x?}");
        }
        // Only what the command needs is requested, not the expected length.
        client.send(&Request::ScsiCommand(ScsiCommand { numbers, ..full }).encode(0), &[]).await.unwrap();
        let (bhs, _) = client.receive().await.unwrap();
        let Ok(Response::R2t(r2t)) = Response::decode(&bhs) else { panic!("{bhs:x?}") };
        assert_eq!((r2t.offset, r2t.length), (0, 512));
        // A second command with the tag of a task that has not ended.
        numbers.cmd_sn += 1;
        client
            .send(&Request::ScsiCommand(ScsiCommand { numbers, ..write(60, 1) }).encode(0), &[])
            .await
            .unwrap();
        client.stream_shutdown();
        client.expect_end().await;
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn wrong_digests_end_the_connection() {
    run(ConnectionLimits::default(), async |bench| {
        for wrong in [48, 52 + 100, 52 + 512] {
            let mut client = bench.connect().with_digests();
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            let numbers = RequestNumbers { cmd_sn: 102, exp_stat_sn: client.exp_stat_sn() };
            let bhs = Request::ScsiCommand(ScsiCommand { numbers, ..write(50, 1) }).encode(512);
            let mut bytes = client.encode(&bhs, &[7; 512]);
            bytes[wrong] ^= 1;
            client.send_bytes(&bytes).await.unwrap();
            let responses = client.expect_end().await;
            assert!(!responses.iter().any(|r| matches!(r, Response::Scsi(_))), "{responses:?}");
            bench.expect_idle().await;
        }
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        assert!(client.read(0, 1).await == [0; 512], "nothing was written");
        client.log_out().await;
        bench.expect_idle().await;
    });
}

/// A peer that sends requests and receives no responses is stopped by the limits, and disconnected after a time.
#[test]
fn a_storm_of_requests_without_reading_is_bounded() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, numbers) = session(&bench).await;
        let numbers = RequestNumbers { exp_stat_sn: client.exp_stat_sn(), ..numbers };
        let ping = Request::NopOut(NopOut { numbers, ..nop(3) }).encode(8192);
        let mut sent = 0;
        while client.send(&ping, &[0; 8192]).await.is_ok() {
            sent += 8192;
            assert!(sent < 16 << 20, "the target takes no more input");
        }
        client.stream_shutdown();
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn a_logout_ends_open_commands() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, numbers) = session(&bench).await;
        let numbers = RequestNumbers { exp_stat_sn: client.exp_stat_sn(), ..numbers };
        client
            .send(&Request::ScsiCommand(ScsiCommand { numbers, ..write(50, 16) }).encode(0), &[])
            .await
            .unwrap();
        let reason = LogoutReason::SESSION;
        let logout = LogoutRequest { immediate: true, reason, itt: 9, cid: 1, numbers };
        client.send(&Request::Logout(logout).encode(0), &[]).await.unwrap();
        let responses = client.expect_end().await;
        assert!(matches!(responses.last(), Some(Response::Logout(_))), "{responses:?}");
        bench.expect_idle().await;
    });
}
