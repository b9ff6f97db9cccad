//! Commands of a disk in the memory file system.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocks;
mod common;
mod durability;
mod hostile;
mod initiator;
mod model;
mod parameters;
mod sharing;
