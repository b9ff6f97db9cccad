//! The tests of copies between a server and a local directory.

#![allow(clippy::unwrap_used)] // Helpers of tests, which are to fail.

mod distance;
mod remote;
mod xattrs;
