//! The tests of the executors, their futures and their streams.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)] // Helpers of tests, which are to fail.

mod futures;
mod readiness;
mod streams;
mod virtual_time;
