//! Flushes, and targets that end.

use std::{io::Write, thread, time::Duration};

use millrace_nbd::Error;
use millrace_scsi::BlockSize;

use crate::{
    client::{EIO, FLUSH, FUA, TRIM, WRITE, WRITE_ZEROES, is_closed},
    lab::{Config, Lab},
};

const MIB: u64 = 1 << 20;

#[test]
fn a_flush_covers_the_writes_of_all_connections() {
    let lab = Lab::new(MIB);
    let (mut one, mut other) = (lab.client(), lab.client());
    assert_ne!(one.flags & 0x100, 0, "CAN_MULTI_CONN");
    one.write(0, &[1; 512]).unwrap();
    other.flush().unwrap();
    lab.restart_target();
    assert_eq!(one.flush(), Ok(Vec::new()), "the write was durable");
    assert_eq!(other.read(0, 512), Ok(vec![1; 512]));
}

#[test]
fn each_connection_learns_once_of_lost_writes() {
    let lab = Lab::new(MIB);
    let mut clients = [lab.client(), lab.client(), lab.client()];
    clients[0].write(0, &[1; 512]).unwrap();
    lab.restart_target();
    // Any of them may have relied on the write.
    for client in &mut clients {
        assert_eq!(client.flush(), Err(EIO));
        assert_eq!(client.flush(), Ok(Vec::new()));
    }
    assert_eq!(lab.client().flush(), Ok(Vec::new()), "a new connection has lost nothing");
}

#[test]
fn a_loss_that_a_flush_of_an_ended_connection_reports_is_not_forgotten() {
    let lab = Lab::new(MIB);
    let (mut client, mut other) = (lab.client(), lab.client());
    client.write(0, &[1; 512]).unwrap();
    lab.kill_target();
    other.send(0, FLUSH, 0, 0, &[]);
    // The device has the flush when the violation arrives.
    thread::sleep(Duration::from_millis(100));
    other.stream.write_all(&[0; 28]).unwrap();
    assert!(is_closed(&mut other.stream));
    lab.restart_target();
    client.read(0, 512).unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(client.flush(), Err(EIO));
    assert_eq!(client.flush(), Ok(Vec::new()));
}

#[test]
fn requests_with_fua_are_durable() {
    let lab = Lab::new(MIB);
    let mut client = lab.client();
    assert_ne!(client.flags & 8, 0, "SEND_FUA");
    for (command, data) in [(WRITE, &[1; 512][..]), (WRITE_ZEROES, &[]), (TRIM, &[])] {
        client.call(FUA, command, 0, 512, data).unwrap();
        lab.restart_target();
        assert_eq!(client.flush(), Ok(Vec::new()), "command {command}");
    }
    client.write(0, &[1; 512]).unwrap();
    lab.restart_target();
    assert_eq!(client.call(FUA, WRITE, 512, 512, &[2; 512]), Err(EIO), "a write before it is lost");
    assert_eq!(client.flush(), Err(EIO), "the client may take the error for one of this request only");
    assert_eq!(client.flush(), Ok(Vec::new()));
}

#[test]
fn requests_fail_while_the_target_is_away_and_succeed_later() {
    let mut config = Config::new(MIB, BlockSize::B512);
    config.device.timeout = Duration::from_millis(300);
    let mut lab = Lab::with(config);
    let mut client = lab.client();
    client.write(0, &[1; 512]).unwrap();
    client.flush().unwrap();
    lab.kill_target();
    assert_eq!(client.read(0, 512), Err(EIO));
    assert_eq!(client.write(0, &[2; 512]), Err(EIO));
    assert_eq!(client.flush(), Err(EIO));
    lab.restart_target();
    let again = std::iter::repeat_with(|| client.read(0, 512)).take(50).find(Result::is_ok);
    assert!(again.is_some());
    lab.kill_target();
    assert!(matches!(lab.end(), Err(Error::Flush(_))));
}
