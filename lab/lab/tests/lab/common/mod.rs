//! Helpers of the tests that run the program `millrace-lab` and check its output and exit status.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers fail by panicking.

#[path = "../../../../../crates/cli/tests/cli/common/program.rs"]
mod program;

use std::path::Path;

pub use program::*;

const NAME: &str = "millrace-lab";
const PROGRAM: &str = env!("CARGO_BIN_EXE_millrace-lab");

/// Converts a path to an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
