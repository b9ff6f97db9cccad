//! Block devices of the target of this repository, over streams in memory and in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;
mod durability;
mod fake;
mod hostile;
mod operations;
mod reconnect;
