//! Tests of TLS over streams in memory, with certificates that are made for each run.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod acceptor;
mod common;
mod config;
mod handshake;
mod hostile;
mod memory;
mod raw;
mod transfer;
