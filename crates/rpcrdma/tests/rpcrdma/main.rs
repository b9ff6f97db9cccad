//! The tests of requesters and responders.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod budget;
mod credits;
mod echo;
mod header;
mod hostile_requester;
mod hostile_responder;
mod linux_responder;
mod reverse;
mod support;
mod together;
mod unsent;
