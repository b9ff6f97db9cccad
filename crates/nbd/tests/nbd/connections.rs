//! Several connections, and the end of the server.

use std::{io::Write, os::unix::fs::PermissionsExt, thread};

use millrace_nbd::Error;
use millrace_scsi::BlockSize;

use crate::{
    client::{Client, WRITE, greeted, is_closed, option},
    lab::{Config, Lab},
};

const MIB: u64 = 1 << 20;

#[test]
fn connections_above_the_limit_are_closed() {
    let mut config = Config::new(MIB, BlockSize::B512);
    config.server.connections = 2;
    let lab = Lab::with(config);
    let mut clients = [lab.client(), lab.client()];
    let mut third = std::os::unix::net::UnixStream::connect(lab.path()).unwrap();
    assert!(is_closed(&mut third));
    for client in &mut clients {
        client.read(0, 512).unwrap();
    }
    drop(clients);
    // The server detects the end of a connection a moment later.
    let again = (0..100).any(|_| {
        thread::sleep(std::time::Duration::from_millis(10));
        let mut stream = std::os::unix::net::UnixStream::connect(lab.path()).unwrap();
        stream.write_all(&[&3_u32.to_be_bytes()[..], &option(2, &[])].concat()).is_ok()
            && std::io::copy(&mut stream, &mut std::io::sink()).is_ok_and(|n| n > 0)
    });
    assert!(again, "a place becomes free");
}

#[test]
fn connections_that_need_more_memory_than_there_is_wait_for_each_other() {
    let mut config = Config::new(64 * MIB, BlockSize::B512);
    config.device.memory = 40 << 20;
    let lab = Lab::with(config);
    thread::scope(|scope| {
        for i in 0..4_u8 {
            let mut client = lab.client();
            scope.spawn(move || {
                let (start, data) = (u64::from(i) * 16 * MIB, vec![i + 1; 16 << 20]);
                for _ in 0..4 {
                    client.write(start, &data).unwrap();
                    assert!(client.read(start, 16 << 20).unwrap() == data);
                }
            });
        }
    });
}

#[test]
fn the_server_answers_requests_in_progress_before_it_ends() {
    let mut lab = Lab::new(64 * MIB);
    let path = lab.path();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut idle = lab.client();
    let mut haggling = greeted(&path);
    let mut client = lab.client();
    let data = [0xee; 1 << 20];
    let cookies: Vec<_> = (0..32).map(|i| client.send(0, WRITE, i << 20, 1 << 20, &data)).collect();
    let (first, done) = client.answer();
    done.unwrap();
    lab.stop();
    let mut written = vec![first];
    // Then the stream ends.
    while client.peek() {
        let (cookie, answer) = client.answer();
        answer.unwrap();
        written.push(cookie);
    }
    assert!(is_closed(&mut idle.stream) && is_closed(&mut haggling));
    lab.end().unwrap();
    assert!(!path.exists());
    assert!(written.iter().all(|cookie| cookies.contains(cookie)));
}

#[test]
fn a_client_that_does_not_receive_does_not_prevent_the_end() {
    let mut lab = Lab::new(64 * MIB);
    let mut client = lab.client();
    client.send_reads(20, 1 << 20);
    lab.end().unwrap();
}

#[test]
fn a_second_server_does_not_take_the_socket() {
    let lab = Lab::new(MIB);
    let error = lab.bind(&lab.path()).err().unwrap();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    Client::connect(&lab.path(), false).read(0, 512).unwrap();
    let other = lab.bind(&lab.path().with_file_name("a disk.sock")).unwrap();
    assert!(other.uri().ends_with("/a%20disk.sock"), "{}", other.uri());
}
