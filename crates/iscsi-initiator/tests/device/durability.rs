//! A target whose write cache is lost: no data of a write is lost that a successful flush followed.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_crashtest::{Disk, DiskConfig, Random};
use millrace_iscsi::pdu::Residual;
use millrace_iscsi_initiator::{BlockDevice, Error, Options};
use millrace_runtime::{RuntimeRef, virtual_time::VirtualTime};
use millrace_scsi::{AdditionalSense, BlockSize, Sense, SenseKey};
use millrace_vfs::FileSystemRef;

use crate::{
    common::{Lab, memory, pattern, read, run, url, write},
    fake::{Answer, Fake, check_with},
};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;

#[test]
fn a_flush_after_a_restart_reports_the_loss_once() {
    run(1, (BLOCKS * BLOCK, BlockSize::B512), memory, async |lab| {
        let disk = lab.connect().await;
        write(&disk, 0, &[1; 512]).await.unwrap();
        disk.flush().await.unwrap();
        lab.restart().await;
        disk.flush().await.expect("all writes were durable");
        write(&disk, 0, &[2; 512]).await.unwrap();
        lab.restart().await;
        write(&disk, 512, &[3; 512]).await.unwrap();
        let error = disk.flush().await.unwrap_err();
        assert!(matches!(error, Error::DataLost { .. }), "{error}");
        disk.flush().await.unwrap();
    });
}

#[test]
fn a_loss_is_reported_although_a_flush_is_dropped() {
    run(1, (BLOCKS * BLOCK, BlockSize::B512), memory, async |lab| {
        let disk = lab.connect().await;
        write(&disk, 0, &[1; 512]).await.unwrap();
        lab.restart().await;
        let mut dropped = Box::pin(disk.flush());
        assert!(futures::poll!(&mut dropped).is_pending());
        lab.sleep(1).await;
        drop(dropped); // The outcome of the flush has arrived.
        let error = disk.flush().await.unwrap_err();
        assert!(matches!(error, Error::DataLost { .. }), "{error}");
        disk.flush().await.unwrap();
    });
}

#[test]
fn a_reset_is_noticed_although_the_connection_that_reports_it_ends() {
    for at in 0..80 {
        run(1, (BLOCKS * BLOCK, BlockSize::B512), memory, async |lab| {
            let disk = lab.connect().await;
            write(&disk, 0, &[1; 512]).await.unwrap();
            lab.kill();
            // During the login, or the identification of the disk.
            lab.cut_at(vec![at * 20]);
            lab.start().await;
            let error = disk.flush().await.expect_err("the write may be lost");
            assert!(matches!(error, Error::DataLost { .. }), "{error}");
        });
    }
}

/// A deferred error (SPC-4 section 4.5.7) of a target that could not write its cache to the medium: the command with it is
/// repeated, and the next flush reports the loss.
#[test]
fn a_deferred_error_is_a_loss_that_the_next_flush_reports() {
    for deferred_at in 1..4 {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let commands = AtomicU64::new(0);
        let lost = Sense::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR).into_deferred();
        let fake = Arc::new(Fake::new(&rt, move |command| {
            // The first command is a write.
            if commands.fetch_add(1, Ordering::Relaxed) == deferred_at {
                return vec![check_with(&lost)];
            }
            match command.cdb[0] {
                0x88 => vec![Answer::Data(0, 0, vec![5; 512], Residual::None)],
                _ => vec![Answer::Status(0, vec![], Residual::None)],
            }
        }));
        let mut options = Options::default();
        options.runtime = Some(Arc::clone(&rt));
        options.streams = Some(fake);
        let work = async {
            let disk = BlockDevice::connect(&url(), &options).await.unwrap();
            // The deferred error arrives at the second write, the read or the flush.
            write(&disk, 0, &[1; 512]).await.unwrap();
            write(&disk, 512, &[2; 512]).await.unwrap();
            assert_eq!(read(&disk, 0, 512).await.unwrap(), [5; 512]);
            let error = disk.flush().await.unwrap_err();
            assert!(matches!(error, Error::DataLost { .. }), "{error}");
            assert_eq!(disk.losses(), 1);
            disk.flush().await.unwrap();
        };
        time.block_on(work).unwrap();
    }
}

/// Blocks as they may be on the device: the durable content, and what was written since the last successful flush.
struct Model {
    durable: Vec<u64>,
    /// Writes since the last successful flush: block and content.
    since: Vec<(u64, u64)>,
}

impl Model {
    /// Whether block `i` may have the content `found` after a loss.
    fn permits(&self, i: u64, found: &[u8]) -> bool {
        let is = |version: u64| found == content(version);
        is(self.durable[i as usize]) || self.since.iter().any(|(block, version)| *block == i && is(*version))
    }

    fn flushed(&mut self) {
        for (block, version) in self.since.drain(..) {
            self.durable[block as usize] = version;
        }
    }
}

fn content(version: u64) -> Vec<u8> {
    if version == 0 { vec![0; 512] } else { pattern(512, version.wrapping_mul(0x9e37_79b9)) }
}

async fn workload(lab: &Arc<Lab>, backing: &Disk, random: &mut Random, losses: &mut u32) {
    let disk = lab.connect().await;
    let mut model = Model { durable: vec![0; BLOCKS as usize], since: Vec::new() };
    for version in 1..120 {
        match random.below(10) {
            0..=6 => {
                let block = random.below(BLOCKS);
                write(&disk, block * BLOCK, &content(version)).await.unwrap();
                model.since.push((block, version));
            }
            7 | 8 => flush(&disk, &mut model, losses).await,
            _ => {
                lab.kill();
                backing.lose();
                lab.start().await;
            }
        }
    }
    lab.kill();
    backing.lose();
    lab.start().await;
    let data = read(&disk, 0, (BLOCKS * BLOCK) as usize).await.unwrap();
    for (i, found) in (0..).zip(data.chunks(BLOCK as usize)) {
        assert!(model.permits(i, found), "block {i}");
    }
}

/// Flushes; after a loss, writes again what was written since the last successful flush.
async fn flush(disk: &BlockDevice, model: &mut Model, losses: &mut u32) {
    loop {
        match disk.flush().await {
            Ok(()) => return model.flushed(),
            Err(Error::DataLost { .. }) => *losses += 1,
            Err(e) => panic!("{e}"),
        }
        for (block, version) in &model.since {
            write(disk, block * BLOCK, &content(*version)).await.unwrap();
        }
    }
}

#[test]
fn nothing_before_a_successful_flush_is_lost() {
    let mut losses = 0;
    for seed in 0..40 {
        let backing = Arc::new(OnceLock::new());
        let cell = Arc::clone(&backing);
        let fs = move |rt: &RuntimeRef, _: &Arena| {
            let config = DiskConfig { latency: Duration::from_micros(200), wcc_before: true, seed };
            let disk = cell.get_or_init(|| Disk::new(Arc::clone(rt), config));
            Arc::clone(disk) as FileSystemRef
        };
        run(seed, (BLOCKS * BLOCK, BlockSize::B512), fs, async |lab| {
            let backing = backing.get().unwrap();
            workload(&lab, backing, &mut Random::new(seed), &mut losses).await;
        });
    }
    assert!(losses > 20, "the workload includes losses: {losses}");
}
