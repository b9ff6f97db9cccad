//! The bytes of correct conversations.

use std::io::{Read, Write};

use millrace_scsi::BlockSize;

use crate::{
    client::{
        Client, DISC, EINVAL, ENOSPC, EPERM, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES, greeted, is_closed,
        option, receive, request,
    },
    lab::{Config, Lab},
};

const MIB: u64 = 1 << 20;

#[test]
fn a_conversation_without_extensions_has_the_specified_bytes() {
    let lab = Lab::new(MIB);
    let mut stream = greeted(&lab.path());
    // Client flags, and NBD_OPT_EXPORT_NAME: the size, the flags and 124 zeros follow.
    stream.write_all(&[&[0, 0, 0, 0][..], &option(1, &[])].concat()).unwrap();
    let expected = [&MIB.to_be_bytes()[..], &[0x01, 0x6d], &[0; 124]].concat();
    assert_eq!(receive(&mut stream, 134), expected);
    let block = [0xa5; 512];
    stream.write_all(&[&request(0, WRITE, 7, 512, 512), &block[..]].concat()).unwrap();
    assert_eq!(receive(&mut stream, 16), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07");
    stream.write_all(&request(0, READ, 8, 512, 512)).unwrap();
    assert_eq!(receive(&mut stream, 16), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x08");
    assert_eq!(receive(&mut stream, 512), block);
    stream.write_all(&request(0, READ, 9, MIB, 512)).unwrap();
    assert_eq!(receive(&mut stream, 16), b"\x67\x44\x66\x98\0\0\0\x16\0\0\0\0\0\0\0\x09");
    stream.write_all(&request(0, DISC, 0, 0, 0)).unwrap();
    assert!(is_closed(&mut stream));
}

#[test]
fn a_conversation_with_structured_replies_has_the_specified_bytes() {
    let lab = Lab::with(Config::new(MIB, BlockSize::B4096));
    let mut stream = greeted(&lab.path());
    stream.write_all(&[&3_u32.to_be_bytes()[..], &option(8, &[])].concat()).unwrap();
    assert_eq!(receive(&mut stream, 20), b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\0\0\0\x01\0\0\0\0");
    stream.write_all(&option(7, b"\0\0\0\0\0\x01\0\x03")).unwrap();
    let info =
        |length: u8| [&b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0"[..], &[length]].concat();
    let export = [&[0, 0][..], &MIB.to_be_bytes(), &[0x01, 0xed]].concat();
    let sizes = b"\0\x03\0\0\x10\0\0\0\x10\0\x02\0\0\0";
    let ack = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0";
    let expected = [&info(12)[..], &export, &info(14), sizes, ack].concat();
    assert_eq!(receive(&mut stream, expected.len()), expected);
    stream.write_all(&request(0, READ, 1, 4096, 4096)).unwrap();
    let chunk = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\x10\x08\0\0\0\0\0\0\x10\0";
    assert_eq!(receive(&mut stream, 28), chunk);
    assert_eq!(receive(&mut stream, 4096), [0; 4096]);
    stream.write_all(&request(0, READ, 2, 0, 512)).unwrap();
    let error = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x02\0\0\0";
    assert_eq!(receive(&mut stream, 19), error);
    let length = usize::from(receive(&mut stream, 1)[0]);
    let payload = receive(&mut stream, length);
    assert_eq!(payload[..6], [&EINVAL.to_be_bytes()[..], &[0, length as u8 - 6]].concat());
    assert!(String::from_utf8(payload[6..].to_vec()).unwrap().contains("whole blocks"));
}

#[test]
fn pipelined_options_and_requests_are_answered() {
    let lab = Lab::new(MIB);
    let mut stream = greeted(&lab.path());
    let requests: Vec<u8> = (0..100).flat_map(|i| request(0, READ, i, i * 512, 512)).collect();
    let all = [&3_u32.to_be_bytes()[..], &option(1, &[]), &requests, &request(0, DISC, 0, 0, 0)].concat();
    stream.write_all(&all).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 10 + 100 * (16 + 512), "requests before a disconnect are answered");
}

#[test]
fn requests_that_are_refused_leave_the_connection_usable() {
    let lab = Lab::with(Config::new(4 * MIB, BlockSize::B4096));
    for structured in [false, true] {
        let mut client = Client::connect(&lab.path(), structured);
        assert_eq!(client.size, 4 * MIB);
        assert_eq!(client.read(512, 4096), Err(EINVAL));
        assert_eq!(client.read(0, 512), Err(EINVAL));
        assert_eq!(client.read(4 * MIB, 4096), Err(EINVAL));
        assert_eq!(client.read(u64::MAX - 4095, 4096), Err(EINVAL));
        assert_eq!(client.read(0, 64 << 20), Err(EINVAL));
        assert_eq!(client.write(4 * MIB - 4096, &[1; 8192]), Err(ENOSPC));
        assert_eq!(client.write(512, &[1; 5000]), Err(EINVAL));
        assert_eq!(client.call(0x80, WRITE, 0, 4096, &[1; 4096]), Err(EINVAL));
        assert_eq!(client.call(0, WRITE_ZEROES, 4 * MIB, 4096, &[]), Err(ENOSPC));
        assert_eq!(client.call(0, TRIM, 4 * MIB, 4096, &[]), Err(EINVAL));
        assert_eq!(client.call(0, FLUSH, 0, 4096, &[]), Err(EINVAL));
        assert_eq!(client.call(0, 77, 0, 4096, &[]), Err(EINVAL));
        assert_eq!(client.read(0, 0), Ok(Vec::new()));
        assert_eq!(client.write(4096, &[]), Ok(Vec::new()));
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]), "no refused request has changed the disk");
    }
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut by_option = Config::new(MIB, BlockSize::B512);
    by_option.server.read_only = true;
    let mut by_device = Config::new(MIB, BlockSize::B512);
    by_device.read_only = true;
    for config in [by_option, by_device] {
        let lab = Lab::with(config);
        let mut client = lab.client();
        assert_eq!(client.flags & 0x62, 2, "READ_ONLY without SEND_TRIM and SEND_WRITE_ZEROES");
        assert_eq!(client.write(0, &[1; 512]), Err(EPERM));
        assert_eq!(client.call(FUA, TRIM, 0, 512, &[]), Err(EPERM));
        assert_eq!(client.call(0, WRITE_ZEROES, 0, 512, &[]), Err(EPERM));
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        assert_eq!(client.flush(), Ok(Vec::new()));
    }
}
