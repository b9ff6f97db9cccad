//! Conformance cases for NFSv4.1 and 4.2 servers (RFC 8881, RFC 7862), as raw COMPOUNDs.
//!
//! [`run`] executes the cases of a group on a connection to any server, and returns one [`Row`] for each: what Millrace
//! answers, and what the server answered. The tests of the crate `server` require that both are equal.
//! [`compound`] has the requests and results of which the cases consist.

// As a test, a case ends at the first result that makes its continuation impossible.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod callbacks;
mod cases;
pub mod compound;
mod connection;
mod group;
pub mod operations;

pub use cases::{GROUPS, run};
pub use connection::Connection;
pub use group::Row;
