//! Reloading the exports of a running server, and the handles that clients hold.

use std::sync::mpsc;

use millrace_nfs::v3::{StableHow, Status};
use millrace_server::{Config, Server};

use crate::common::{Caller, Proto, config, run, sys};

#[test]
fn open_files_stay_valid_and_handles_of_removed_exports_become_stale() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let start = config(&["/a=memory:8MiB", "/b=memory:8MiB"]);
            let with = |exports: &[&str]| Config { exports: config(exports).exports, ..start.clone() };
            let mut server = Server::start(start.clone()).unwrap();
            let c = Caller::connect(&server, proto).await;
            let (a, b) = (c.mount("/a").await.unwrap(), c.mount("/b").await.unwrap());
            let (fa, fb) = (c.create(a, "f").await, c.create(b, "f").await);
            c.write(fa, 0, b"kept", StableHow::FileSync).await.unwrap();

            let done =
                server.reload(&with(&["/a=memory:8MiB,squash=all,anon_uid=7", "/c=memory:8MiB"])).unwrap();
            assert_eq!(
                (done.added, done.removed, done.changed),
                (vec!["/c".into()], vec!["/b".into()], vec!["/a".into()])
            );
            assert!(done.unapplied.is_empty());
            // The same connection and the same handles.
            assert_eq!(c.read(fa, 0, 100).await.unwrap().0, b"kept");
            assert_eq!(c.getattr(fb).await, Err(Status::Stale));
            assert!(c.mount("/b").await.is_err());
            c.mount("/c").await.unwrap();
            let made = c.with(sys(5, 5)).create(a, "g").await;
            assert_eq!(c.getattr(made).await.unwrap().uid, 7);

            // Access rules apply to handles that were issued before.
            server.reload(&with(&["/a=memory:8MiB,ro"])).unwrap();
            assert_eq!(c.write(fa, 0, b"x", StableHow::FileSync).await.unwrap_err(), Status::RoFs);
            let done =
                server.reload(&with(&["/a=memory:8MiB,client=*(rw),client=203.0.113.0/24(ro)"])).unwrap();
            assert_eq!(done.changed, ["/a"]);
            c.write(fa, 0, b"k", StableHow::FileSync).await.unwrap();
            server.reload(&with(&["/a=memory:8MiB,client=203.0.113.0/24"])).unwrap();
            assert_eq!(c.getattr(fa).await, Err(Status::Access));
            server.reload(&with(&["/a=memory:8MiB"])).unwrap();
            assert_eq!(c.read(fa, 0, 100).await.unwrap().0, b"kept");
            assert_eq!(server.stats().tcp.opened + server.stats().rdma.opened, 1);
        });
    }
}

#[test]
fn settings_that_need_a_restart_are_listed() {
    run(async {
        let start = config(&["/a=memory:8MiB"]);
        let mut server = Server::start(start.clone()).unwrap();
        let mut new = Config { shards: Some(1), crc: true, ..start.clone() };
        new.limits.credits = 8;
        new.exports = config(&["/a=memory:4MiB"]).exports;
        let done = server.reload(&new).unwrap();
        assert_eq!(done.unapplied, ["shards", "crc", "limits", "export /a: the size of its backend"]);
        assert!(done.added.is_empty() && done.removed.is_empty() && done.changed.is_empty());
        // One invalid export: nothing is changed.
        let bad = Config { exports: config(&["/z=local:/does/not/exist"]).exports, ..start.clone() };
        assert!(server.reload(&bad).unwrap_err().to_string().contains("/does/not/exist"));
        let c = Caller::connect(&server, Proto::Tcp).await;
        c.mount("/a").await.unwrap();
    });
}

#[test]
fn the_quota_follows_added_and_removed_memory_exports() {
    run(async {
        let start = config(&["/a=memory:8MiB"]);
        let with = |exports: &[&str]| Config { exports: config(exports).exports, ..start.clone() };
        let mut server = Server::start(start.clone()).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let before = server.stats().memory;
        for _ in 0..2 {
            server.reload(&with(&["/a=memory:8MiB", "/b=memory:64MiB"])).unwrap();
            let b = c.mount("/b").await.unwrap();
            let file = c.create(b, "f").await;
            for i in 0..60 {
                c.write(file, i << 20, &vec![1; 1 << 20], StableHow::Unstable).await.unwrap();
            }
            let memory = server.stats().memory;
            assert!(
                memory.quotas >= before.quotas + (64 << 20) && memory.stored >= before.stored + (60 << 20)
            );
            server.reload(&start).unwrap();
            let memory = server.stats().memory;
            assert_eq!((memory.quotas, memory.stored), (before.quotas, before.stored));
        }
    });
}

#[test]
fn added_exports_are_opened_by_the_callers_function() {
    run(async {
        let start = config(&["/a=memory:8MiB"]);
        let with = |exports: &[&str]| Config { exports: config(exports).exports, ..start.clone() };
        let (opened, names) = mpsc::channel();
        let mut server = Server::start_with(start.clone(), move |export, with| {
            opened.send(export.name.clone()).unwrap();
            if export.name == "/bad" {
                Err("it is refused".into())
            } else {
                millrace_server::open(export, with)
            }
        })
        .unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let a = c.mount("/a").await.unwrap();

        let done = server.reload(&with(&["/a=memory:8MiB", "/b=memory:8MiB"])).unwrap();
        assert_eq!(done.added, ["/b"]);
        c.mount("/b").await.unwrap();
        // A retained export is not opened again.
        assert_eq!(names.try_iter().collect::<Vec<_>>(), ["/a", "/b"]);
        c.getattr(a).await.unwrap();
        // If a new export cannot be opened, the reload returns its error and changes nothing.
        let error = server.reload(&with(&["/bad=memory:8MiB"])).unwrap_err();
        assert!(error.to_string().contains("it is refused"), "{error}");
        assert_eq!(names.try_iter().collect::<Vec<_>>(), ["/bad"]);
        c.mount("/b").await.unwrap();
    });
}
