//! Hostile targets: operations end with an error or correct data within their time limit.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::join_all;
use millrace_iscsi::pdu::Residual;
use millrace_iscsi_initiator::{BlockDevice, DigestPolicy, Error, Options, discover};
use millrace_runtime::{RuntimeRef, virtual_time::VirtualTime};
use millrace_scsi::{AdditionalSense, BlockSize, SenseKey};

use crate::{
    common::{memory, pattern, read, run, url, write},
    fake::{Answer, Fake, check},
};

fn options(rt: &RuntimeRef, fake: &Arc<Fake>) -> Options {
    let mut options = Options::default();
    options.runtime = Some(Arc::clone(rt));
    options.streams = Some(Arc::clone(fake) as _);
    options.timeout = Duration::from_secs(5);
    options.ping_interval = Duration::from_secs(1);
    options
}

/// Runs one operation on a target that answers with `answers`. Returns its error and the number of connections.
fn one(answers: Vec<Answer>, writes: bool) -> (Option<Error>, u64) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let fake = Arc::new(Fake::new(&rt, move |_| answers.clone()));
    let work = async {
        let disk = BlockDevice::connect(&url(), &options(&rt, &fake)).await.unwrap();
        let start = rt.now();
        let result = match writes {
            true => write(&disk, 0, &[1; 131_072]).await,
            false => read(&disk, 0, 4096).await.map(|data| assert_eq!(data, [5; 4096])),
        };
        assert!(rt.now().duration_since(start) < Duration::from_secs(8), "the operation ended late");
        result.err()
    };
    let error = time.block_on(work).unwrap();
    (error, fake.connections.load(Ordering::Relaxed))
}

const GOOD: u8 = 0;

#[test]
fn violations_end_the_connection() {
    let data = |other, offset, length| Answer::Data(other, offset, vec![5; length], Residual::None);
    let (write, read) = (true, false);
    assert!(one(vec![data(0, 0, 4096)], read).0.is_none(), "a correct answer");
    for (answers, writes) in [
        (vec![data(0, 0, 8192)], read),
        (vec![data(0, 512, 3584)], read),
        (vec![data(0, u32::MAX - 511, 512)], read),
        (vec![data(1, 0, 4096)], read),
        (vec![data(0, 0, 4096), data(0, 0, 4096)], write),
        (vec![Answer::Status(GOOD, vec![], Residual::None)], read),
        (vec![Answer::Status(GOOD, vec![], Residual::Underflow(4097))], read),
        (vec![Answer::Status(2, vec![0, 200, 1], Residual::None)], read),
        (vec![Answer::Status(2, vec![0], Residual::None)], read),
        (vec![Answer::R2t(0, 4096)], read),
        (vec![Answer::R2t(65536, 65537)], write),
        (vec![Answer::R2t(0, 4096)], write),
        (vec![Answer::R2t(65536, 0)], write),
        (vec![Answer::Raw(vec![0x25, 0x80, 0, 0, 0, 0xff, 0xff, 0xff])], read),
        (vec![Answer::Raw(vec![0x3e, 0x80, 0, 0, 0, 0, 0, 0])], read),
        (vec![Answer::Raw(vec![0x21, 0x80, 0, 0, 0, 0, 0, 0])], read),
        // A login PDU after the login.
        (vec![Answer::Raw(vec![0x23, 0x87, 0, 0, 0, 0, 0, 0])], read),
    ] {
        let (error, connections) = one(answers, writes);
        let error = error.expect("no success");
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!((2..100).contains(&connections), "{connections} connections");
    }
}

#[test]
fn failures_of_commands_have_their_reason() {
    let attention = check(SenseKey::UnitAttention, AdditionalSense::CAPACITY_CHANGED);
    for (answer, reason) in [
        (Answer::Status(GOOD, vec![], Residual::Underflow(4096)), "transferred 0 of 4096 bytes"),
        (Answer::Data(0, 0, vec![5; 512], Residual::Underflow(3584)), "transferred 512 of 4096 bytes"),
        (attention, "CAPACITY DATA HAS CHANGED"),
        (check(SenseKey::AbortedCommand, AdditionalSense::NONE), "ABORTED COMMAND"),
        (check(SenseKey::MediumError, AdditionalSense::READ_ERROR), "UNRECOVERED READ ERROR"),
        (Answer::Status(2, vec![], Residual::None), "without sense data"),
        (Answer::Status(0x18, vec![], Residual::None), "another initiator"),
        (Answer::Status(8, vec![], Residual::None), "the target is busy"),
        (check(SenseKey::NotReady, AdditionalSense::NOT_READY), "NOT READY"),
    ] {
        let (error, connections) = one(vec![answer], false);
        let error = error.unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(connections <= 2, "{connections} connections");
    }
    // Pings are answered, but not the command.
    let (error, _) = one(Vec::new(), false);
    assert!(error.unwrap().to_string().contains("no answer for 5s"));
}

#[test]
fn redirections_and_text_are_bounded() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let fake = Arc::new(Fake::new(&rt, |_| Vec::new()).redirecting());
    let error = time.block_on(BlockDevice::connect(&url(), &options(&rt, &fake))).unwrap().err().unwrap();
    assert!(error.to_string().contains("redirected more than 4 times"), "{error}");
    assert_eq!(fake.connections.load(Ordering::Relaxed), 5);
    for text in [&b"TargetName=iqn.2026-01.example:\x1b[2J\0"[..], b"TargetName", b"TargetAddress=$(id)\0"] {
        let fake = Arc::new(Fake::new(&rt, |_| Vec::new()).with_text(text));
        let error = time.block_on(discover(&url(), &options(&rt, &fake))).unwrap().unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn a_refusal_of_digests_has_its_remedy() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let fake = Arc::new(Fake::new(&rt, |_| Vec::new()).refusing_digests());
    let mut options = options(&rt, &fake);
    options.digests = DigestPolicy::Require;
    let error = time.block_on(BlockDevice::connect(&url(), &options)).unwrap().err().unwrap().to_string();
    assert!(error.contains("HeaderDigest; permit CRC32C digests at the target"), "{error}");
}

/// Each seed changes other bytes of the stream from the target.
#[test]
fn damaged_streams_are_detected_by_digests() {
    for seed in 0..60 {
        run(seed, (1 << 20, BlockSize::B512), memory, async |lab| {
            let mut options = lab.options();
            options.digests = DigestPolicy::Require;
            let disk = &lab.connect_with(&options).await.unwrap();
            lab.damage_at((0..4).map(|i| i * 50_000 + seed * 97).collect());
            join_all((0..16).map(|i| async move {
                write(disk, i * 16384, &pattern(16384, i)).await.unwrap();
                assert!(read(disk, i * 16384, 16384).await.unwrap() == pattern(16384, i), "block {i}");
            }))
            .await;
            assert!(lab.connections() > 1, "the damage was detected");
        });
    }
}

#[test]
fn damaged_streams_without_digests_end_operations_in_time() {
    for seed in 0..120 {
        run(seed, (1 << 20, BlockSize::B512), memory, async |lab| {
            let disk = &lab.connect().await;
            lab.damage_at((0..3).map(|i| i * 40_000 + seed * 7).collect());
            let start = lab.rt.now();
            join_all((0..16).map(|i| async move {
                // Damaged data, or an error.
                drop(write(disk, i * 16384, &pattern(16384, i)).await);
                drop(read(disk, i * 16384, 16384).await);
            }))
            .await;
            assert!(lab.rt.now().duration_since(start) <= Duration::from_secs(240));
        });
    }
}
