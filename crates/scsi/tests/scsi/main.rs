//! The tests of disks and of reservations.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod disk;
mod reservation;
