//! The tests of the client against servers in the same process.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers, not input from a peer.

mod broken_connections;
mod common;
mod examples;
mod file_streams;
mod kerberos;
mod memory;
mod paths;
mod public_api;
mod range_locks;
mod round_trips;
mod server;
mod space;
mod stages;
mod tar;
mod tls;
mod transports;
mod xattrs;
