//! UNSTABLE data survives restarts of the server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_nfs::v3::{
    self, CommitOk, Fattr, FileType, GetattrOk, NfsTime, Procedure, ReadArgs, ReadOk, WccAttr, WccData,
    WriteArgs, WriteOk,
};

use super::script::{Act, Script, args, attributes, fail, handle, nfs3, ok, quick, run};
use crate::{
    Error, Options, RetryPolicy,
    handles::File,
    ops::{StableHow, Wcc},
};

/// A file on a server that loses uncommitted data at a restart.
#[derive(Default)]
struct Disk {
    stable: Vec<u8>,
    volatile: Vec<(usize, Vec<u8>)>,
    instance: u64,
    /// Number of COMMITs before which the server restarts.
    restarts_at_commit: u32,
    /// Restarts before each WRITE.
    restart_at_write: bool,
}

fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

impl Disk {
    fn restart(&mut self) {
        self.volatile.clear();
        self.instance += 1;
    }

    fn write(&mut self, a: &WriteArgs) -> WriteOk {
        if self.restart_at_write {
            self.restart();
        }
        self.volatile.push((a.offset as usize, a.data.to_vec()));
        let verifier = self.instance.to_be_bytes();
        WriteOk { file: Default::default(), count: a.count, committed: v3::StableHow::Unstable, verifier }
    }

    fn read(&self, a: &ReadArgs, arena: &Arena) -> ReadOk {
        let mut content = self.stable.clone();
        for (at, data) in &self.volatile {
            put(&mut content, *at, data);
        }
        let start = content.len().min(a.offset as usize);
        let end = content.len().min(start + a.count as usize);
        let data = arena.copy_from(&content[start..end]).unwrap().into();
        ReadOk { attributes: None, count: (end - start) as u32, eof: end == content.len(), data }
    }

    fn commit(&mut self) -> CommitOk {
        if self.restarts_at_commit > 0 {
            self.restarts_at_commit -= 1;
            self.restart();
        }
        for (at, data) in std::mem::take(&mut self.volatile) {
            put(&mut self.stable, at, &data);
        }
        CommitOk { file: Default::default(), verifier: self.instance.to_be_bytes() }
    }
}

fn serve(disk: &Arc<Mutex<Disk>>) -> Arc<Script> {
    let disk = Arc::clone(disk);
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    Script::new(move |p, call| -> Act {
        let mut disk = disk.lock().unwrap();
        match p {
            Procedure::Write => ok(disk.write(&args(call))),
            Procedure::Commit => ok(disk.commit()),
            Procedure::Read => ok(disk.read(&args(call), &arena)),
            Procedure::Getattr => {
                let size = disk.stable.len() as u64;
                ok(GetattrOk { attributes: Fattr { size, ..attributes(FileType::Regular, 2) } })
            }
            _ => fail(v3::Status::NotSupp),
        }
    })
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

#[test]
fn data_is_retained_until_a_commit_by_the_same_server_instance() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { restarts_at_commit: 2, ..Disk::default() }));
        let script = serve(&disk);
        let file = File::new(script.client().await, handle(2));
        let data = data(20_000);
        file.write(0, &data).await.unwrap();
        assert_eq!((file.retained_bytes(), disk.lock().unwrap().stable.len()), (20_000, 0));
        file.commit().await.unwrap();
        assert!(disk.lock().unwrap().stable == data);
        assert_eq!((file.retained_bytes(), file.client().stats().rewritten), (0, 40_000));
        assert_eq!(script.xids(Procedure::Commit).len(), 3);
        file.commit().await.unwrap();
        assert_eq!(script.xids(Procedure::Commit).len(), 3, "nothing to commit, nothing asked");
    });
}

#[test]
fn only_lost_data_is_rewritten() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let file = File::new(serve(&disk).client().await, handle(2));
        file.write(0, b"first").await.unwrap();
        disk.lock().unwrap().restart();
        file.write(5, b"second").await.unwrap();
        file.commit().await.unwrap();
        assert_eq!(disk.lock().unwrap().stable, b"firstsecond");
        assert_eq!(file.client().stats().rewritten, 5);
    });
}

#[test]
fn a_stream_commits_at_the_end() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { restarts_at_commit: 1, ..Disk::default() }));
        let client = serve(&disk).client().await;
        let file = File::new(client.clone(), handle(2));
        let data = data(50_000);
        let mut rest = &data[..];
        let n = file
            .write_stream(0, 4, |max| {
                let (piece, tail) = rest.split_at(max.min(rest.len()));
                rest = tail;
                Ok((!piece.is_empty()).then(|| client.arena().copy_from(piece).unwrap().into()))
            })
            .await
            .unwrap();
        assert_eq!(n, 50_000);
        assert!(disk.lock().unwrap().stable == data);
    });
}

#[test]
fn a_source_that_fails_ends_the_stream_with_its_error() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let file = File::new(serve(&disk).client().await, handle(2));
        let e = file.write_stream(0, 4, |_| Err(std::io::Error::other("tape torn"))).await.unwrap_err();
        assert!(matches!(e, Error::Source(_)) && e.to_string().contains("tape torn"), "{e}");
    });
}

#[test]
fn repeated_restarts_are_an_error_and_the_data_stays_retained() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { restarts_at_commit: u32::MAX, ..Disk::default() }));
        let retry = RetryPolicy { max_elapsed: Duration::from_millis(50), ..quick() };
        let client = serve(&disk).mount("/e", retry).await.unwrap();
        let file = File::new(client, handle(2));
        file.write(0, b"precious").await.unwrap();
        assert!(matches!(file.commit().await.unwrap_err(), Error::Unstable { .. }));
        assert_eq!(file.retained_bytes(), 8);
        disk.lock().unwrap().restarts_at_commit = 0;
        file.commit().await.unwrap();
        assert_eq!(disk.lock().unwrap().stable, b"precious");
    });
}

#[test]
fn a_write_in_several_parts_restarts_if_the_server_restarts_between_them() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { restart_at_write: true, ..Disk::default() }));
        let client = serve(&disk).client().await;
        let e = client.write(handle(2), 0, &data(10_000), StableHow::Unstable).await.unwrap_err();
        assert!(matches!(e, Error::Unstable { .. }), "{e}");
        disk.lock().unwrap().restart_at_write = false;
        let w = client.write(handle(2), 0, &data(10_000), StableHow::Unstable).await.unwrap();
        let commit = client.commit(handle(2), 0, 0).await.unwrap();
        assert_eq!(w.verifier, commit.verifier);
        assert!(disk.lock().unwrap().stable == data(10_000));
    });
}

#[test]
fn data_written_after_a_restart_is_not_replaced_by_older_data() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let file = File::new(serve(&disk).client().await, handle(2));
        file.write(0, b"old old old").await.unwrap();
        disk.lock().unwrap().restart();
        file.write(4, b"NEW").await.unwrap();
        file.commit().await.unwrap();
        assert_eq!(disk.lock().unwrap().stable, b"old NEW old");
    });
}

#[test]
fn files_of_one_handle_share_retained_data() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let client = serve(&disk).client().await;
        let (one, other) = (File::new(client.clone(), handle(2)), File::new(client, handle(2)));
        one.write(0, b"old old old").await.unwrap();
        disk.lock().unwrap().restart();
        other.write(4, b"NEW").await.unwrap();
        one.commit().await.unwrap();
        assert_eq!(disk.lock().unwrap().stable, b"old NEW old");
        assert_eq!(other.retained_bytes(), 0);
    });
}

#[test]
fn a_write_by_handle_replaces_retained_data_of_an_open_file() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let client = serve(&disk).client().await;
        let file = File::new(client.clone(), handle(2));
        file.write(0, b"old old old").await.unwrap();
        let new = client.arena().copy_from(b"NEW").unwrap();
        client.write_from(handle(2), 4, new.into(), StableHow::Unstable).await.unwrap();
        assert_eq!(file.retained_bytes(), 8);
    });
}

#[test]
fn lost_data_is_read_as_written() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let client = serve(&disk).client().await;
        let file = File::new(client.clone(), handle(2));
        file.write(0, b"stable").await.unwrap();
        file.commit().await.unwrap();
        file.write(3, b"lost").await.unwrap();
        file.write(9, b"end").await.unwrap();
        disk.lock().unwrap().restart();
        let mut all = [1; 20];
        assert_eq!(file.read(0, &mut all).await.unwrap(), 12);
        assert_eq!(&all[..12], b"stalost\0\0end");
        let read = file.read_into(5, client.buffer(3).unwrap()).await.unwrap();
        assert_eq!((&read.buffer[..], read.count, read.eof), (&b"st\0"[..], 3, false));
        let read = file.read_into(10, client.buffer(100).unwrap()).await.unwrap();
        assert_eq!((&read.buffer[..], read.count, read.eof), (&b"nd"[..], 2, true));
        let mut streamed = Vec::new();
        file.read_stream(0, u64::MAX, 4, |_, data| streamed.extend(data.to_vec())).await.unwrap();
        assert_eq!(streamed, b"stalost\0\0end");
        assert_eq!(file.attributes().await.unwrap().size, 12);
    });
}

#[test]
fn retained_data_is_limited() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let script = serve(&disk);
        let limit = 1 << 20;
        let options = Options { unstable_limit: limit, retry: quick(), ..nfs3() };
        // Separate, overlapping, and each replacing all but the first byte of the previous write.
        for (step, commits) in [(4096, 2), (0, 0), (1, 2)] {
            let client = script.mount_with("/e", options.clone()).await.unwrap();
            let file = File::new(client, handle(2));
            let before = script.xids(Procedure::Commit).len();
            for n in 0..2 * limit as u64 / 4096 + 10 {
                let view = file.client().arena().copy_from(&[1; 4096]).unwrap();
                file.write_from(n * step, view.into()).await.unwrap();
                disk.lock().unwrap().volatile.clear();
                assert!(file.retained_bytes() <= limit);
            }
            assert_eq!(script.xids(Procedure::Commit).len() - before, commits, "{step}");
            file.commit().await.unwrap();
        }
    });
}

/// Attributes after the n-th change.
fn at(n: u32) -> Fattr {
    let time = NfsTime { seconds: n.into(), nanoseconds: 0 };
    Fattr { mtime: time, ctime: time, ..attributes(FileType::Regular, 2) }
}

/// `wcc_data` of a change of the file from version `before` to the next.
fn change(before: u32) -> WccData {
    WccData { before: Some(WccAttr::from(&at(before))), after: Some(at(before + 1)) }
}

/// A server that writes at most 4000 bytes per call. `steps` has the number of changes of the file before
/// each WRITE and COMMIT. The server restarts before its first COMMIT.
fn stepping(steps: [u32; 6]) -> Arc<Script> {
    let mut steps = steps.into_iter();
    let mut instance = 0;
    Script::new(move |p, call| -> Act {
        let file = change(steps.next().unwrap());
        match p {
            Procedure::Write => {
                let count = args::<WriteArgs>(call).count.min(4000);
                let verifier = u64::to_be_bytes(instance);
                ok(WriteOk { file, count, committed: v3::StableHow::Unstable, verifier })
            }
            Procedure::Commit => {
                instance = 1;
                ok(CommitOk { file, verifier: u64::to_be_bytes(instance) })
            }
            _ => fail(v3::Status::NotSupp),
        }
    })
}

#[test]
fn wcc_data_is_returned_unless_another_client_changed_the_file() {
    run(async {
        for (steps, written, committed) in [
            ([1, 2, 3, 4, 5, 6], true, true),
            ([1, 7, 8, 9, 10, 11], false, true),
            ([1, 2, 3, 7, 8, 9], true, false),
            ([1, 2, 3, 4, 7, 8], true, false),
            ([1, 2, 3, 4, 5, 9], true, false),
        ] {
            let client = stepping(steps).client().await;
            let file = File::new(client.clone(), handle(2));
            let view = client.arena().copy_from(&data(8000)).unwrap();
            let of = |from: usize, to: usize, unchanged: bool| {
                let before = change(steps[from]).before.filter(|_| unchanged);
                let after = change(steps[to]).after;
                // The versions of the file differ in the times.
                (before.map(|a| a.mtime.seconds), after.map(|a| a.mtime.seconds))
            };
            let seen = |wcc: Wcc| (wcc.before.map(|a| a.mtime.seconds), wcc.after.map(|a| a.mtime.seconds));
            let wcc = file.write_from_as(&client, 0, view.into()).await.unwrap();
            assert_eq!(seen(wcc), of(0, 1, written), "{steps:?}");
            // COMMIT, two WRITEs of lost data, COMMIT.
            let wcc = file.commit_and_attributes().await.unwrap();
            assert_eq!(wcc.map(seen), Some(of(2, 5, committed)), "{steps:?}");
            assert_eq!(file.commit_and_attributes().await.unwrap(), None, "nothing to commit");
        }
    });
}
