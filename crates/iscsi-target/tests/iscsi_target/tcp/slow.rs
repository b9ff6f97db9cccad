//! Time limits, and commands that the file system has not completed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_iscsi::{
    pdu::{TaskFunction, TaskResult},
    session::Direction,
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;

use super::common::{Ended, TARGET, name, run, run_on, rw10};
use crate::gate::{Gate, Gated};

#[test]
fn an_aborted_command_ends_before_the_answer_and_its_data_is_dropped() {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    run_on(
        ConnectionLimits::default(),
        |fs| Arc::new(Gated(fs, theirs)),
        async |bench| {
            let mut client = bench.connect();
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            for set in [false, true] {
                gate.closed.store(true, Ordering::Relaxed);
                let read = client.submit(&rw10(0x28, 0, 8), Direction::Read, vec![0xee; 4096]);
                client.flush().await.unwrap();
                bench.rt.sleep(Duration::from_secs(1)).await;
                let managed = if set {
                    client.session().manage(TaskFunction::ABORT_TASK_SET, 0).unwrap()
                } else {
                    client.session().abort(read).unwrap().unwrap()
                };
                client.flush().await.unwrap();
                bench.rt.sleep(Duration::from_secs(1)).await;
                assert_eq!(gate.waiting.load(Ordering::Relaxed), 1);
                // The connection serves other requests meanwhile.
                client.execute(&[0; 6], Direction::None, Vec::new()).await;
                assert!(client.events.is_empty(), "{:?}", client.events);
                gate.open();
                assert_eq!(client.managed(managed).await, Ok(TaskResult::COMPLETE));
                assert_eq!(client.data[&read], vec![0xee; 4096], "no data was sent");
                client.events.clear();
            }
            client.clear_attention().await;
            client.log_out().await;
            bench.expect_idle().await;
        },
    );
}

#[test]
fn commands_are_completed_after_the_end_of_their_connection() {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    run_on(
        ConnectionLimits::default(),
        |fs| Arc::new(Gated(fs, theirs)),
        async |bench| {
            let mut client = bench.connect();
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            gate.closed.store(true, Ordering::Relaxed);
            client.submit(&rw10(0x28, 0, 8), Direction::Read, vec![0; 4096]);
            client.flush().await.unwrap();
            bench.rt.sleep(Duration::from_secs(1)).await;
            client.stream_shutdown();
            bench.rt.sleep(Duration::from_secs(1)).await;
            assert_eq!(bench.server.table.sessions(), 1, "the session ends after its commands");
            // A login that reinstates the session waits for that.
            let mut new = bench.connect();
            let opener = async {
                bench.rt.sleep(Duration::from_secs(5)).await;
                assert_eq!(gate.waiting.load(Ordering::Relaxed), 1);
                gate.open();
            };
            let (result, ()) = futures::future::join(new.log_in(1), opener).await;
            result.unwrap();
            assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
            new.clear_attention().await;
            new.log_out().await;
            bench.expect_idle().await;
        },
    );
}

/// A login waits for the session that it reinstates longer than logins may take, and the next login waits for that, too.
#[test]
fn reinstating_logins_wait_for_the_commands_of_the_first_session() {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    run_on(
        ConnectionLimits::default(),
        |fs| Arc::new(Gated(fs, theirs)),
        async |bench| {
            let mut client = bench.connect();
            client.log_in(1).await.unwrap();
            client.clear_attention().await;
            gate.closed.store(true, Ordering::Relaxed);
            client.submit(&rw10(0x28, 0, 8), Direction::Read, vec![0; 4096]);
            client.flush().await.unwrap();
            bench.rt.sleep(Duration::from_secs(1)).await;
            let mut second = bench.connect();
            let waits_long = async {
                assert_eq!(
                    second.try_log_in_to(1, Some(name(TARGET))).await,
                    Err(Ended),
                    "the third replaces it"
                );
            };
            let waits = async {
                bench.rt.sleep(Duration::from_secs(20)).await;
                let mut third = bench.connect();
                third.log_in(1).await.unwrap();
                assert_eq!(gate.waiting.load(Ordering::Relaxed), 0, "the command has ended");
                third.clear_attention().await;
                third.log_out().await;
            };
            let opener = async {
                bench.rt.sleep(Duration::from_secs(30)).await;
                gate.open();
            };
            futures::future::join3(waits_long, waits, opener).await;
            client.stream_shutdown();
            second.stream_shutdown();
            bench.expect_idle().await;
        },
    );
}

#[test]
fn silent_initiators_are_disconnected() {
    run(ConnectionLimits::default(), async |bench| {
        // Ten connections without a login, and one with a part of a PDU.
        let mut half_open: Vec<_> = (0..10).map(|_| bench.connect()).collect();
        half_open[0].send_bytes(&[0x43; 20]).await.unwrap();
        for client in &mut half_open {
            client.expect_end().await;
        }
        // An initiator that answers pings remains.
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        for _ in 0..5 {
            client.step().await.unwrap();
        }
        // A connection whose initiator does not answer a NOP-In ends.
        let pings = client.expect_end().await.len();
        assert_eq!(pings, 1);
        bench.expect_idle().await;
        // Data that was requested does not come.
        let mut client = bench.connect();
        client.settings.immediate_data = false;
        client.settings.initial_r2t = true;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        client.submit(&rw10(0x2a, 0, 128), Direction::Write, vec![1; 65536]);
        let pdu = client.session().poll_transmit().unwrap();
        client.send(&pdu.encode(), &[]).await.unwrap();
        client.expect_end().await;
        assert_eq!(client.receive().await, Err(Ended));
        bench.expect_idle().await;
        assert_eq!(bench.server.stats.stalled.load(Ordering::Relaxed), 12);
        bench.expect_service().await;
    });
}
