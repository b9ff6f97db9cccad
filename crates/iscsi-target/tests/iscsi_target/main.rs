//! The tests of connections of an initiator with the target, over TCP and over iSER, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

#[path = "../support/charges.rs"]
mod charges;
#[path = "../support/gate.rs"]
mod gate;
mod iser;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
