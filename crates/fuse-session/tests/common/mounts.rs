//! What tests with mounts need, also those of other crates.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

/// Whether FUSE is available; prints the reason if it is not.
pub fn fuse_is_available() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.inspect_err(|e| eprintln!("SKIPPED, NOTHING WAS TESTED: /dev/fuse cannot be opened: {e}")).is_ok()
}

pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|l| l.split(' ').nth(4) == path.to_str())
}
