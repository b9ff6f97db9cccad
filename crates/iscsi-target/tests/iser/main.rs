//! Connections of an initiator with the target over iSER, on the simulated fabric and on iWARP in software, in virtual
//! time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocks;
#[path = "../support/charges.rs"]
mod charges;
mod common;
#[path = "../support/gate.rs"]
mod gate;
mod hostile;
mod observed;
mod requests;
mod service;
mod shares;
mod slow;
#[path = "../support/mod.rs"]
mod support;
