//! The tests of daemons.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod access;
mod endpoint;
mod wrong_configurations;
