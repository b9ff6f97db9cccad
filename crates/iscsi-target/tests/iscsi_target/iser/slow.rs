//! Commands that the file system has not completed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_iscsi::{pdu::TaskResult, session::Direction};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;

use super::common::{Bench, run_on, rw10};
use crate::gate::{Gate, Gated};

fn run(test: impl AsyncFn(Bench, &Gate)) {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let wrap = move |fs| Arc::new(Gated(fs, Arc::clone(&theirs))) as millrace_vfs::FileSystemRef;
    run_on(&ConnectionLimits::default(), wrap, async |bench| test(bench, &gate).await);
}

#[test]
fn no_rdma_write_of_an_aborted_read_follows_the_answer() {
    run(async |bench, gate| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        gate.closed.store(true, Ordering::Relaxed);
        let before = client.qp.counters().peer_writes;
        let read = client.submit(&rw10(0x28, 0, 128), Direction::Read, vec![0xee; 65536]);
        client.flush();
        // The connection serves other requests meanwhile.
        client.execute(&[0; 6], Direction::None, Vec::new()).await;
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 1);
        let function = client.session().abort(read).unwrap().unwrap();
        client.execute(&[0; 6], Direction::None, Vec::new()).await;
        assert!(client.events.is_empty(), "{:?}", client.events);
        gate.open();
        assert_eq!(client.managed(function).await, Ok(TaskResult::COMPLETE));
        client.outcome(read).await.unwrap();
        assert_eq!(client.data[&read], vec![0xee; 65536], "no data was written");
        client.clear_attention().await;
        assert_eq!(client.qp.counters().peer_writes, before);
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn commands_are_completed_after_the_end_of_their_connection() {
    run(async |bench, gate| {
        let mut client = bench.connect().await;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        gate.closed.store(true, Ordering::Relaxed);
        client.submit(&rw10(0x28, 0, 8), Direction::Read, vec![0; 4096]);
        client.execute(&[0; 6], Direction::None, Vec::new()).await;
        drop(client);
        bench.rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.table.sessions(), 1, "the session ends after its commands");
        // A login that reinstates the session waits until the old session has ended.
        let mut new = bench.connect().await;
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
    });
}
