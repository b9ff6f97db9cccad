//! The tests of the program `millrace`, and of the documentation.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod access;
mod bench_mount;
mod blk;
mod certs;
mod common;
mod config;
mod damage;
mod devices;
mod docs;
mod doctor;
mod errors;
mod files;
mod mount;
mod reload;
mod serve;
mod sessions;
mod state;
mod surface;
mod together;
mod trees;
mod watch;
