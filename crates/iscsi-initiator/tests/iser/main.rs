//! Connections of the initiator with the iSER target, on the simulated fabric and on iWARP in software, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
mod hostile;
mod service;
#[allow(dead_code)] // The helpers have other users.
#[path = "../../../iscsi-target/tests/support/mod.rs"]
mod support;
