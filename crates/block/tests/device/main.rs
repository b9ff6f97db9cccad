//! Block devices of the target of this repository, over streams in memory and in virtual time.

mod common;
mod durability;
mod operations;
mod reconnect;
