//! The command, as a user has it.

#![allow(dead_code, unreachable_pub)] // Not every test file uses everything.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

#[path = "../../../cli/tests/common/program.rs"]
mod program;

use std::path::Path;

pub use program::*;

const NAME: &str = "millrace-lab";
const PROGRAM: &str = env!("CARGO_BIN_EXE_millrace-lab");

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
