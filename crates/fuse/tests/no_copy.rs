//! Copies in user space of data that is written. This test has its own process, because the counter of copied bytes is
//! process-wide.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.

mod common;

use std::{
    fs::{self, File},
    io::Write,
};

use common::{Export, fuse_is_available};

const RECORD: usize = 1 << 20;
const RECORDS: usize = 16;

#[test]
fn large_writes_are_sent_from_the_buffers_into_which_they_were_read() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    // The server does not copy over RDMA.
    let mounted = export.mount("rdma", "");
    let record: Vec<u8> = (0..RECORD).map(|i| (i >> 3) as u8).collect();
    let mut file = File::create(mounted.at.join("f")).unwrap();
    let before = millrace_buffer::copied::total();
    for _ in 0..RECORDS {
        file.write_all(&record).unwrap();
    }
    file.sync_all().unwrap();
    let copied = millrace_buffer::copied::total() - before;
    assert!(copied < RECORD as u64, "{copied} bytes copied");
    drop(file);
    assert!(fs::read(mounted.at.join("f")).unwrap() == record.repeat(RECORDS));
    mounted.unmount();
}
