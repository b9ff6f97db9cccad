//! Attacks on servers and clients.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod holds;
mod malicious_servers;
mod servers;
