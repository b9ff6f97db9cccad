//! The local file system: confinement, handles over restarts, identity, data, and what the shared suite cannot ask.

#![allow(clippy::unwrap_used)] // Helpers of tests are outside `#[test]` functions.

mod calls;
mod common;
mod confinement;
mod identity;
mod restart;
