//! Time limits, and commands that the file system has not completed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::task::AtomicWaker;
use millrace_iscsi::{
    pdu::{TaskFunction, TaskResult},
    session::Direction,
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;
use millrace_vfs::{
    Attr, DirPage, FileSystem, FileSystemRef, FsInfo, FsResult, Handle, Identity, MaybeReady, Read,
    ReadDirLimits, Stability, Views, Written,
};

use crate::common::{Ended, run, run_on, rw10};

type Op<T> = MaybeReady<'static, FsResult<T>>;

/// Whether reads complete.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    waiting: AtomicU64,
    waker: AtomicWaker,
}

impl Gate {
    fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// A file system whose reads wait at a gate.
struct Gated(FileSystemRef, Arc<Gate>);

impl FileSystem for Gated {
    fn root(&self) -> Handle {
        self.0.root()
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        self.0.getattr(file)
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        self.0.lookup(caller, dir, name)
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let read = self.0.read(caller, file, offset, count);
        let gate = Arc::clone(&self.1);
        if !gate.closed.load(Ordering::Relaxed) {
            return read;
        }
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        MaybeReady::wait(async move {
            std::future::poll_fn(|cx| {
                gate.waker.register(cx.waker());
                if gate.closed.load(Ordering::Relaxed) {
                    std::task::Poll::Pending
                } else {
                    std::task::Poll::Ready(())
                }
            })
            .await;
            gate.waiting.fetch_sub(1, Ordering::Relaxed);
            read.await
        })
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        self.0.readdir(caller, dir, cookie, verifier, limits)
    }

    fn info(&self) -> FsInfo {
        self.0.info()
    }

    fn create(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        how: &millrace_vfs::CreateHow,
    ) -> Op<millrace_vfs::Created> {
        self.0.create(caller, dir, name, how)
    }

    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        self.0.write(caller, file, offset, data, stable)
    }
}

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
        // One that does not answer ends.
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
