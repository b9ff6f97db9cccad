//! Tests specific to the local file system: confinement, handles across restarts, identity, data.

#![allow(clippy::unwrap_used)] // Helpers outside of `#[test]` functions.

mod calls;
mod common;
mod confinement;
mod identity;
mod restart;
