//! A server whose file systems hang.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures::future::pending;
use millrace_server::{Running, Server};
use millrace_vfs::{Attr, FileSystem, FileSystemRef, FsStat, Handle, Op};

use crate::common::{Caller, Proto, config, run};

/// A file system in memory that hangs on request.
struct Hanging {
    inner: FileSystemRef,
    control: Arc<Control>,
}

#[derive(Default)]
struct Control {
    /// GETATTR blocks its thread until the sender is dropped.
    gate: Mutex<Option<mpsc::Receiver<()>>>,
    /// Whether questions for the space get no answer, and their number.
    has_no_space: AtomicBool,
    asked_for_space: AtomicUsize,
}

impl FileSystem for Hanging {
    fn getattr(&self, file: &Handle) -> Op<Attr> {
        if let Some(gate) = &*self.control.gate.lock().unwrap() {
            let _ = gate.recv();
        }
        self.inner.getattr(file)
    }

    fn stat(&self) -> Op<FsStat> {
        self.control.asked_for_space.fetch_add(1, Ordering::Relaxed);
        match self.control.has_no_space.load(Ordering::Relaxed) {
            true => Op::wait(pending()),
            false => self.inner.stat(),
        }
    }

    millrace_vfs::forward!(inner: root info lookup read readdir access);
}

/// A server with the exports `/hanging` and `/other` in memory.
fn start(control: &Arc<Control>) -> Running {
    let control = Arc::clone(control);
    let open = move |export: &millrace_server::ExportConfig, with: &millrace_server::Resources<'_>| {
        let inner = millrace_server::open(export, with)?;
        match &*export.name {
            "/hanging" => Ok(Arc::new(Hanging { inner, control: Arc::clone(&control) }) as FileSystemRef),
            _ => Ok(inner),
        }
    };
    Server::start_with(config(&["/hanging=memory:8MiB", "/other=memory:16MiB"]), open).unwrap()
}

#[test]
fn a_shard_that_hangs_is_found() {
    const LIMIT: Duration = Duration::from_millis(200);
    run(async {
        let control = Arc::default();
        let server = start(&control);
        let reader = server.stats_reader();
        let until = async |hung: usize| while reader.hung_shards(LIMIT).await.len() != hung {};
        until(0).await;
        let caller = Caller::connect(&server, Proto::Tcp).await;
        let root = caller.mount("/hanging").await.unwrap();
        let (release, gate) = mpsc::channel();
        *control.gate.lock().unwrap() = Some(gate);
        let hang = async {
            until(1).await;
            let first = reader.hung_shards(LIMIT).await;
            assert_eq!((first.len(), server.stats().shards), (1, 2));
            drop(release);
            until(0).await;
        };
        let (attributes, ()) = futures::join!(caller.getattr(root), hang);
        attributes.unwrap();
    });
}

#[test]
fn a_file_system_that_hangs_delays_no_space_of_others() {
    run(async {
        let control: Arc<Control> = Arc::default();
        let server = start(&control);
        let reader = server.stats_reader();
        let all = reader.spaces().await;
        let sizes: Vec<_> = all.iter().map(|(name, space)| (&**name, space.total_bytes)).collect();
        assert_eq!(sizes, [("/hanging", 8 << 20), ("/other", 16 << 20)]);
        assert!(all.iter().all(|(_, space)| space.free_bytes > 0 && space.free_bytes <= space.total_bytes));

        control.has_no_space.store(true, Ordering::Relaxed);
        let server = start(&control);
        let reader = server.stats_reader();
        let before = control.asked_for_space.load(Ordering::Relaxed);
        for _ in 0..3 {
            let known = reader.spaces().await;
            assert_eq!(known.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["/other"]);
        }
        assert_eq!(control.asked_for_space.load(Ordering::Relaxed), before + 1, "one question at a time");
    });
}
