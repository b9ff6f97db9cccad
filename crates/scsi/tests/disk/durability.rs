//! Loss of unstable data, and FUA.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_scsi::BlockSize;
use millrace_vfs::{FileSystem, FileSystemRef, Handle, Identity, Op, Stability, Views, Written, forward};

use crate::common::{Bench, memory};

/// A file system that restarts when the test says so; unstable writes stay unstable.
struct Restarting {
    inner: FileSystemRef,
    instance: AtomicU64,
}

impl FileSystem for Restarting {
    /// Writes at most 4096 bytes at once.
    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        at: u64,
        mut data: Views,
        stable: Stability,
    ) -> Op<Written> {
        data.truncate(4096);
        let written = self.inner.write(who, file, at, data, stable);
        written.map(move |w| w.map(|w| Written { committed: stable, ..w }))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.instance.load(Ordering::Relaxed).to_be_bytes()
    }

    forward!(inner: root getattr lookup read readdir info commit create);
}

#[test]
fn synchronize_cache_fails_once_for_each_initiator_after_a_loss() {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = Arc::new(Restarting { inner: memory(&arena), instance: AtomicU64::new(0) });
    let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
    let other = bench.other(2);
    let restart = || fs.instance.fetch_add(1, Ordering::Relaxed);
    let (write, sync) = ([0x2a, 0, 0, 0, 0, 0, 0, 0, 32, 0], [0x35]);
    // Committed data and durable writes are not lost.
    bench.good(&write, &[1; 32 * 512]);
    bench.good(&sync, &[]);
    restart();
    bench.good(&sync, &[]);
    bench.good(&[0x2a, 8, 0, 0, 0, 0, 0, 0, 32, 0], &[2; 32 * 512]);
    restart();
    bench.good(&sync, &[]);
    // Uncommitted data is.
    bench.good(&write, &[3; 32 * 512]);
    restart();
    bench.fails(&sync, &[], 3, (0x0c, 0));
    bench.good(&sync, &[]);
    let sense = bench.execute(&other, &sync, &[]).sense.unwrap();
    assert_eq!(sense.additional.0, 0x0c);
    assert_eq!(bench.execute(&other, &sync, &[]).sense, None);
    // An initiator learns of a loss while it had no nexus.
    bench.good(&write, &[3; 32 * 512]);
    bench.target.close_nexus(&other);
    restart();
    bench.fails(&sync, &[], 3, (0x0c, 0));
    let other = bench.target.open_nexus(crate::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(bench.execute(&other, &sync, &[]).sense.unwrap().additional.0, 0x0c);
    // A file system without unmapping has no UNMAP, and gets zeros as data.
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[]), [3; 32 * 512]);
}

#[test]
fn a_report_that_the_initiator_does_not_receive_is_repeated() {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = Arc::new(Restarting { inner: memory(&arena), instance: AtomicU64::new(0) });
    let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
    let sync = [0x35];
    bench.good(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[1; 32 * 512]);
    fs.instance.fetch_add(1, Ordering::Relaxed);
    let other = bench.target.open_nexus(crate::common::initiator(2));
    let code = |sense: Option<millrace_scsi::Sense>| sense.map(|sense| sense.additional.0);
    let lost = |bytes: &[u8]| code(bench.try_execute(&other, bytes, &[]).unwrap().sense);
    assert_eq!(lost(&[0]), Some(0x29), "power on");
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(crate::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x00));
    bench.expect_attention(&other, (0x29, 0x07));
    // The first nexus finds the loss.
    bench.fails(&sync, &[], 3, (0x0c, 0));
    assert_eq!(code(bench.try_execute(&other, &sync, &[]).unwrap().sense), Some(0x0c));
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(crate::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(code(bench.execute(&other, &sync, &[]).sense), Some(0x0c));
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(crate::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(bench.execute(&other, &sync, &[]).sense, None, "it was received");
}

/// A file system that cannot be written.
struct ReadOnly(FileSystemRef);

impl FileSystem for ReadOnly {
    forward!(0: root getattr lookup read readdir);
}

#[test]
fn a_read_only_file_system_has_nothing_to_synchronize() {
    let writable = Bench::new(BlockSize::B512, 64);
    let fs = Arc::new(ReadOnly(writable.fs.clone()));
    let bench = Bench::open(fs, writable.arena.clone(), writable.file, writable.config.clone());
    bench.fails(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512], 7, (0x27, 0));
    bench.good(&[0x28, 8, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    bench.good(&[0x35], &[]);
    // Without calls on ranges there is no UNMAP.
    bench.fails(&[0x42], &[], 5, (0x20, 0));
}
