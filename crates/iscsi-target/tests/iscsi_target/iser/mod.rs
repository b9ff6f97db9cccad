//! Connections of an initiator with the target over iSER, on the simulated fabric and on iWARP in software, in virtual
//! time.

mod blocks;
mod common;
mod hostile;
mod observed;
mod requests;
mod service;
mod shares;
mod slow;
