//! The tests of the program `millrace-lab`.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod breakdown;
mod common;
mod matrix;
mod reproduce;
mod security;
mod serve;
mod simulated;
mod study;
mod workloads;
