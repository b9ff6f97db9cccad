//! Connections of an initiator with the target, over streams in memory and in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/charges.rs"]
mod charges;
mod common;
#[path = "../support/gate.rs"]
mod gate;
mod hostile;
mod lengths;
mod linger;
mod requests;
mod service;
mod shares;
mod slow;
#[path = "../support/mod.rs"]
mod support;
