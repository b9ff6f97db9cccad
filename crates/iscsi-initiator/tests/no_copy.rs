//! Reads and writes of several commands copy no data. Copied bytes are counted for the process, so this is a program
//! with one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.
#![allow(dead_code)] // The helpers have other users.

#[path = "device/common.rs"]
mod common;

use common::{everywhere, pattern};
use millrace_scsi::BlockSize;

const LENGTH: usize = 4 << 20;

#[test]
fn one_buffer_is_read_and_written_without_copies() {
    everywhere(1, (2 * LENGTH as u64, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        assert!(disk.limits().max_transfer as usize * 4 <= LENGTH, "several commands");
        for offset in [0, 512, 65536 - 512] {
            let data = pattern(LENGTH, offset);
            let mut buffer = disk.buffer(LENGTH).unwrap();
            buffer.copy_from_slice(&data);
            let before = millrace_buffer::copied::total();
            disk.write_at_from(offset, buffer.freeze().into()).await.unwrap();
            let written = millrace_buffer::copied::total() - before;
            let buffer = disk.buffer(LENGTH).unwrap();
            let (address, before) = (buffer.address(), millrace_buffer::copied::total());
            let buffer = disk.read_at_into(offset, buffer).await.unwrap();
            let read = millrace_buffer::copied::total() - before;
            assert!(buffer[..] == data && buffer.address() == address);
            println!("at {offset}: {written} copied for a write, {read} for a read");
            // Some data arrives with headers. A file in memory copies parts of its blocks: both ends of each command, and
            // over TCP unsolicited data, which is not aligned.
            let commands = LENGTH / disk.limits().max_transfer as usize;
            let ends = if offset % 65536 == 0 { 0 } else { 2 * 65536 * commands };
            let most = (65536 + ends) as u64;
            assert!(written < most, "{written} of {LENGTH} bytes were copied for a write");
            assert!(read < LENGTH as u64 / 8, "{read} of {LENGTH} bytes were copied for a read");
        }
    });
}
