//! Commands of a disk in the memory file system.

mod blocks;
mod common;
mod durability;
mod hostile;
mod initiator;
mod model;
mod parameters;
mod sharing;
