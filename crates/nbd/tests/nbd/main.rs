//! A server on a Unix socket for a disk of a target over TCP, with clients that send bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod allocation;
mod client;
mod connections;
mod data;
mod durability;
mod hostile;
mod lab;
mod protocol;
mod stalled;
mod virtual_device;
