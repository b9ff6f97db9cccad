//! The tests of the encoding of requests, replies and notifications.

#![allow(clippy::unwrap_used)] // Helpers of tests, which are to fail.

mod messages;
mod requests;
mod ring;
