//! Operations without faults.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use millrace_iscsi_initiator::{
    BlockState, Credentials, DigestPolicy, Error, Mutual, Secret, Transport, Views, discover, logical_units,
};
use millrace_scsi::BlockSize;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::common::{Lab, TARGET, buffer, everywhere, memory, pattern, read, run, write};

const MIB: u64 = 1 << 20;

#[test]
fn data_is_read_back_with_every_negotiation() {
    for (digests, initial_r2t, immediate_data, max_receive) in [
        (DigestPolicy::Accept, false, true, 262_144),
        (DigestPolicy::Require, false, true, 262_144),
        (DigestPolicy::Require, true, false, 8192),
        (DigestPolicy::Accept, true, true, 512),
        (DigestPolicy::Accept, false, false, 4096),
    ] {
        run(1, (16 * MIB, BlockSize::B512), memory, async |lab| {
            lab.configure(|limits| {
                limits.settings.initial_r2t = initial_r2t;
                limits.settings.immediate_data = immediate_data;
                limits.settings.max_receive_data = max_receive;
            });
            lab.restart().await;
            let mut options = lab.options();
            options.digests = digests;
            let disk = lab.connect_with(&options).await.unwrap();
            // Larger than the maximum of one command.
            let data = pattern(3 * MIB as usize + 1536, 5);
            write(&disk, 512, &data).await.unwrap();
            disk.flush().await.unwrap();
            assert!(read(&disk, 512, data.len()).await.unwrap() == data);
            assert!(read(&disk, 0, 512).await.unwrap() == [0; 512]);
            disk.close().await;
            assert!(matches!(disk.flush().await, Err(Error::Closed)));
        });
    }
}

/// With iSER the target of this test waits for the initiator to close the connection, which waits for the target.
#[test]
fn a_target_has_time_to_close_the_connection() {
    everywhere(1, (MIB, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        let start = lab.rt.now();
        disk.close().await;
        let waited = lab.rt.now().duration_since(start);
        let limits = match lab.url().transport {
            Transport::Tcp => Duration::ZERO..Duration::from_millis(50),
            Transport::Iser => Duration::from_millis(50)..Duration::from_millis(100),
        };
        assert!(limits.contains(&waited), "{waited:?}");
    });
}

#[test]
fn blocks_with_storage_are_reported() {
    everywhere(1, (4 * MIB, BlockSize::B4096), async |lab| {
        let disk = lab.connect().await;
        let status = async |range| {
            let extents = disk.block_status(range).await.unwrap();
            extents.into_iter().map(|e| (e.range, e.state)).collect::<Vec<_>>()
        };
        let (mapped, hole) = (BlockState::Mapped, BlockState::Deallocated);
        assert_eq!(status(0..4 * MIB).await, [(0..4 * MIB, hole)]);
        write(&disk, MIB, &pattern(65536, 1)).await.unwrap();
        let end = MIB + 65536;
        assert_eq!(status(0..4 * MIB).await, [(0..MIB, hole), (MIB..end, mapped), (end..4 * MIB, hole)]);
        assert_eq!(status(MIB + 4096..MIB + 8192).await, [(MIB + 4096..MIB + 8192, mapped)]);
        assert_eq!(status(MIB..MIB).await, []);
        assert!(matches!(disk.block_status(0..5 * MIB).await, Err(Error::OutOfRange { .. })));
        assert!(matches!(disk.block_status(1..4096).await, Err(Error::Unaligned { .. })));
    });
}

#[test]
fn the_device_is_described() {
    everywhere(1, (MIB, BlockSize::B4096), async |lab| {
        let targets = discover(&lab.url(), &lab.options()).await.unwrap();
        assert_eq!(targets[0].name.as_str(), TARGET);
        let units = logical_units(&lab.url(), &targets[0].name, &lab.options()).await.unwrap();
        let (lun, unit) = &units[0];
        let unit = unit.as_ref().unwrap();
        assert_eq!((lun.number(), unit.capacity, unit.block_size), (0, MIB, 4096));
        let disk = lab.connect().await;
        assert_eq!((disk.info(), disk.capacity(), disk.block_size()), (unit, MIB, 4096));
        assert!(disk.identity().device_id.as_ref().unwrap().starts_with("naa."));
        assert_eq!((disk.info().write_cache, disk.info().read_only), (Some(true), false));
    });
}

#[test]
fn invalid_ranges_are_refused_before_they_are_sent() {
    everywhere(1, (MIB, BlockSize::B4096), async |lab| {
        let disk = lab.connect().await;
        for (offset, length) in [(512, 4096), (0, 512), (1, 4096)] {
            let error = read(&disk, offset, length).await.unwrap_err();
            assert!(matches!(error, Error::Unaligned { block_size: 4096, .. }), "{error}");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        for range in [MIB..MIB + 4096, u64::MAX - 4095..u64::MAX - 4095 + 4095, 0..2 * MIB] {
            let error = disk.write_zeroes(range).await.unwrap_err();
            assert!(matches!(error, Error::OutOfRange { .. } | Error::Unaligned { .. }), "{error}");
        }
        assert!(matches!(write(&disk, MIB, &[0; 4096]).await, Err(Error::OutOfRange { .. })));
        write(&disk, MIB, &[]).await.unwrap();
        disk.discard(4096..4096).await.unwrap();
    });
}

#[test]
fn more_operations_than_the_command_window_complete() {
    everywhere(1, (16 * MIB, BlockSize::B512), async |lab| {
        lab.configure(|limits| limits.max_tasks = 4);
        lab.restart().await;
        let disk = &lab.connect().await;
        let block = |i: u64| pattern(4096, i);
        let written = join_all((0..500).map(|i| async move { write(disk, i * 4096, &block(i)).await })).await;
        assert!(written.iter().all(Result::is_ok));
        let data = join_all((0..500).map(|i| read(disk, i * 4096, 4096))).await;
        assert!(data.into_iter().zip(0..).all(|(data, i)| data.unwrap() == block(i)));
    });
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

#[test]
fn both_sides_authenticate() {
    everywhere(1, (MIB, BlockSize::B512), async |lab| {
        let (us, them) =
            (|| credentials("us", "our secret, long"), || credentials("them", "their secret, long"));
        lab.require_chap(Mutual::new(us(), Some(them())).unwrap());
        lab.restart().await;
        let attempt = async |chap: Option<Mutual>| {
            let mut options = lab.options();
            options.chap = chap;
            lab.connect_with(&options).await.map(drop)
        };
        attempt(Mutual::new(us(), None).ok()).await.unwrap();
        attempt(Mutual::new(us(), Some(them())).ok()).await.unwrap();
        for wrong in [
            None,
            Mutual::new(credentials("us", "another secret"), None).ok(),
            Mutual::new(us(), Some(credentials("them", "another secret"))).ok(),
        ] {
            let error = attempt(wrong).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
        }
    });
}

#[test]
fn an_absent_target_or_unit_is_named() {
    run(1, (MIB, BlockSize::B512), memory, async |lab| {
        let open = async |url: &str| {
            let error =
                millrace_iscsi_initiator::BlockDevice::connect(&url.parse().unwrap(), &lab.options()).await;
            error.err().unwrap().to_string()
        };
        assert!(open("iscsi://192.0.2.1/iqn.2026-01.example:none/0").await.contains("target not found"));
        assert!(open(&format!("iscsi://192.0.2.1/{TARGET}/7")).await.contains("no such LUN"));
        assert!(open("iscsi://192.0.2.1").await.contains("names no target"));
        lab.kill();
        assert!(open(&format!("iscsi://192.0.2.1/{TARGET}/0")).await.contains("check that the target runs"));
    });
}

/// An operation of the property test, on blocks.
#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64, u64),
    Read(u64, u64),
    Zero(u64, u64),
    Punch(u64, u64),
    Discard(u64, u64),
    Flush,
    Cut,
}

const BLOCKS: u64 = 96;

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..BLOCKS, 0..BLOCKS).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        4 => (range(), any::<u64>()).prop_map(|((a, b), seed)| Step::Write(a, b, seed)),
        4 => range().prop_map(|(a, b)| Step::Read(a, b)),
        2 => range().prop_map(|(a, b)| Step::Zero(a, b)),
        2 => range().prop_map(|(a, b)| Step::Punch(a, b)),
        2 => range().prop_map(|(a, b)| Step::Discard(a, b)),
        1 => Just(Step::Flush),
        1 => Just(Step::Cut),
    ]
}

async fn apply(lab: &Arc<Lab>, steps: Vec<Step>) {
    let disk = lab.connect().await;
    assert!(disk.info().discard_reads_zeroes && disk.info().punches_holes);
    let mut model = vec![0; BLOCKS as usize * 512];
    let bytes = |a: u64, b: u64| a as usize * 512..b as usize * 512;
    for step in steps {
        match step {
            Step::Write(a, b, seed) => {
                let data = pattern(((b - a) * 512) as usize, seed);
                write(&disk, a * 512, &data).await.unwrap();
                model[bytes(a, b)].copy_from_slice(&data);
            }
            Step::Read(a, b) => {
                let data = read(&disk, a * 512, bytes(a, b).len()).await.unwrap();
                assert!(data == model[bytes(a, b)], "blocks {a} to {b}");
            }
            Step::Zero(a, b) => {
                disk.write_zeroes(a * 512..b * 512).await.unwrap();
                model[bytes(a, b)].fill(0);
            }
            Step::Punch(a, b) => {
                disk.punch_hole(a * 512..b * 512).await.unwrap();
                model[bytes(a, b)].fill(0);
            }
            Step::Discard(a, b) => {
                disk.discard(a * 512..b * 512).await.unwrap();
                model[bytes(a, b)].fill(0);
            }
            // A connection that is cut loses no data.
            Step::Flush => disk.flush().await.unwrap(),
            Step::Cut => lab.cut(),
        }
    }
    assert!(read(&disk, 0, model.len()).await.unwrap() == model);
}

#[test]
fn random_operations_match_a_model() {
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let steps = proptest::collection::vec(step(), 1..40);
    TestRunner::new(config)
        .run(&steps, |steps| {
            everywhere(1, (BLOCKS * 512, BlockSize::B512), async |lab| apply(&lab, steps.clone()).await);
            Ok(())
        })
        .unwrap();
}

#[test]
fn an_idle_connection_stays() {
    everywhere(1, (MIB, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        lab.rt.sleep_until(lab.rt.now() + Duration::from_secs(3600)).await;
        write(&disk, 0, &[1; 512]).await.unwrap();
        assert_eq!(lab.connections(), 1);
    });
}

#[test]
fn data_with_iser_is_lent_or_copied() {
    everywhere(1, (64 * MIB, BlockSize::B512), async |lab| {
        for immediate_data in [true, false] {
            lab.configure(|limits| limits.settings.immediate_data = immediate_data);
            lab.restart().await;
            let disk = lab.connect().await;
            // Data of one command, and more than the maximum of one.
            let max = disk.limits().max_transfer as usize;
            for length in [512, 4096, 8192, 65536, max, 2 * max + 512] {
                let data = pattern(length, length as u64);
                let (start, end) = data.split_at(length / 1024 * 512);
                // In two pieces, which the target cannot access as one.
                let mut pieces = Views::from(buffer(&disk, start).freeze());
                pieces.push(buffer(&disk, end).freeze());
                disk.write_at_from(512, pieces).await.unwrap();
                assert!(read(&disk, 512, length).await.unwrap() == data, "{length} bytes");
                write(&disk, 0, &data).await.unwrap();
                assert!(read(&disk, 0, length).await.unwrap() == data, "{length} bytes");
            }
        }
    });
}

#[test]
fn iser_with_digests_is_refused() {
    everywhere(1, (MIB, BlockSize::B512), async |lab| {
        let mut options = lab.options();
        options.digests = DigestPolicy::Require;
        let opened = lab.connect_with(&options).await;
        match lab.url().transport {
            Transport::Tcp => drop(opened.unwrap()),
            Transport::Iser => assert!(matches!(opened, Err(Error::InvalidInput(_)))),
        }
    });
}
