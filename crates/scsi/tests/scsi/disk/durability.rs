//! Loss of unstable data, and FUA.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_runtime::MaybeReady;
use millrace_scsi::BlockSize;
use millrace_vfs::{
    FileSystem, FileSystemRef, FsError, Handle, Identity, Op, Stability, Views, Wcc, Written, forward,
};
use proptest::prelude::*;

use super::common::{Bench, memory};

/// A file system that restarts, and whose COMMIT fails once, when the test requests it; unstable writes stay unstable.
struct Restarting {
    inner: FileSystemRef,
    instance: AtomicU64,
    fails: AtomicBool,
}

impl Restarting {
    fn new(arena: &Arena) -> Arc<Self> {
        let (instance, fails) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { inner: memory(arena), instance, fails })
    }

    /// Loses unstable data.
    fn restart(&self) {
        self.instance.fetch_add(1, Ordering::Relaxed);
    }
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

    /// A failure changes the verifier, because the data is lost: a second COMMIT would succeed.
    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        if self.fails.swap(false, Ordering::Relaxed) {
            self.restart();
            return MaybeReady::Ready(Err(FsError::Io));
        }
        self.inner.commit(who, file, offset, count)
    }

    forward!(inner: root getattr lookup read readdir info create);
}

#[test]
fn synchronize_cache_fails_once_for_each_initiator_after_a_loss() {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = Restarting::new(&arena);
    let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
    let other = bench.other(2);
    let restart = || fs.restart();
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
    // A loss while an initiator had no nexus is reported to it.
    bench.good(&write, &[3; 32 * 512]);
    bench.target.close_nexus(&other);
    restart();
    bench.fails(&sync, &[], 3, (0x0c, 0));
    let other = bench.target.open_nexus(super::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(bench.execute(&other, &sync, &[]).sense.unwrap().additional.0, 0x0c);
    // A file system without unmapping has no UNMAP, and gets zeros as data.
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[]), [3; 32 * 512]);
}

#[test]
fn a_report_that_the_initiator_does_not_receive_is_repeated() {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = Restarting::new(&arena);
    let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
    let sync = [0x35];
    bench.good(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[1; 32 * 512]);
    fs.restart();
    let other = bench.target.open_nexus(super::common::initiator(2));
    let code = |sense: Option<millrace_scsi::Sense>| sense.map(|sense| sense.additional.0);
    let lost = |bytes: &[u8]| code(bench.try_execute(&other, bytes, &[]).unwrap().sense);
    assert_eq!(lost(&[0]), Some(0x29), "power on");
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(super::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x00));
    bench.expect_attention(&other, (0x29, 0x07));
    // The first nexus finds the loss.
    bench.fails(&sync, &[], 3, (0x0c, 0));
    assert_eq!(code(bench.try_execute(&other, &sync, &[]).unwrap().sense), Some(0x0c));
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(super::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(code(bench.execute(&other, &sync, &[]).sense), Some(0x0c));
    bench.target.close_nexus(&other);
    let other = bench.target.open_nexus(super::common::initiator(2));
    bench.expect_attention(&other, (0x29, 0x07));
    assert_eq!(bench.execute(&other, &sync, &[]).sense, None, "it was received");
}

#[test]
fn a_failed_synchronize_cache_is_reported_to_each_initiator() {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = Restarting::new(&arena);
    let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
    let other = bench.other(2);
    let sync = [0x35];
    bench.good(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[1; 32 * 512]);
    fs.fails.store(true, Ordering::Relaxed);
    // A current error of the command that failed, not a deferred one.
    let sense = bench.check(&sync, &[]);
    assert_eq!(sense.to_bytes()[..14], [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0]);
    let sense =
        bench.execute(&other, &sync, &[]).sense.expect("the data of the other initiator may be lost, too");
    assert_eq!((sense.deferred, sense.additional.0), (false, 0x0c));
    assert_eq!(bench.execute(&other, &sync, &[]).sense, None);
    // Nothing but the flush reports it.
    assert_eq!(bench.execute(&other, &[0], &[]).sense, None);
}

/// An action of an initiator or of the file system.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize),
    WriteDurably(usize),
    Synchronize(usize),
    Restart,
    FailNextCommit,
}

proptest! {
    /// GOOD status of SYNCHRONIZE CACHE means that no write since the initiator's last SYNCHRONIZE CACHE was lost, and an
    /// error that there was a loss or a failed COMMIT.
    #[test]
    fn no_loss_is_hidden_by_a_successful_flush(steps in prop::collection::vec(prop_oneof![
        3 => (0..2_usize).prop_map(Step::Write),
        1 => (0..2_usize).prop_map(Step::WriteDurably),
        3 => (0..2_usize).prop_map(Step::Synchronize),
        1 => Just(Step::Restart),
        1 => Just(Step::FailNextCommit),
    ], 1..40)) {
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let fs = Restarting::new(&arena);
        let bench = Bench::on(fs.clone(), arena, BlockSize::B512, 64, false);
        let nexuses = [bench.nexus.clone(), bench.other(2)];
        // Whether there is unstable data, the nexuses without a report of a loss, and the errors that may still be
        // reported to each.
        let (mut unstable, mut uninformed, mut excused) = (false, [false; 2], [0; 2]);
        for step in steps {
            match step {
                Step::Write(i) | Step::WriteDurably(i) => {
                    let durably = matches!(step, Step::WriteDurably(_));
                    let flags = if durably { 8 } else { 0 };
                    let write = [0x2a, flags, 0, 0, 0, i as u8, 0, 0, 1, 0];
                    prop_assert_eq!(bench.execute(&nexuses[i], &write, &[7; 512]).sense, None);
                    unstable |= !durably;
                }
                Step::Synchronize(i) => {
                    let fails = fs.fails.load(Ordering::Relaxed);
                    let sense = bench.execute(&nexuses[i], &[0x35], &[]).sense;
                    if fails && !fs.fails.load(Ordering::Relaxed) {
                        // A failed COMMIT and the changed verifier may each report it to each initiator.
                        uninformed = uninformed.map(|before| before || unstable);
                        excused = excused.map(|n| n + 2);
                        uninformed[i] = true;
                    }
                    unstable = false;
                    match sense {
                        None => prop_assert!(!uninformed[i], "a loss is hidden from initiator {i}"),
                        Some(sense) => {
                            prop_assert_eq!((sense.deferred, sense.additional.0), (false, 0x0c));
                            prop_assert!(uninformed[i] || excused[i] > 0, "no loss, and an error");
                            excused[i] = i32::max(excused[i] - i32::from(!uninformed[i]), 0);
                        }
                    }
                    uninformed[i] = false;
                }
                Step::Restart => {
                    fs.restart();
                    uninformed = uninformed.map(|before| before || unstable);
                    unstable = false;
                }
                Step::FailNextCommit => fs.fails.store(true, Ordering::Relaxed),
            }
        }
    }
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
