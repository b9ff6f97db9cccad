//! The server copies no data. Copied bytes are counted for the process, so this is a program with one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.
#![allow(dead_code)] // The helpers have other users.

#[path = "nbd/client.rs"]
mod client;
#[path = "nbd/lab.rs"]
mod lab;

use lab::Lab;

const MIB: usize = 1 << 20;

#[test]
fn data_is_received_and_sent_without_copies() {
    let lab = Lab::new(64 << 20);
    let mut client = lab.client();
    let data: Vec<u8> = (0..8 * MIB).map(|i| (i / 4096 * 13 + i) as u8).collect();
    client.write(0, &data).unwrap();
    let before = millrace_buffer::copied::total();
    // From the second write on, one receive can contain data and the next header.
    client.write(0, &data).unwrap();
    client.write(0, &data).unwrap();
    let copied = millrace_buffer::copied::total() - before;
    // The target's file system stores one copy; both ends of iSCSI copy what arrives with headers.
    assert!(copied < 17 * MIB as u64, "{copied} bytes of 16 MiB were copied for writes");
    let before = millrace_buffer::copied::total();
    assert!(client.read(0, 8 << 20).unwrap() == data);
    let copied = millrace_buffer::copied::total() - before;
    assert!(copied < MIB as u64, "{copied} bytes of 8 MiB were copied for a read");
}
