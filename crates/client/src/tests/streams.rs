//! The stream of a [`File`] on a server with short writes, restarts, and errors.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use millrace_nfs::v3::{self, CommitOk, FileType, GetattrOk, Procedure, Status, WriteArgs, WriteOk};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::script::{Act, Script, args, attributes, fail, handle, ok, run};
use crate::{File, file::Access};

/// State and configuration of the server.
#[derive(Default)]
struct Disk {
    content: Vec<u8>,
    instance: u64,
    /// Maximum size of one WRITE in bytes.
    most: usize,
    /// Number of COMMITs before which the server restarts and loses uncommitted data.
    restarts: u32,
    /// Number of WRITEs that fail.
    failures: u32,
}

fn serve(disk: &Arc<Mutex<Disk>>) -> Arc<Script> {
    let disk = Arc::clone(disk);
    Script::new(move |procedure, call| -> Act {
        let mut disk = disk.lock().unwrap();
        match procedure {
            Procedure::Write if disk.failures > 0 => {
                disk.failures -= 1;
                fail(Status::NoSpc)
            }
            Procedure::Write => {
                let a: WriteArgs = args(call);
                let data = a.data.to_vec();
                let data = &data[..data.len().min(disk.most)];
                let (at, end) = (a.offset as usize, a.offset as usize + data.len());
                let len = disk.content.len().max(end);
                disk.content.resize(len, 0);
                disk.content[at..end].copy_from_slice(data);
                let (count, verifier) = (data.len() as u32, disk.instance.to_be_bytes());
                ok(WriteOk { file: Default::default(), count, committed: v3::StableHow::Unstable, verifier })
            }
            Procedure::Commit => {
                if disk.restarts > 0 {
                    disk.restarts -= 1;
                    disk.instance += 1;
                    disk.content.clear();
                }
                ok(CommitOk { file: Default::default(), verifier: disk.instance.to_be_bytes() })
            }
            Procedure::Getattr => ok(GetattrOk { attributes: attributes(FileType::Regular, 2) }),
            _ => fail(Status::NotSupp),
        }
    })
}

async fn open(script: &Arc<Script>) -> File {
    let access = Access { read: false, write: true, append: false };
    File::new(script.client().await.into(), handle(2), 0, PathBuf::from("f"), access)
}

#[test]
fn short_writes_are_completed_before_newer_data_of_the_range() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { most: 1000, ..Disk::default() }));
        let mut file = open(&serve(&disk)).await;
        for round in 0..20_u8 {
            file.rewind().await.unwrap();
            file.write_all(&vec![round; 300_000]).await.unwrap();
        }
        file.flush().await.unwrap();
        assert!(disk.lock().unwrap().content == vec![19; 300_000]);
    });
}

#[test]
fn shutdown_rewrites_data_that_a_restarted_server_has_lost() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { most: usize::MAX, restarts: 2, ..Disk::default() }));
        let mut file = open(&serve(&disk)).await;
        file.write_all(&[7; 200_000]).await.unwrap();
        file.shutdown().await.unwrap();
        assert!(disk.lock().unwrap().content == vec![7; 200_000]);
        assert_eq!(file.client().stats().rewritten, 400_000);
    });
}

#[test]
fn the_error_of_a_write_is_returned_once_by_the_next_call() {
    run(async {
        let disk = Arc::new(Mutex::new(Disk { most: usize::MAX, failures: 1, ..Disk::default() }));
        let mut file = open(&serve(&disk)).await;
        file.write_all(b"lost").await.unwrap();
        let error = file.shutdown().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(error.to_string(), "WRITE f: no space left on the server (NFSERR_NOSPC)");
        file.shutdown().await.unwrap();
        file.write_all(b"kept").await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(disk.lock().unwrap().content, b"\0\0\0\0kept");
    });
}
