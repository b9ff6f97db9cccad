//! Shared parts of the programs `millrace` and `millrace-lab`: exit codes, standard output, executors, and
//! the benchmark commands of both, `iozone` and those of workloads.

pub mod args;
pub mod executor;
pub mod failure;
pub mod iozone;
pub mod output;
pub mod workload;

/// Warns on standard error, as `program`, if this is a debug build.
pub fn warn_of_debug_build(program: &str) {
    if cfg!(debug_assertions) {
        eprintln!(
            "{program}: this is a debug build, whose measurements are not meaningful; use cargo run --release"
        );
    }
}
