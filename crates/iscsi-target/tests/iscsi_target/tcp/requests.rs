//! Every request, with every negotiated kind of data: memory that is in use is charged, and released at the end.

use std::time::Duration;

use futures::FutureExt;
use millrace_iscsi::{
    discovery::{self, SendTargets},
    pdu::{Request, RequestNumbers, TaskFunction, TextRequest, opcode},
    session::{Direction, InitiatorEvent},
};
use millrace_iscsi_target::{ConnectionLimits, TargetConfig};
use millrace_runtime::RuntimeExt;

use super::{
    common::{Bench, Client, TARGET, login, name, run, rw10, target},
    hostile::{CONTINUED_TEXT, data_out, nop},
};
use crate::charges::{Memory, REPORT_OPCODES, command, opcodes};

/// Bytes that a stream buffers: longer responses wait in the target.
const CAPACITY: usize = 256;
/// `InitialR2T` and `ImmediateData`: without unsolicited data, the target holds no memory for it.
const KINDS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];

/// A session, and the memory that it has without commands.
async fn session(bench: &Bench, (initial_r2t, immediate_data): (bool, bool)) -> (Client, Memory) {
    let mut client = bench.connect_with(CAPACITY, usize::MAX);
    client.settings.initial_r2t = initial_r2t;
    client.settings.immediate_data = immediate_data;
    client.log_in(1).await.unwrap();
    client.clear_attention().await;
    bench.expect_charged("a session");
    (client, bench.memory())
}

/// Waits until the target waits for the initiator.
async fn settle(bench: &Bench) {
    bench.rt.sleep(Duration::from_millis(100)).await;
}

fn on_kinds(test: impl AsyncFn(&Bench, Client, Memory, (bool, bool))) {
    for kind in KINDS {
        run(ConnectionLimits::default(), async |mut bench| {
            bench.fixture.charge_all();
            let (client, before) = session(&bench, kind).await;
            test(&bench, client, before, kind).await;
            bench.expect_idle().await;
        });
    }
}

#[test]
fn every_command() {
    on_kinds(async |bench, mut client, before, kind| {
        let (status, _, known) = client.execute(&REPORT_OPCODES, Direction::Read, vec![0; 4096]).await;
        assert_eq!(status, 0);
        let known = opcodes(&known);
        assert!(known.len() > 50, "{known:?}");
        for (opcode, action) in known {
            let case = format!("{kind:?}: {opcode:#x}/{action:#x}");
            let (cdb, direction, data) = command(opcode, action);
            let itt = client.submit(&cdb, direction, data);
            client.flush().await.unwrap();
            settle(bench).await;
            bench.expect_charged(&case);
            client.outcome(itt).await.unwrap();
            settle(bench).await;
            bench.expect_settled(before, &case);
        }
        client.log_out().await;
    });
}

/// WRITEs of which the initiator has sent the first PDU, and READs of which it has received little.
async fn begin(bench: &Bench, client: &mut Client, before: Memory, kind: (bool, bool)) -> Vec<u32> {
    let mut tags = Vec::new();
    for (n, blocks) in (0..).zip([1, 7, 129, 1000]) {
        let data = vec![1; usize::from(blocks) * 512];
        tags.push(client.submit(&rw10(0x2a, 1000 * n, blocks), Direction::Write, data));
        loop {
            let pdu = client.session().poll_transmit().unwrap();
            let (bhs, data) = (pdu.encode(), client.data_of(&pdu));
            client.send(&bhs, &data).await.unwrap();
            if bhs[0] & 0x3f == opcode::SCSI_COMMAND {
                break; // After unsolicited data of earlier ones.
            }
        }
        settle(bench).await;
        bench.expect_charged(&format!("{kind:?}: {blocks} blocks to write"));
        if kind == (true, false) {
            bench.expect_charged_since(before, &format!("{blocks} blocks to write"));
        }
    }
    tags
}

#[test]
fn data_that_is_under_way_or_has_no_end() {
    on_kinds(async |bench, mut client, before, kind| {
        for tag in begin(bench, &mut client, before, kind).await {
            client.outcome(tag).await.unwrap();
        }
        settle(bench).await;
        bench.expect_settled(before, &format!("{kind:?}: all data has come"));
        // Commands without blocks of the disk, and READs of this number of blocks, whose memory is that of the file.
        for reads in [[0; 16], [1; 16], [0, 1, 0, 100, 0, 1000, 0, 1, 0, 1, 0, 9, 0, 0, 0, 0]] {
            let tags = reads.map(|blocks| {
                let (mut cdb, direction, mut data) = command(0x12, 0);
                if blocks > 0 {
                    cdb[..10].copy_from_slice(&rw10(0x28, 0, blocks));
                    data = vec![0; usize::from(blocks) * 512];
                }
                client.submit(&cdb, direction, data)
            });
            client.flush().await.unwrap();
            settle(bench).await;
            bench.expect_charged(&format!("{kind:?}: data is not received"));
            for tag in tags {
                client.outcome(tag).await.unwrap();
            }
            settle(bench).await;
            bench.expect_settled(before, &format!("{kind:?}: all data is received"));
        }
        begin(bench, &mut client, before, kind).await;
        client.stream_shutdown();
    });
}

#[test]
fn task_management() {
    on_kinds(async |bench, mut client, before, kind| {
        for n in 0..4 {
            let tag = begin(bench, &mut client, before, kind).await[n];
            let managed = client.session().abort(tag).unwrap().unwrap();
            client.managed(managed).await.unwrap();
            settle(bench).await;
            bench.expect_charged(&format!("{kind:?}: ABORT TASK"));
            client.manage(TaskFunction::ABORT_TASK_SET).await;
            client.clear_attention().await;
            settle(bench).await;
            bench.expect_settled(before, &format!("{kind:?}: ABORT TASK SET"));
        }
        for function in
            [TaskFunction::CLEAR_TASK_SET, TaskFunction::LOGICAL_UNIT_RESET, TaskFunction::TARGET_WARM_RESET]
        {
            begin(bench, &mut client, before, kind).await;
            client.manage(function).await;
            settle(bench).await;
            bench.expect_charged(&format!("{kind:?}: {function:?}"));
            client.manage(TaskFunction::ABORT_TASK_SET).await;
            client.clear_attention().await;
            settle(bench).await;
            bench.expect_settled(before, &format!("{kind:?}: {function:?}"));
        }
        begin(bench, &mut client, before, kind).await;
        client.session().manage(TaskFunction::TARGET_COLD_RESET, 0).unwrap();
        client.expect_end_of_session().await;
    });
}

#[test]
fn other_requests_and_logout() {
    on_kinds(async |bench, mut client, before, kind| {
        for length in [0, 1, 4096, 8192] {
            client.session().ping(vec![7; length]).unwrap();
            client.flush().await.unwrap();
            settle(bench).await;
            bench.expect_charged(&format!("{kind:?}: NOP with {length} bytes"));
            client.event(|e| matches!(e, InitiatorEvent::Pong { .. }).then_some(())).await.unwrap();
        }
        client.session().send_text(SendTargets::Session.encode()).unwrap();
        client.flush().await.unwrap();
        settle(bench).await;
        bench.expect_charged(&format!("{kind:?}: text"));
        client.event(|e| matches!(e, InitiatorEvent::Text { .. }).then_some(())).await.unwrap();
        bench.expect_settled(before, &format!("{kind:?}: text"));
        let exp_stat_sn = client.exp_stat_sn();
        let text = TextRequest { numbers: RequestNumbers { cmd_sn: 0, exp_stat_sn }, ..CONTINUED_TEXT };
        let mut unknown = Request::NopOut(nop(1)).encode(0);
        unknown[0] = 0x40 | 0x1e;
        let mut snack = unknown;
        snack[0] = 0x10;
        let raw = [
            ("data of no task", Request::DataOut(data_out(999, u32::MAX, 0, 0)).encode(4096), 4096),
            ("an unknown opcode", unknown, 0),
            ("SNACK", snack, 0),
        ];
        client.send(&Request::Text(text).encode(4096), &[b'x'; 4096]).await.unwrap();
        settle(bench).await;
        let charged = bench.charged_since(before);
        assert!((4096..=5632).contains(&charged), "{kind:?}: a text with a C bit: {charged}");
        let (end, target) =
            (TextRequest { last: true, continued: false, ..text }, SendTargets::Session.encode());
        client.send(&Request::Text(end).encode(target.len() as u32), &target).await.unwrap();
        settle(bench).await;
        while let Some(Ok(_)) = client.receive().now_or_never() {}
        for (case, mut bhs, length) in raw {
            bhs[28..32].copy_from_slice(&exp_stat_sn.to_be_bytes());
            client.send(&bhs, &vec![b'x'; length]).await.unwrap();
            settle(bench).await;
            while let Some(Ok(_)) = client.receive().now_or_never() {}
            settle(bench).await;
            bench.expect_settled(before, &format!("{kind:?}: {case}"));
        }
        client.send(&login(|r| r.numbers.exp_stat_sn = exp_stat_sn, b"").bhs, b"").await.unwrap();
        client.expect_end().await;
        let (mut client, before) = session(bench, kind).await;
        begin(bench, &mut client, before, kind).await;
        client.log_out().await;
    });
}

/// Pings whose answers the initiator does not receive, and an answer to SendTargets of which it has received a part.
#[test]
fn answers_are_charged() {
    const PINGS: usize = 8;
    on_kinds(async |bench, mut client, before, kind| {
        for length in [0, 1, 8192] {
            for _ in 0..PINGS {
                client.session().ping(vec![7; length]).unwrap();
            }
            client.flush().await.unwrap();
            settle(bench).await;
            let unsent = PINGS - CAPACITY.div_ceil(48 + length); // The stream has the others.
            let charged = bench.charged_since(before);
            let expected = unsent * length..=PINGS * (length + 512) + 512;
            assert!(charged > 0 && expected.contains(&charged), "{kind:?}, {length} bytes: {charged}");
            for _ in 0..PINGS {
                client.event(|e| matches!(e, InitiatorEvent::Pong { .. }).then_some(())).await.unwrap();
            }
            settle(bench).await;
            bench.expect_settled(before, &format!("{kind:?}: answers with {length} bytes"));
        }
        client.log_out().await;
    });
}

/// An answer to SendTargets takes many PDUs: the session has a part of it at a time.
#[test]
fn the_answer_of_a_discovery_is_charged_by_its_parts() {
    const TARGETS: usize = 500;
    run(ConnectionLimits::default(), async |mut bench| {
        bench.fixture.charge_all();
        let names: Vec<String> = (0..TARGETS).map(|n| format!("{TARGET}:{}{n:03}", "x".repeat(50))).collect();
        let targets = names.iter().map(|n| TargetConfig { name: name(n), ..target(&bench.device) });
        bench.table.replace(targets.collect()).unwrap();
        let mut client = bench.connect_with(CAPACITY, usize::MAX);
        client.log_in_to(1, None).await.unwrap();
        settle(&bench).await;
        let before = bench.memory();
        client.session().send_text(SendTargets::All.encode()).unwrap();
        client.flush().await.unwrap();
        let mut most = 0;
        let answer = loop {
            settle(&bench).await;
            let text = client.events.drain(..).find_map(|event| match event {
                InitiatorEvent::Text { text, .. } => Some(text),
                _ => None,
            });
            if let Some(text) = text {
                break text;
            }
            most = most.max(bench.charged_since(before));
            client.step().await.unwrap();
        };
        let found = discovery::decode(&answer).unwrap();
        let found: Vec<&str> = found.iter().map(|target| target.name.as_str()).collect();
        assert!(found == names, "{} targets", found.len());
        assert!((8192..=40 << 10).contains(&most), "{most} of {} bytes", answer.len());
        bench.expect_settled(before, "the answer is complete");
        client.log_out().await;
        bench.expect_idle().await;
    });
}

/// Pings that arrive together are answered by a limited number per turn of the connection.
#[test]
fn pings_are_answered_in_turns() {
    const PINGS: usize = 4096;
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect_with(1 << 20, usize::MAX);
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let bytes = client.encode(&Request::NopOut(nop(1)).encode(0), b"").repeat(PINGS);
        client.send_bytes(&bytes).await.unwrap();
        let (mut answers, mut most) = (0, 0);
        while answers < PINGS {
            client.receive().await.unwrap();
            let mut together = 1;
            while let Some(answer) = client.receive().now_or_never() {
                answer.unwrap();
                together += 1;
            }
            (answers, most) = (answers + together, most.max(together));
        }
        assert!(most <= 64, "{most} at a time");
        client.stream_shutdown();
        bench.expect_idle().await;
    });
}

/// Steps of a login: each PDU arrives in two parts.
#[test]
fn login_steps() {
    run(ConnectionLimits::default(), async |mut bench| {
        bench.fixture.charge_all();
        let names = b"InitiatorName=iqn.2026-01.example:host\0TargetName=iqn.2026-01.example:target\0";
        let steps = [
            login(|r| (r.continued, r.next) = (true, None), &names[..10]),
            login(|r| r.next = None, &names[10..]),
            login(|r| r.next = None, b"MaxBurstLength=65536\0"),
            login(|_| {}, b""),
        ];
        for end in 0..=steps.len() {
            let mut client = bench.connect();
            for step in &steps[..end] {
                let bytes = client.encode(&step.bhs, &step.data);
                for part in bytes.chunks(50) {
                    client.send_bytes(part).await.unwrap();
                    settle(&bench).await;
                    bench.expect_charged("a login");
                }
                client.receive().await.unwrap();
            }
            client.stream_shutdown();
            bench.expect_idle().await;
        }
    });
}
