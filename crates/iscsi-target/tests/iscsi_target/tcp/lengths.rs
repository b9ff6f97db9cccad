//! Initiators whose lengths, tags or numbers contradict each other, and logins that do not continue.

use millrace_iscsi::{
    pdu::{
        Bhs, Lengths, RejectReason, Request, RequestNumbers, Residual, Response, ScsiCommand, ScsiResponse,
    },
    session::Direction,
};
use millrace_iscsi_target::{ConnectionLimits, TableLimits};
use millrace_runtime::RuntimeExt;

use super::{
    common::{Bench, Client, run, rw10},
    hostile::{data_out, session, write},
};

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

/// Sends a command with immediate data, and answers R2Ts with data of `byte`. Returns the data of Data-In PDUs, the
/// response, and its data segment.
async fn execute(
    client: &mut Client,
    command: &ScsiCommand,
    immediate: u32,
    byte: u8,
) -> (Vec<u8>, ScsiResponse, Vec<u8>) {
    let data = vec![byte; immediate as usize];
    client.send(&Request::ScsiCommand(*command).encode(immediate), &data).await.unwrap();
    let mut read = Vec::new();
    loop {
        let (bhs, data) = client.receive().await.unwrap();
        match Response::decode(&bhs).unwrap() {
            Response::R2t(r2t) => {
                let pdu = Request::DataOut(data_out(command.itt, r2t.ttt, 0, r2t.offset));
                client.send(&pdu.encode(r2t.length), &vec![byte; r2t.length as usize]).await.unwrap();
            }
            Response::DataIn(pdu) => {
                read.extend(data);
                if let Some(status) = pdu.status {
                    let response = ScsiResponse {
                        response: 0,
                        status: status.status,
                        itt: pdu.itt,
                        numbers: pdu.numbers,
                        exp_data_sn: 0,
                        residual: status.residual,
                    };
                    return (read, response, Vec::new());
                }
            }
            Response::Scsi(response) => return (read, response, data),
            other => panic!("{other:?}"),
        }
    }
}

/// Sense key, additional sense code and qualifier of a data segment.
fn sense(segment: &[u8]) -> (u8, u8, u8) {
    (segment[4] & 15, segment[14], segment[15])
}

fn read(itt: u32, blocks: u16) -> ScsiCommand {
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&rw10(0x28, 0, blocks));
    ScsiCommand { read: true, write: false, cdb, ..write(itt, blocks) }
}

/// A session that sends immediate data, and the numbers of its next command.
async fn immediate_session(bench: &Bench) -> (Client, RequestNumbers) {
    let (mut client, numbers) = session(bench).await;
    let numbers = RequestNumbers { exp_stat_sn: client.exp_stat_sn(), ..numbers };
    (client, numbers)
}

/// The first block as another session reads it.
async fn first_block(bench: &Bench) -> Vec<u8> {
    let mut client = bench.connect();
    client.log_in(3).await.unwrap();
    client.clear_attention().await;
    let block = client.read(0, 1).await;
    client.log_out().await;
    block
}

#[test]
fn the_expected_length_and_that_of_the_cdb_may_differ() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, mut numbers) = immediate_session(&bench).await;
        for (n, (blocks, expected, residual)) in (0..).zip([
            (1, 1024, Residual::Underflow(512)),
            (2, 512, Residual::Overflow(512)),
            (2, 1024, Residual::None),
            (1, u32::MAX, Residual::Underflow(u32::MAX - 512)),
            (0, 512, Residual::Underflow(512)),
        ]) {
            let moved = (u32::from(blocks) * 512).min(expected);
            let command = ScsiCommand { numbers, expected, ..write(60, blocks) };
            let (_, response, _) = execute(&mut client, &command, 0, n + 1).await;
            assert_eq!(
                (response.status, response.residual),
                (GOOD, residual),
                "a write: {blocks}, {expected}"
            );
            numbers.cmd_sn += 1;
            let command = ScsiCommand { numbers, expected, ..read(61, blocks) };
            let (data, response, _) = execute(&mut client, &command, 0, 0).await;
            assert_eq!(
                (response.status, response.residual),
                (GOOD, residual),
                "a read: {blocks}, {expected}"
            );
            assert_eq!(data, vec![n + 1; moved as usize]);
            numbers.cmd_sn += 1;
        }
        client.stream_shutdown();
        bench.expect_idle().await;
    });
}

#[test]
fn immediate_data_may_end_within_a_block() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, mut numbers) = immediate_session(&bench).await;
        // 100 bytes in the command; the rest is requested.
        let command = ScsiCommand { numbers, ..write(60, 2) };
        let (_, response, _) = execute(&mut client, &command, 100, 0x61).await;
        assert_eq!((response.status, response.residual), (GOOD, Residual::None));
        numbers.cmd_sn += 1;
        // There is no rest: a part of a block is not written.
        let command = ScsiCommand { numbers, expected: 100, ..write(60, 1) };
        let (_, response, segment) = execute(&mut client, &command, 100, 0x62).await;
        assert_eq!((response.status, sense(&segment)), (CHECK_CONDITION, (5, 0x0e, 3)));
        assert_eq!(first_block(&bench).await, [0x61; 512]);
        client.stream_shutdown();
        bench.expect_idle().await;
    });
}

#[test]
fn commands_of_both_directions_and_at_no_unit_end_with_illegal_request() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, mut numbers) = immediate_session(&bench).await;
        for (command, expected) in [
            (ScsiCommand { read: true, ..write(60, 1) }, (5, 0x24, 0)),
            (ScsiCommand { lun: 5 << 48, ..write(60, 1) }, (5, 0x25, 0)),
            (ScsiCommand { lun: u64::MAX, ..read(60, 1) }, (5, 0x25, 0)),
        ] {
            let immediate = if command.write { 512 } else { 0 };
            let command = ScsiCommand { numbers, ..command };
            let (data, response, segment) = execute(&mut client, &command, immediate, 0x63).await;
            assert_eq!((response.status, sense(&segment)), (CHECK_CONDITION, expected));
            assert!(data.is_empty());
            numbers.cmd_sn += 1;
        }
        assert_eq!(first_block(&bench).await, [0; 512]);
        client.stream_shutdown();
        bench.expect_idle().await;
    });
}

#[test]
fn a_tag_in_use_is_rejected_and_a_number_outside_of_the_window_ignored() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut client, mut numbers) = immediate_session(&bench).await;
        let first = ScsiCommand { numbers, ..write(60, 1) };
        client.send(&Request::ScsiCommand(first).encode(0), &[]).await.unwrap();
        let (bhs, _) = client.receive().await.unwrap();
        let Ok(Response::R2t(r2t)) = Response::decode(&bhs) else { panic!("{bhs:x?}") };
        numbers.cmd_sn += 1;
        let second = Request::ScsiCommand(ScsiCommand { numbers, ..read(60, 8) }).encode(0);
        client.send(&second, &[]).await.unwrap();
        let (bhs, data) = client.receive().await.unwrap();
        let Ok(Response::Reject(reject)) = Response::decode(&bhs) else { panic!("{bhs:x?}") };
        assert_eq!((reject.reason, &data[..]), (RejectReason::TASK_IN_PROGRESS, &second[..]));
        // Too high and too low.
        for cmd_sn in [numbers.cmd_sn + 10_000, numbers.cmd_sn, numbers.cmd_sn ^ 1 << 31] {
            let numbers = RequestNumbers { cmd_sn, ..numbers };
            let ignored = Request::ScsiCommand(ScsiCommand { numbers, ..read(61, 1) });
            client.send(&ignored.encode(0), &[]).await.unwrap();
        }
        let pdu: Bhs = Request::DataOut(data_out(60, r2t.ttt, 0, 0)).encode(512);
        assert_eq!(Lengths::of(&pdu).data, r2t.length);
        client.send(&pdu, &[0x64; 512]).await.unwrap();
        let (bhs, _) = client.receive().await.unwrap();
        let response = Response::decode(&bhs);
        assert!(matches!(response, Ok(Response::Scsi(r)) if (r.itt, r.status) == (60, GOOD)), "{response:?}");
        assert_eq!(first_block(&bench).await, [0x64; 512]);
        client.stream_shutdown();
        bench.expect_idle().await;
    });
}

#[test]
fn half_open_logins_are_limited_in_number_and_time() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.limit(TableLimits { logins: 8, ..TableLimits::default() });
        let mut early = bench.connect();
        early.log_in(1).await.unwrap();
        early.clear_attention().await;
        // The rest is left to other hosts.
        let mut open: Vec<Client> = (0..6).map(|_| bench.connect()).collect();
        for client in &mut open {
            // The beginning of a Login Request.
            client.send_bytes(&[0x43, 0x87]).await.unwrap();
        }
        bench.rt.sleep(std::time::Duration::from_secs(1)).await;
        for _ in 0..20 {
            let mut excess = bench.connect();
            assert!(excess.expect_end().await.is_empty(), "a login beyond the limit");
        }
        let (status, _, data) = early.execute(&rw10(0x28, 0, 1), Direction::Read, vec![0xee; 512]).await;
        assert_eq!((status, data), (GOOD, vec![0; 512]), "other sessions continue");
        for client in &mut open {
            assert!(client.expect_end().await.is_empty());
        }
        bench.expect_service().await;
        early.log_out().await;
        bench.expect_idle().await;
    });
}
