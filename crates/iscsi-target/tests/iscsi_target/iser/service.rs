//! Login, discovery, data and task management of initiators that respect the protocol.

use std::sync::atomic::Ordering;

use millrace_iscsi::{
    discovery::{self, SendTargets},
    iser::PrivateData,
    login::{LoginError, Status},
    negotiation::Settings,
    pdu::{Residual, TaskFunction, TaskResult},
    session::{Direction, InitiatorEvent, Outcome},
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_rdma::ConnectParams;

use super::common::{Ended, Fabric, TARGET, name, pattern, run, rw10, target};

#[test]
fn data_is_written_immediately_and_by_rdma_reads() {
    run(&ConnectionLimits::default(), async |bench| {
        for (n, immediate_data) in [true, false].into_iter().enumerate() {
            let mut client = bench.connect().await;
            client.settings = Settings { immediate_data, ..client.settings };
            client.log_in(n as u8).await.unwrap();
            let parameters = client.established.as_ref().unwrap().parameters;
            assert!(parameters.iser.is_some() && parameters.initial_r2t);
            assert_eq!(parameters.max_send_data, 8192);
            client.clear_attention().await;
            for (blocks, reads) in [(1, 0), (16, 0), (17, 1), (129, 1), (2065, 2), (8192, 5)] {
                let data = pattern(blocks * 512, n + blocks);
                let before = client.qp.counters();
                client.write(3, &data).await;
                assert!(client.read(3, blocks as u16).await == data, "{blocks} blocks");
                let after = client.qp.counters();
                let reads = if immediate_data { reads } else { reads.max(1) };
                assert_eq!(after.peer_reads - before.peer_reads, reads, "{blocks} blocks");
                assert_eq!(after.peer_writes - before.peer_writes, (blocks as u64).div_ceil(2048));
                assert_eq!(client.exposed(), (0, 0));
            }
            client.log_out().await;
        }
        bench.expect_idle().await;
        assert_eq!(bench.stats.malformed.load(Ordering::Relaxed), 0);
        let registered = bench.registration.stats();
        let local = registered.registrations + registered.hits > 0;
        assert_eq!(local, bench.fabric == Fabric::Sim, "{registered:?}");
    });
}

#[test]
fn the_response_invalidates_the_tag_if_both_ends_permit_it() {
    run(&ConnectionLimits::default(), async |bench| {
        for (private_data, expected) in [
            (PrivateData { remote_invalidate: true }.encode().to_vec(), 2),
            (PrivateData { remote_invalidate: false }.encode().to_vec(), 0),
            (Vec::new(), 0),
        ] {
            let params = ConnectParams { private_data, ..ConnectParams::default() };
            let mut client = bench.connect_with(params).await;
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            client.write(0, &pattern(65536, 1)).await;
            assert!(client.read(0, 128).await == pattern(65536, 1));
            assert_eq!(client.invalidated, expected);
            client.log_out().await;
        }
        bench.expect_idle().await;
    });
}

#[test]
fn commands_are_executed_concurrently_within_the_limits_of_memory() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        // 40 MiB of commands, with 16 MiB of memory.
        let data = |n: u32| pattern(1 << 20, n as usize);
        let writes: Vec<u32> =
            (0..10).map(|n| client.submit(&rw10(0x2a, n * 2048, 2048), Direction::Write, data(n))).collect();
        for itt in writes {
            client.outcome(itt).await.unwrap();
        }
        for _ in 0..3 {
            let read = |n| (n, client.submit(&rw10(0x28, n * 2048, 2048), Direction::Read, vec![0; 1 << 20]));
            let reads: Vec<(u32, u32)> = (0..10).map(read).collect();
            for (n, itt) in reads {
                client.outcome(itt).await.unwrap();
                assert!(client.data[&itt] == data(n));
            }
        }
        assert!(bench.budget.stats().peak <= 16 << 20, "{:?}", bench.budget.stats());
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn a_write_gets_memory_when_its_rdma_reads_can_start() {
    run(&ConnectionLimits::default(), async |bench| {
        // One RDMA Read at a time.
        let mut client = bench.connect_with(ConnectParams { ird: 1, ..ConnectParams::default() }).await;
        client.settings.immediate_data = false;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let writes: Vec<u32> = (0..8)
            .map(|n| (rw10(0x2a, n * 2048, 2048), pattern(1 << 20, n as usize)))
            .map(|(cdb, data)| client.submit(&cdb, Direction::Write, data))
            .collect();
        for itt in writes {
            client.outcome(itt).await.unwrap();
        }
        // The data of two writes, and 2.2 MiB of receives.
        assert!(bench.budget.stats().peak < 5 << 20, "{:?}", bench.budget.stats());
        assert!(client.read(7 * 2048, 2048).await == pattern(1 << 20, 7));
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn residual_counts_tell_how_much_was_transferred() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        client.write(0, &pattern(8192, 4)).await;
        // More memory than the command reads, and less.
        let (outcome, data) = client.execute(&rw10(0x28, 0, 2), Direction::Read, vec![0xee; 4096]).await;
        let expected = (Residual::Underflow(3072), 1024);
        assert!(
            matches!(outcome, Outcome::Completed { status: 0, residual, transferred, .. }
                if (residual, transferred) == expected),
            "{outcome:?}"
        );
        assert!(data[..1024] == pattern(8192, 4)[..1024] && data[1024..].iter().all(|b| *b == 0xee));
        let (outcome, data) = client.execute(&rw10(0x28, 0, 8), Direction::Read, vec![0xee; 1024]).await;
        assert!(
            matches!(outcome, Outcome::Completed { residual: Residual::Overflow(3072), .. }),
            "{outcome:?}"
        );
        assert!(data == pattern(8192, 4)[..1024]);
        // A write that announces more data than the command takes.
        let (outcome, _) = client.execute(&rw10(0x2a, 4, 20), Direction::Write, pattern(16384, 5)).await;
        assert!(
            matches!(outcome, Outcome::Completed { residual: Residual::Underflow(6144), .. }),
            "{outcome:?}"
        );
        assert!(client.read(4, 20).await == pattern(16384, 5)[..10240]);
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn discovery_lists_the_permitted_targets() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut other = target(&bench.device);
        (other.name, other.initiators) =
            (name("iqn.2026-01.example:other"), vec![name("iqn.2026-01.example:x")]);
        bench.table.replace(vec![target(&bench.device), other]).unwrap();
        let mut client = bench.connect().await;
        client.log_in_to(1, None).await.unwrap();
        client.session().send_text(SendTargets::All.encode()).unwrap();
        let text = |event: &InitiatorEvent| match event {
            InitiatorEvent::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        let targets = discovery::decode(&client.event(text).await.unwrap()).unwrap();
        let names: Vec<_> = targets.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, [TARGET]);
        client.log_out().await;
        let mut client = bench.connect().await;
        let refused = client.log_in_to(1, Some(name("iqn.2026-01.example:other"))).await;
        assert_eq!(refused, Err(LoginError::Status(Status::FORBIDDEN)));
        client.expect_end().await;
        bench.expect_idle().await;
    });
}

#[test]
fn a_second_login_reinstates_the_session() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut old = bench.connect().await;
        old.log_in(1).await.unwrap();
        old.clear_attention().await;
        let mut new = bench.connect().await;
        new.log_in(1).await.unwrap();
        assert_eq!(old.step().await, Err(Ended));
        drop(old);
        assert_eq!(bench.table.sessions(), 1);
        new.clear_attention().await;
        new.write(0, &pattern(512, 1)).await;
        new.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn task_management_functions_end_writes_after_their_rdma_reads() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect().await;
        client.settings.immediate_data = false;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let before = client.read(0, 8192).await;
        for function in [
            None,
            Some(TaskFunction::ABORT_TASK_SET),
            Some(TaskFunction::CLEAR_TASK_SET),
            Some(TaskFunction::LOGICAL_UNIT_RESET),
            Some(TaskFunction::TARGET_WARM_RESET),
        ] {
            let reads = client.qp.counters().peer_reads;
            let write = client.submit(&rw10(0x2a, 0, 8192), Direction::Write, pattern(4 << 20, 3));
            client.flush();
            let managed = match function {
                None => client.session().abort(write).unwrap().unwrap(),
                Some(function) => client.session().manage(function, 0).unwrap(),
            };
            assert_eq!(client.managed(managed).await, Ok(TaskResult::COMPLETE), "{function:?}");
            assert_eq!(client.outcome(write).await, Ok(Outcome::Aborted), "{function:?}");
            // The memory has been revoked: a later RDMA Read would end the connection.
            assert_eq!(client.exposed(), (0, 0));
            let served = client.qp.counters().peer_reads;
            assert!(served - reads <= 4, "{function:?}");
            client.clear_attention().await;
            assert_eq!(client.qp.counters().peer_reads, served);
            assert!(client.read(0, 8192).await == before);
        }
        assert_eq!(client.manage(TaskFunction::TASK_REASSIGN).await, TaskResult::NO_REASSIGNMENT);
        client.log_out().await;
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn rdma_reads_that_are_not_posted_are_cancelled_by_an_abort() {
    run(&ConnectionLimits::default(), async |bench| {
        // One RDMA Read at a time.
        let mut client = bench.connect_with(ConnectParams { ird: 1, ..ConnectParams::default() }).await;
        client.settings.immediate_data = false;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let write = client.submit(&rw10(0x2a, 0, 8192), Direction::Write, pattern(4 << 20, 3));
        client.flush();
        let managed = client.session().abort(write).unwrap().unwrap();
        assert_eq!(client.managed(managed).await, Ok(TaskResult::COMPLETE));
        let served = client.qp.counters().peer_reads;
        assert!(served <= 2, "{served} RDMA Reads of 4 for a write that was aborted at once");
        client.clear_attention().await;
        assert_eq!(client.qp.counters().peer_reads, served);
        client.write(0, &pattern(4 << 20, 5)).await;
        assert!(client.read(0, 8192).await == pattern(4 << 20, 5));
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn the_end_of_the_server_asks_for_a_logout() {
    run(&ConnectionLimits::default(), async |mut bench| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        bench.fixture.stopper.take().unwrap().send(()).unwrap();
        let asked =
            |event: &InitiatorEvent| matches!(event, InitiatorEvent::LogoutRequested { .. }).then_some(());
        client.event(asked).await.unwrap();
        client.log_out().await;
        bench.expect_idle().await;
    });
}
