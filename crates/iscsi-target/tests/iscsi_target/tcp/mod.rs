//! Connections of an initiator with the target, over streams in memory and in virtual time.

mod common;
mod hostile;
mod lengths;
mod linger;
mod requests;
mod service;
mod shares;
mod slow;
