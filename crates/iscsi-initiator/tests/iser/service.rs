//! Sessions with a target that respects the protocol.

use std::collections::HashSet;

use millrace_buffer::Views;
use millrace_iscsi::{
    negotiation::Settings,
    pdu::TaskResult,
    session::{Direction, InitiatorEvent, Outcome, RequestError},
};
use millrace_iscsi_initiator::iser::{Event, SubmitReason};
use millrace_rdma::Memory;

use crate::bench::{bytes, command, pattern, run, rw10};

#[test]
fn data_is_transferred_and_its_memory_returns() {
    run(async |bench| {
        for (n, immediate_data) in [true, false].into_iter().enumerate() {
            let mut client = bench.connect(n as u8, Settings { immediate_data, ..Settings::default() }).await;
            for blocks in [1, 16, 17, 128, 2065, 8192] {
                let data = pattern(blocks * 512, n + blocks);
                client.write(3, &data).await;
                assert!(client.read(3, blocks as u16).await == data, "{blocks} blocks");
            }
            client.log_out().await;
        }
        bench.expect_idle().await;
        assert_eq!(bench.arena.stats().in_use, 0);
    });
}

#[test]
fn only_the_memory_of_open_commands_is_exposed() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        // All data is immediate.
        let memory = client.memory(&pattern(8192, 1));
        client.submit(&rw10(0x2a, 0, 16), Direction::Write, Some(memory));
        assert_eq!(client.domain.exposed(), (0, 0));
        let shared = Memory::Shared(Views::from(bench.arena.copy_from(&pattern(65536, 2)).unwrap()));
        client.submit(&rw10(0x2a, 16, 128), Direction::Write, Some(shared));
        assert_eq!(client.domain.exposed(), (1, 65536));
        let memory = client.memory(&[0; 4096]);
        client.submit(&rw10(0x28, 64, 8), Direction::Read, Some(memory));
        assert_eq!(client.domain.exposed(), (2, 65536 + 4096));
        // The target registers memory, and binds no windows.
        assert!(bench.binds().is_none_or(|binds| binds == 2));
        for _ in 0..3 {
            client.completed().await;
        }
        assert_eq!(client.domain.exposed(), (0, 0));
        assert!(client.read(16, 128).await == pattern(65536, 2));
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn commands_beyond_the_window_wait_for_it() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        client.write(0, &pattern(512 * 1000, 5)).await;
        let mut open = HashSet::new();
        for n in 0..1000 {
            let memory = client.memory(&[0; 512]);
            open.insert((client.submit(&rw10(0x28, n, 1), Direction::Read, Some(memory)), n));
        }
        let ping = client.connection.ping().unwrap();
        let mut answered = false;
        while !open.is_empty() {
            match client.next().await.unwrap() {
                Event::Completed { itt, memory, .. } => {
                    let n = open.iter().find(|(tag, _)| *tag == itt).unwrap().1;
                    open.remove(&(itt, n));
                    assert!(bytes(memory) == pattern(512 * 1000, 5)[n as usize * 512..][..512]);
                }
                Event::Session(InitiatorEvent::Pong { itt }) => answered = itt == ping,
                Event::Session(other) => panic!("{other:?}"),
            }
        }
        assert!(answered);
        client.log_out().await;
        bench.expect_idle().await;
        assert_eq!(bench.arena.stats().in_use, 0);
    });
}

#[test]
fn an_aborted_command_returns_its_memory_after_its_rdma_operations() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        for direction in [Direction::Write, Direction::Read] {
            let memory = client.memory(&pattern(4 << 20, 1));
            let opcode = if direction == Direction::Write { 0x2a } else { 0x28 };
            let itt = client.submit(&rw10(opcode, 0, 8192), direction, Some(memory));
            // The command is sent before its abort, as no event is there yet.
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(client.connection.poll_event(&mut cx).is_pending());
            let function = client.connection.abort(itt).unwrap().unwrap();
            let (ended, _, memory) = client.completed().await;
            assert_eq!((ended, bytes(memory).len()), (itt, 4 << 20));
            assert_eq!(client.domain.exposed(), (0, 0));
            let Event::Session(InitiatorEvent::Managed { itt, result }) = client.next().await.unwrap() else {
                panic!("no answer")
            };
            assert_eq!(itt, function);
            assert!(matches!(result, TaskResult::COMPLETE | TaskResult::NO_TASK), "{result:?}");
        }
        client.log_out().await;
        bench.expect_idle().await;
        assert_eq!(bench.arena.stats().in_use, 0);
    });
}

#[test]
fn a_lost_connection_returns_the_memory_of_all_commands() {
    run(async |mut bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        let data: Vec<Vec<u8>> = (0..4).map(|n| pattern(2 << 20, n)).collect();
        let tags: Vec<u32> = data
            .iter()
            .map(|data| {
                let memory = client.memory(data);
                client.submit(&rw10(0x2a, 0, 4096), Direction::Write, Some(memory))
            })
            .collect();
        assert_eq!(client.domain.exposed(), (4, 8 << 20));
        // A login that reinstates the session ends the connection.
        let other = bench.connect(1, Settings::default()).await;
        let mut ended = Vec::new();
        while let Ok(event) = client.next().await {
            if let Event::Completed { itt, .. } = event {
                ended.push(itt);
            }
        }
        let unfinished = client.connection.into_unfinished();
        assert_eq!(client.domain.exposed(), (0, 0));
        ended.extend(unfinished.iter().map(|(task, _)| task.itt));
        assert_eq!(ended, tags);
        for (task, memory) in unfinished {
            if let Some(memory) = memory {
                assert!(bytes(Some(memory)) == data[tags.iter().position(|t| *t == task.itt).unwrap()]);
            }
        }
        other.log_out().await;
        drop(bench.fixture.stopper.take());
        bench.expect_idle().await;
        assert_eq!(bench.arena.stats().in_use, 0);
    });
}

#[test]
fn a_command_that_is_not_submitted_returns_its_memory() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        let memory = client.memory(&[1; 1024]);
        let refused =
            client.connection.submit(command(&rw10(0x28, 0, 1), Direction::Read, 512), Some(memory));
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason, SubmitReason::Length { provided: 1024, expected: 512 });
        assert_eq!(bytes(refused.memory), [1; 1024]);
        client.connection.logout().unwrap();
        let memory = client.memory(&[2; 512]);
        let refused =
            client.connection.submit(command(&rw10(0x28, 0, 1), Direction::Read, 512), Some(memory));
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason, SubmitReason::Request(RequestError::Closing));
        assert_eq!(bytes(refused.memory), [2; 512]);
        assert_eq!(client.domain.exposed(), (0, 0));
        while client.next().await.is_ok() {}
        drop(client);
        bench.expect_idle().await;
    });
}

#[test]
fn a_dropped_connection_ends_the_exposure() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        let memory = client.memory(&[0; 65536]);
        let itt = client.submit(&rw10(0x28, 0, 128), Direction::Read, Some(memory));
        assert_ne!(client.domain.exposed(), (0, 0), "{itt}");
        drop(client.connection);
        assert_eq!(client.domain.exposed(), (0, 0));
        bench.expect_idle().await;
        assert_eq!(bench.arena.stats().in_use, 0);
    });
}

#[test]
fn outcomes_have_residual_counts() {
    run(async |bench| {
        let mut client = bench.connect(1, Settings::default()).await;
        let memory = client.memory(&[0xee; 4096]);
        let (outcome, memory) = client.execute(&rw10(0x28, 0, 2), Direction::Read, Some(memory)).await;
        assert!(matches!(outcome, Outcome::Completed { status: 0, transferred: 1024, .. }), "{outcome:?}");
        assert!(bytes(memory)[1024..].iter().all(|b| *b == 0xee));
        client.log_out().await;
        bench.expect_idle().await;
    });
}
