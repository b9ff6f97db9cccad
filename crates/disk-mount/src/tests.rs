//! Ranges of bytes on disks of a target in this process.
#![allow(clippy::unwrap_used)]

use std::{os::unix::fs::MetadataExt, sync::Arc};

use futures::future::join_all;
use millrace_crashtest::Random;
use millrace_iscsi_initiator::{BlockDevice, Error, Options};
use millrace_server::{Config, LunSettings, Running, Server, TargetSettings, target_name};

use super::file::DiskFile;

const SIZE: usize = 256 << 10;

/// Serves a disk with blocks of `block` bytes in `backend` at `port`.
fn serve(backend: &str, block: u32, port: u16) -> Running {
    let lun: LunSettings = format!("/data/disk,size={SIZE},block={block}").parse().unwrap();
    Server::start(Config {
        exports: vec![format!("/data={backend},squash=none").parse().unwrap()],
        listen_iscsi: Some(([127, 0, 0, 1], port).into()),
        targets: vec![TargetSettings::new(target_name("disk").unwrap(), vec![lun])],
        shards: Some(1),
        ..Config::default()
    })
    .unwrap()
}

async fn connect(server: &Running) -> DiskFile {
    let url = format!("iscsi://{}/{}/0", server.iscsi_addr().unwrap(), target_name("disk").unwrap());
    DiskFile::new(BlockDevice::connect(&url.parse().unwrap(), &Options::default()).await.unwrap())
}

async fn write(file: &DiskFile, offset: usize, data: &[u8]) -> usize {
    let pending = file.prepare(offset as u64, data).unwrap().unwrap();
    file.write(pending).await.unwrap()
}

async fn content(file: &DiskFile) -> Vec<u8> {
    file.read(0, SIZE as u32).await.unwrap().to_vec()
}

#[tokio::test]
async fn ranges_of_any_bytes_behave_as_those_of_memory() {
    for block in [512, 4096] {
        let server = serve("memory:16MiB", block, 0);
        let file = connect(&server).await;
        let (mut model, mut random) = (vec![0; SIZE], Random::new(u64::from(block)));
        let mut below = |n: usize| random.below(n as u64) as usize;
        for step in 0..400 {
            let offset = below(SIZE);
            // Also ranges within a block, of whole blocks, and beyond the end.
            let offset = if below(4) == 0 { offset & !(block as usize - 1) } else { offset };
            let most = [100, 700, 20_000][below(3)];
            let length = 1 + below(most);
            let end = SIZE.min(offset + length);
            match below(3) {
                0 => {
                    let data: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
                    assert_eq!(write(&file, offset, &data).await, end - offset);
                    model[offset..end].copy_from_slice(&data[..end - offset]);
                }
                1 => {
                    file.zero(offset as u64..(offset + length) as u64, step % 2 == 0).await.unwrap();
                    model[offset..end].fill(0);
                }
                _ => {
                    let read = file.read(offset as u64, length as u32).await.unwrap();
                    assert!(read[..] == model[offset..end], "step {step}: {offset}..{end}");
                }
            }
        }
        assert!(content(&file).await == model, "blocks of {block} bytes");
        assert!(file.prepare(SIZE as u64, b"x").unwrap().is_none());
        assert!(file.read(SIZE as u64, 1).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn writes_of_the_same_block_do_not_undo_each_other() {
    let server = serve("memory:16MiB", 4096, 0);
    let file = Arc::new(connect(&server).await);
    let before = vec![1; SIZE];
    write(&file, 0, &before).await;
    // Ranges of 100 bytes, of 40 zeros, and of whole blocks, all adjacent, and all at the same time.
    let mut expected = before;
    let mut writes = Vec::new();
    for start in (0..8 * 4096).step_by(140) {
        expected[start..start + 100].fill(2);
        expected[start + 100..start + 140].fill(0);
        writes.push((start, 100, 2));
        writes.push((start + 100, 40, 0));
    }
    expected[12 * 4096..13 * 4096].fill(3);
    expected[13 * 4096..13 * 4096 + 1].fill(4);
    expected[12 * 4096 - 1] = 5;
    writes.extend([(12 * 4096, 4096, 3), (13 * 4096, 1, 4), (12 * 4096 - 1, 1, 5)]);
    let tasks = writes.into_iter().map(|(start, length, byte)| {
        let file = Arc::clone(&file);
        tokio::spawn(async move {
            match byte {
                0 => file.zero(start as u64..(start + length) as u64, false).await.unwrap(),
                byte => drop(write(&file, start, &vec![byte; length]).await),
            }
        })
    });
    for done in join_all(tasks).await {
        done.unwrap();
    }
    assert!(content(&file).await == expected);
}

#[tokio::test]
async fn each_open_file_reports_lost_writes_once() {
    let dir = tempfile::tempdir().unwrap();
    let backend = format!("local:{}", dir.path().display());
    let server = serve(&backend, 512, 0);
    let port = server.iscsi_addr().unwrap().port();
    let file = connect(&server).await;
    let (one, two) = (file.open(), file.open());
    write(&file, 100, b"lost or not").await;
    drop(server);
    let _server = serve(&backend, 512, port);
    let is_lost = |synced| matches!(synced, Err(Error::DataLost { .. }));
    assert!(is_lost(file.sync(&one).await));
    let three = file.open();
    file.sync(&three).await.unwrap();
    assert!(is_lost(file.sync(&two).await));
    for opened in [&one, &two] {
        file.sync(opened).await.unwrap();
    }
}

#[tokio::test]
async fn a_punched_hole_frees_storage_and_written_zeros_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&format!("local:{}", dir.path().display()), 4096, 0);
    let file = connect(&server).await;
    write(&file, 0, &vec![1; SIZE]).await;
    file.device().flush().await.unwrap();
    let allocated = || 512 * std::fs::metadata(dir.path().join("disk")).unwrap().blocks();
    for (punch, freed) in [(false, 0), (true, 124 << 10)] {
        let before = allocated();
        file.zero(1000..(128 << 10) + 1000, punch).await.unwrap();
        file.device().flush().await.unwrap();
        assert_eq!(before - allocated(), freed, "punch: {punch}");
        assert!(content(&file).await[1000..(128 << 10) + 1000].iter().all(|byte| *byte == 0));
    }
}
