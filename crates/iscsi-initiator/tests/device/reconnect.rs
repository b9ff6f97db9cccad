//! Loss of the connection.

use std::time::Duration;

use futures::future::{join, join_all};
use millrace_iscsi_initiator::Error;
use millrace_scsi::BlockSize;

use crate::common::{Fault, everywhere, pattern, read, write};

const SIZE: u64 = 4 << 20;

#[test]
fn commands_in_flight_are_sent_again() {
    for cuts in 1..8 {
        everywhere(cuts, (SIZE, BlockSize::B512), async |lab| {
            let disk = &lab.connect().await;
            // Within headers, data and the login.
            lab.cut_at((0..cuts).map(|i| 1000 + i * 77_777).collect());
            let work = join_all((0..64).map(|i| async move {
                write(disk, i * 32768, &pattern(32768, i)).await.unwrap();
                assert!(read(disk, i * 32768, 32768).await.unwrap() == pattern(32768, i));
            }));
            work.await;
            assert_eq!(lab.connections(), 1 + cuts, "the connection was cut");
        });
    }
}

#[test]
fn reads_of_several_commands_are_completed_after_cuts() {
    everywhere(1, (SIZE, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        let data = pattern(SIZE as usize, 3);
        write(&disk, 0, &data).await.unwrap();
        for cut in 1..12 {
            // Within one of the four commands, before or after others are complete.
            lab.cut_at(vec![cut * 350_000]);
            let buffer = disk.buffer(data.len()).unwrap();
            let address = buffer.address();
            let buffer = disk.read_at_into(0, buffer).await.unwrap();
            assert!(buffer[..] == data && buffer.address() == address, "cut {cut}");
            assert_eq!(lab.connections(), 1 + cut, "the connection was cut");
        }
    });
}

#[test]
fn a_silent_target_is_left() {
    everywhere(1, (SIZE, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        lab.fault(Fault::Silence);
        let start = lab.rt.now();
        let written = write(&disk, 0, &[7; 512]);
        let recover = async {
            lab.sleep(20).await;
            lab.fault(Fault::None);
        };
        let (written, ()) = join(written, recover).await;
        written.unwrap();
        assert!(lab.connections() >= 2, "the silent connection was replaced");
        assert!(lab.rt.now().duration_since(start) < Duration::from_secs(45));
        assert_eq!(read(&disk, 0, 512).await.unwrap(), [7; 512]);
    });
}

#[test]
fn operations_end_at_their_time_limit() {
    for fault in [Fault::Refuse, Fault::Silence] {
        everywhere(1, (SIZE, BlockSize::B512), async |lab| {
            let disk = lab.connect().await;
            lab.fault(fault);
            let start = lab.rt.now();
            let (a, b, c) = futures::join!(write(&disk, 0, &[7; 512]), read(&disk, 0, 512), disk.flush());
            for error in [a.unwrap_err(), b.unwrap_err(), c.unwrap_err()] {
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            }
            assert_eq!(lab.rt.now().duration_since(start).as_secs(), 60);
            lab.fault(Fault::None);
            write(&disk, 0, &[8; 512]).await.unwrap();
            assert_eq!(read(&disk, 0, 512).await.unwrap(), [8; 512]);
        });
    }
}

#[test]
fn another_device_is_not_written() {
    everywhere(1, (SIZE, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        write(&disk, 0, &[1; 512]).await.unwrap();
        lab.replace_device();
        lab.restart().await;
        let error = write(&disk, 0, &[2; 512]).await.unwrap_err();
        assert!(matches!(error, Error::Replaced { .. }), "{error}");
        let other = lab.connect().await;
        assert_eq!(read(&other, 0, 512).await.unwrap(), [1; 512]);
    });
}

#[test]
fn a_target_that_ends_is_left_and_found_again() {
    everywhere(1, (SIZE, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        lab.kill();
        let revive = async {
            lab.sleep(30).await;
            lab.start().await;
        };
        let (written, ()) = join(write(&disk, 0, &[1; 512]), revive).await;
        written.unwrap();
        assert_eq!(read(&disk, 0, 512).await.unwrap(), [1; 512]);
    });
}

#[test]
fn dropped_handles_and_operations_end_the_session() {
    everywhere(1, (SIZE, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        let data = pattern(1 << 20, 3);
        drop(write(&disk, 0, &data)); // Not started.
        let mut started = Box::pin(write(&disk, 0, &data));
        assert!(futures::poll!(&mut started).is_pending());
        drop(started);
        drop(disk);
        lab.sleep(1).await;
        let disk = lab.connect().await;
        assert!(read(&disk, 0, 1 << 20).await.unwrap() == data, "a dropped operation continues");
    });
}
