//! Fuzz targets of Millrace: one function for each format that is read from a peer, a file or a command line,
//! and for whole connections in virtual time.
//!
//! A target takes arbitrary bytes and asserts properties: an encoder reproduces the input that a decoder
//! accepted; a decoder allocates at most in proportion to its input; the result of a stream parser does not
//! depend on how the stream is split; a connection ends and returns its memory, and a correct client beside
//! it gets correct answers.
//!
//! Two drivers execute them. [`drive`] mutates seeds deterministically, on any toolchain; `tests/short.rs`
//! and the program `millrace-fuzz` use it. `fuzz_targets/target.rs` gives the targets to libFuzzer, which is
//! guided by coverage. Seeds are made with the project's encoders when a driver starts, so that they follow
//! every change of a format.

// A fuzz target reports a fault by a failed assertion.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod bytes;
pub mod drive;
mod heap;
mod mutate;
mod still;
mod targets;

pub use targets::{TARGETS, Target, target};
