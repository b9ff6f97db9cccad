//! Every request, with and without immediate data: memory that is in use is charged, and released at the end.

use std::{future::poll_fn, task::Poll, time::Duration};

use millrace_iscsi::{
    discovery::SendTargets,
    iser::{Advertised, Hello},
    pdu::{Request, TaskFunction},
    session::{Direction, InitiatorEvent},
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;

use super::{
    common::{Bench, Client, NAMES, NUMBERS, login, run, rw10},
    hostile::{hello, nop},
};
use crate::charges::{Memory, REPORT_OPCODES, command, opcodes};

/// The memory of a session without commands.
#[derive(Clone, Copy)]
struct Before {
    memory: Memory,
    /// A session has, and is charged, memory for immediate data from its login on.
    immediate_data: bool,
}

/// A session, and the memory that it has without commands.
async fn session(bench: &Bench, immediate_data: bool) -> (Client, Before) {
    let mut client = bench.connect().await;
    client.settings.immediate_data = immediate_data;
    client.log_in(1).await.unwrap();
    client.clear_attention().await;
    settle(bench, &mut client, None, "a session").await;
    (client, Before { memory: bench.memory(), immediate_data })
}

/// The target works, and the initiator does not: it receives what its transport receives without it.
async fn settle(bench: &Bench, client: &mut Client, before: Option<Before>, case: &str) {
    poll_fn(|cx| {
        client.qp.flush(cx);
        Poll::Ready(())
    })
    .await;
    let pauses = [Duration::from_micros(10); 200].into_iter().chain([Duration::from_millis(100)]);
    for pause in pauses {
        bench.rt.sleep(pause).await;
        bench.expect_charged(case);
        if let Some(Before { memory, immediate_data: false }) = before {
            bench.expect_charged_beyond(memory, case);
        }
    }
}

/// All has been received: as much is used and charged as `before`.
async fn settled(bench: &Bench, client: &mut Client, before: Before, case: &str) {
    settle(bench, client, Some(before), case).await;
    bench.expect_settled(before.memory, case);
}

fn on_kinds(test: impl AsyncFn(&Bench, Client, Before)) {
    for immediate_data in [true, false] {
        run(&ConnectionLimits::default(), async |mut bench| {
            bench.fixture.charge_all();
            let (client, before) = session(&bench, immediate_data).await;
            test(&bench, client, before).await;
            bench.expect_idle().await;
        });
    }
}

#[test]
fn every_command() {
    on_kinds(async |bench, mut client, before| {
        let (_, known) = client.execute(&REPORT_OPCODES, Direction::Read, vec![0; 4096]).await;
        let length = u32::from_be_bytes(known[..4].try_into().unwrap()) as usize;
        let known = opcodes(&known[..4 + length]);
        assert!(known.len() > 50, "{known:?}");
        for (opcode, action) in known {
            let case = format!("{opcode:#x}/{action:#x}");
            let (cdb, direction, data) = command(opcode, action);
            let itt = client.submit(&cdb, direction, data);
            client.flush();
            settle(bench, &mut client, Some(before), &case).await;
            client.outcome(itt).await.unwrap();
            client.data.remove(&itt);
            settled(bench, &mut client, before, &case).await;
        }
        client.log_out().await;
    });
}

/// WRITEs and READs, whose last messages and RDMA operations are under way.
fn begin(client: &mut Client) -> Vec<u32> {
    let mut tags = Vec::new();
    for (n, blocks) in (0..).zip([1, 7, 16, 129, 1000]) {
        let data = || vec![1; usize::from(blocks) * 512];
        tags.push(client.submit(&rw10(0x2a, 1000 * n, blocks), Direction::Write, data()));
        tags.push(client.submit(&rw10(0x28, 1000 * n, blocks), Direction::Read, data()));
        tags.push(client.submit(&command(0x12, 0).0, Direction::Read, vec![0; 252]));
    }
    client.flush();
    tags
}

#[test]
fn data_that_is_under_way_or_has_no_end() {
    on_kinds(async |bench, mut client, before| {
        for tag in begin(&mut client) {
            settle(bench, &mut client, Some(before), "data is under way").await;
            client.outcome(tag).await.unwrap();
        }
        settled(bench, &mut client, before, "all data has come").await;
        begin(&mut client);
        settle(bench, &mut client, Some(before), "data has no end").await;
    });
}

#[test]
fn task_management() {
    on_kinds(async |bench, mut client, before| {
        for function in [
            TaskFunction::ABORT_TASK_SET,
            TaskFunction::CLEAR_TASK_SET,
            TaskFunction::LOGICAL_UNIT_RESET,
            TaskFunction::TARGET_WARM_RESET,
        ] {
            begin(&mut client);
            settle(bench, &mut client, Some(before), &format!("before {function:?}")).await;
            client.manage(function).await;
            client.manage(TaskFunction::ABORT_TASK_SET).await;
            client.clear_attention().await;
            settled(bench, &mut client, before, &format!("{function:?}")).await;
        }
        client.log_out().await;
    });
}

#[test]
fn other_requests_and_logout() {
    on_kinds(async |bench, mut client, before| {
        for length in [0, 1, 4096, 8192] {
            const PINGS: usize = 6; // As many as the target has receives for.
            for _ in 0..PINGS {
                client.session().ping(vec![7; length]).unwrap();
            }
            client.flush();
            settle(bench, &mut client, Some(before), &format!("NOPs with {length} bytes")).await;
            for _ in 0..PINGS {
                client.event(|e| matches!(e, InitiatorEvent::Pong { .. }).then_some(())).await.unwrap();
            }
            settled(bench, &mut client, before, &format!("NOPs with {length} bytes are answered")).await;
        }
        client.session().send_text(SendTargets::Session.encode()).unwrap();
        client.flush();
        settle(bench, &mut client, Some(before), "text").await;
        client.event(|e| matches!(e, InitiatorEvent::Text { .. }).then_some(())).await.unwrap();
        settled(bench, &mut client, before, "a text is answered").await;
        begin(&mut client);
        client.session().logout().unwrap();
        client.flush();
        settle(bench, &mut client, Some(before), "a logout").await;
    });
}

/// Requests with an opcode that does not exist are rejected.
#[test]
fn rejects() {
    on_kinds(async |bench, mut client, before| {
        let mut unknown = Request::NopOut(nop(NUMBERS)).encode(0);
        unknown[0] = 0x40 | 0x1e;
        for _ in 0..6 {
            client.send(Advertised::default(), &unknown, b"");
        }
        settle(bench, &mut client, Some(before), "unknown opcodes").await;
    });
}

/// A Hello, and the steps of a login, each of which the initiator receives late.
#[test]
fn hello_and_login_steps() {
    let mut limits = ConnectionLimits::default();
    limits.settings.immediate_data = false; // Memory for it is charged from the login on.
    run(&limits, async |mut bench| {
        bench.fixture.charge_all();
        let mut client = bench.connect().await;
        settle(&bench, &mut client, None, "a connection").await;
        client.send_bytes(&hello(Hello::new(4)));
        settle(&bench, &mut client, None, "a Hello").await;
        client.receive_message().await.unwrap();
        let keys = b"RDMAExtensions=Yes\0";
        for step in [
            login(|r| (r.continued, r.next) = (true, None), &NAMES[..10]),
            login(|r| r.next = None, &NAMES[10..]),
            login(|r| r.next = None, keys),
            login(|_| {}, b""),
        ] {
            client.send(Advertised::default(), &step.bhs, &step.data);
            settle(&bench, &mut client, None, "a login").await;
            client.receive().await.unwrap();
            settle(&bench, &mut client, None, "a login response").await;
        }
        drop(client);
        bench.expect_idle().await;
    });
}
