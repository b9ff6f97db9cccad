//! The tests of local directories as a file system.

#![allow(clippy::unwrap_used)] // Helpers of tests, which are to fail.

mod conformance;
mod local;
