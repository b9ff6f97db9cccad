//! The benchmark commands that `millrace` and `millrace-lab` share: their options, runs and output.

pub mod iozone;
pub mod workload;
