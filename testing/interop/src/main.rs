//! The interoperability lab: Millrace against real Linux kernels, which run as ordinary programs (User Mode
//! Linux) or, as they do at users, under QEMU.
//!
//! `testing/interop/run` prepares the guests and calls `interop matrix`. See docs/dev/testing.md.

mod agent;
mod bench;
mod cases;
mod exercise;
mod guest;
mod kernel_log;
mod lab;
mod machine;
mod matrix;
mod metrics;
mod network;
mod program;
mod realm;
mod sandbox;
mod server;
mod tree;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Millrace against real Linux kernels.
#[derive(Debug, Parser)]
#[command(name = "interop")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run cases, each in its own sandbox, and print one line for each case
    Matrix(matrix::MatrixArgs),
    /// Run one case, inside its sandbox
    #[command(hide = true)]
    Case(matrix::CaseArgs),
    /// Measure Millrace and knfsd alternately and print a table
    Bench(bench::BenchArgs),
    /// Run the measurements, inside the sandbox
    #[command(hide = true)]
    BenchRows(bench::RowsArgs),
    /// Measure Millrace's iSCSI target, tgt and LIO alternately and print a table
    BenchBlock(bench::BenchArgs),
    /// Run these measurements, inside the sandbox
    #[command(hide = true)]
    BenchBlockRows(bench::RowsArgs),
    /// Run the directory workload of the benchmark, in a guest
    #[command(hide = true)]
    BenchNames(bench::names::NamesArgs),
    /// Run the guest's end of the plain TCP connection of the benchmark
    #[command(hide = true)]
    BenchWire(bench::wire::WireArgs),
    /// Write, truncate, read and check files at random and compare them with a model of their contents
    Exercise(exercise::ExerciseArgs),
    /// Make a directory tree for tests, or print a manifest of one
    #[command(subcommand)]
    Tree(TreeCommand),
    /// Run as the first process of a guest
    #[command(hide = true)]
    Agent,
}

#[derive(Debug, Subcommand)]
enum TreeCommand {
    /// Make the tree in a new directory: the same tree for the same seed and size
    Make {
        /// The directory; its parent must exist
        dir: PathBuf,
        /// Seed of the random content
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Make a smaller tree
        #[arg(long)]
        quick: bool,
    },
    /// Print one line for each entry, with every attribute that a copy must preserve
    Manifest {
        /// The directory
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("interop: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Matrix(args) => return matrix::run(&args),
        Command::Case(args) => return matrix::run_case(&args),
        Command::Bench(args) => return bench::run(&args),
        Command::BenchRows(args) => return bench::run_rows(&args),
        Command::BenchBlock(args) => return bench::block::run(&args),
        Command::BenchBlockRows(args) => return bench::block::run_rows(&args),
        Command::BenchNames(args) => bench::names::run(&args)?,
        Command::BenchWire(args) => bench::wire::run(&args)?,
        Command::Exercise(args) => exercise::run(&args)?,
        Command::Tree(TreeCommand::Make { dir, seed, quick }) => tree::make(&dir, seed, quick)?,
        Command::Tree(TreeCommand::Manifest { dir }) => print!("{}", tree::Manifest::of(&dir)?),
        Command::Agent => agent::run()?,
    }
    Ok(ExitCode::SUCCESS)
}
