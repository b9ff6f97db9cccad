//! Block devices of the target of this repository, over streams in memory and in virtual time.

mod common;
mod durability;
mod fake;
mod hostile;
mod operations;
mod reconnect;
