//! The tests of servers, with callers in the same process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // Helpers of tests, which are to fail.

mod common;
mod drain;
#[path = "common/gate.rs"]
mod gate;
mod hanging;
mod idle;
mod iscsi;
mod kerberos;
mod life;
mod memory;
mod nfs3;
mod nfs4;
mod policy;
mod reload;
mod tls;
mod verifier;
