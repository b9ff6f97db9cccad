//! What the programs `millrace` and `millrace-lab` share: exit codes, standard output, executors, and the benches
//! `iozone` and those of workloads, which both have.

pub mod args;
pub mod executor;
pub mod failure;
pub mod iozone;
pub mod output;
pub mod workload;

/// Warns on standard error, as `program`, if this is a debug build.
pub fn warn_of_debug_build(program: &str) {
    if cfg!(debug_assertions) {
        eprintln!("{program}: this is a debug build; figures mean something only with cargo run --release");
    }
}
