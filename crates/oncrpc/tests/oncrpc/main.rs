//! The tests of RPC messages, and of clients and servers over TCP.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod allocations;
mod budget;
mod common;
mod gss;
mod gss_client;
mod messages;
mod records;
mod rpcbind;
mod starttls;
mod tcp;
