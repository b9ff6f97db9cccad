//! Clients that violate the protocol: their connections end, and others continue.

use std::{io::Write, os::unix::net::UnixStream};

use crate::{
    client::{READ, WRITE, greeted, is_closed, option, receive, request},
    lab::{Config, Lab},
};
use millrace_scsi::BlockSize;

const MIB: u64 = 1 << 20;

/// A connection in the transmission phase.
fn transmission(lab: &Lab) -> UnixStream {
    lab.client().stream
}

/// Sends bytes; the server may have closed the connection before all are sent.
fn send(stream: &mut UnixStream, bytes: &[u8]) {
    let _closed = stream.write_all(bytes);
}

#[test]
fn violations_of_the_handshake_end_the_connection() {
    let lab = Lab::new(MIB);
    let flags = 3_u32.to_be_bytes();
    let flood: Vec<u8> = (0..200).flat_map(|_| option(3, &[])).collect();
    let conversations: &[(&str, Vec<u8>)] = &[
        ("unknown client flags", 4_u32.to_be_bytes().to_vec()),
        ("wrong magic number", [&flags[..], b"IHAVEOPX\0\0\0\x07\0\0\0\0"].concat()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("long option", [&flags[..], b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"].concat()),
        ("unknown export", [&flags[..], &option(1, b"other")].concat()),
        ("flood of options", [&flags[..], &flood].concat()),
        ("fixed newstyle that was not selected", [&[0; 4][..], &option(7, &[0; 6])].concat()),
        ("abort", [&flags[..], &option(2, &[])].concat()),
    ];
    for (name, bytes) in conversations {
        let mut stream = greeted(&lab.path());
        send(&mut stream, bytes);
        assert!(is_closed(&mut stream), "{name}");
    }
    assert_eq!(lab.client().read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn an_unknown_option_is_answered_and_the_handshake_continues() {
    let lab = Lab::new(MIB);
    let mut stream = greeted(&lab.path());
    send(&mut stream, &[&3_u32.to_be_bytes()[..], &option(0xbeef, &[1; 8000])].concat());
    let reply = receive(&mut stream, 20);
    assert_eq!(reply[8..16], [0, 0, 0xbe, 0xef, 0x80, 0, 0, 1]);
    let length = u32::from_be_bytes(reply[16..].try_into().unwrap());
    receive(&mut stream, length as usize);
    send(&mut stream, &option(1, &[]));
    assert_eq!(receive(&mut stream, 10)[..8], MIB.to_be_bytes());
}

#[test]
fn violations_of_the_transmission_phase_end_the_connection() {
    let lab = Lab::new(MIB);
    let mut wrong_magic = request(0, READ, 1, 0, 512);
    wrong_magic[0] ^= 1;
    let large_write = request(0, WRITE, 1, 0, (32 << 20) + 512);
    for bytes in [wrong_magic, large_write] {
        let mut stream = transmission(&lab);
        send(&mut stream, &[bytes, vec![0; 4096]].concat());
        assert!(is_closed(&mut stream));
    }
    assert_eq!(lab.client().read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn memory_of_requests_that_never_complete_is_released() {
    let mut config = Config::new(64 * MIB, BlockSize::B512);
    config.device.memory = 64 << 20;
    let lab = Lab::with(config);
    for i in 0..20 {
        // The header, or a part of the data, of the largest write.
        let mut stream = transmission(&lab);
        let partial = [request(0, WRITE, 1, 0, 32 << 20), vec![1; i * 100_000]].concat();
        send(&mut stream, &partial);
        drop(stream);
        // Half a header.
        let mut stream = transmission(&lab);
        send(&mut stream, &request(0, READ, 1, 0, 512)[..14]);
        drop(stream);
        // Replies that the client does not receive.
        let mut stream = transmission(&lab);
        let reads: Vec<u8> = (0..300).flat_map(|i| request(0, READ, i, 0, 1 << 20)).collect();
        send(&mut stream, &reads);
        drop(stream);
    }
    let mut client = lab.client();
    let data = vec![0x77; 32 << 20];
    assert_eq!(client.write(0, &data), Ok(Vec::new()));
    assert!(client.read(0, 32 << 20).unwrap() == data);
    assert_eq!(client.read(32 << 20, 512), Ok(vec![0; 512]), "no partial write was executed");
}

#[test]
fn a_client_that_does_not_receive_does_not_hinder_others() {
    let mut config = Config::new(64 * MIB, BlockSize::B512);
    config.device.memory = 128 << 20;
    let lab = Lab::with(config);
    let (mut slow, mut client) = (lab.client(), lab.client());
    // More requests than the server accepts from one connection.
    let mut reads = slow.send_reads(1000, 1 << 20);
    for i in 0..50 {
        assert_eq!(client.write(i * 4096, &[i as u8 + 1; 4096]), Ok(Vec::new()));
    }
    assert_eq!(client.read(49 * 4096, 4096), Ok(vec![50; 4096]));
    while !reads.is_empty() {
        let (cookie, answer) = slow.answer();
        assert_eq!(answer.unwrap().len(), 1 << 20);
        reads.retain(|sent| *sent != cookie);
    }
}
