//! A read of several commands copies no data. Copied bytes are counted for the process, so this is a program with one
//! test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.
#![allow(dead_code)] // The helpers have other users.

#[path = "device/common.rs"]
mod common;

use common::{everywhere, pattern, write};
use millrace_scsi::BlockSize;

const LENGTH: usize = 4 << 20;

#[test]
fn a_read_of_several_commands_fills_one_buffer_without_copies() {
    everywhere(1, (LENGTH as u64, BlockSize::B512), async |lab| {
        let disk = lab.connect().await;
        assert!(disk.limits().max_transfer as usize * 4 <= LENGTH, "several commands");
        let data = pattern(LENGTH, 1);
        write(&disk, 0, &data).await.unwrap();
        let buffer = disk.buffer(LENGTH).unwrap();
        let (address, before) = (buffer.address(), millrace_buffer::copied::total());
        let buffer = disk.read_at_into(0, buffer).await.unwrap();
        let copied = millrace_buffer::copied::total() - before;
        assert!(buffer[..] == data && buffer.address() == address);
        // Some data arrives with headers.
        assert!(copied < LENGTH as u64 / 8, "{copied} of {LENGTH} bytes were copied");
    });
}
