//! Millrace beside the kernel's NFS server, with the same clients on the same network.
//!
//! Every run measures every row with each server in turn, so that noise of the machine affects both equally.
//! The table shows medians with the minimum and maximum of the runs, and:
//!
//! - *bare TCP*: the throughput of a TCP connection between a program in the client's guest and one on the host, in the same
//!   run: a stream in the direction of the data, or for small operations a ping-pong of requests of 128 bytes and replies of
//!   4 KiB. The program in the guest has slow system calls, which a client in the guest's kernel does not make, so that a
//!   ping-pong can be slower than the READs.
//! - *CPU* of the server, for each GB (10^9 bytes) or operation: of Millrace, that of its process; of knfsd, that of its whole
//!   guest minus the idle consumption. A part of the receive processing of the host's kernel for Millrace is charged to the
//!   sending guest, because it happens in the guest's write to its tap device. The columns of server and client together
//!   include everything.
//!
//! Two differences cannot be removed: knfsd has one processor, and every byte to it crosses a second tap device; and the rows
//! `millrace/...` reach Millrace over the host's loopback.

pub(crate) mod block;
mod load;
pub(crate) mod names;
mod report;
mod testbed;
pub(crate) mod wire;

use std::{
    fs,
    path::PathBuf,
    process::{ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::{
    load::Row,
    report::Report,
    testbed::{ServerKind, Testbed},
    wire::{Limits, Wire},
};
use crate::sandbox;

/// Arguments of `interop bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Run only rows whose name contains one of these texts
    filters: Vec<String>,
    /// Print the names of the rows and run nothing
    #[arg(long)]
    list: bool,
    /// Number of runs of each row; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Print one JSON object for each row, with every run
    #[arg(long)]
    json: bool,
    /// Keep the files of the run
    #[arg(long)]
    keep: bool,
    /// Directory of the run's files
    #[arg(long, env = "MILLRACE_INTEROP_CACHE", default_value = "/var/tmp/millrace-interop")]
    cache: PathBuf,
}

/// Arguments of `interop bench-rows`.
#[derive(Debug, Args)]
pub(crate) struct RowsArgs {
    dir: PathBuf,
    filters: Vec<String>,
    #[arg(long)]
    runs: u16,
    #[arg(long)]
    json: bool,
}

fn rows(filters: &[String]) -> Result<Vec<Row>> {
    let wanted = |r: &Row| filters.is_empty() || filters.iter().any(|f| r.name().contains(f.as_str()));
    let rows: Vec<Row> = load::rows().into_iter().filter(wanted).collect();
    if rows.is_empty() {
        bail!("no row has such a name; --list prints the names");
    }
    Ok(rows)
}

/// Measures in a new sandbox.
///
/// # Errors
/// When no row has such a name, or the sandbox cannot be created.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let rows = rows(&args.filters)?;
    if args.list {
        rows.iter().for_each(|r| println!("{}", r.name()));
        return Ok(ExitCode::SUCCESS);
    }
    in_sandbox("bench-rows", args)
}

/// Runs the subcommand that measures in a new sandbox.
fn in_sandbox(command: &str, args: &BenchArgs) -> Result<ExitCode> {
    let dir = args.cache.join("run").join(std::process::id().to_string());
    fs::create_dir_all(&dir)?;
    let (path, runs) = (dir.display().to_string(), args.runs.to_string());
    let mut all = vec![command, "--runs", &runs];
    all.extend(args.json.then_some("--json"));
    all.push(&path);
    all.extend(args.filters.iter().map(String::as_str));
    let status = sandbox::command(&all)?
        .stdin(Stdio::null())
        .status()
        .context("cannot create a sandbox (needs root)")?;
    if !status.success() {
        eprintln!("interop: files: {path}");
        return Ok(ExitCode::FAILURE);
    }
    if !args.keep {
        fs::remove_dir_all(&dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures in this process, which is the first of the sandbox.
///
/// # Errors
/// When a part cannot be started, or a load fails.
pub(crate) fn run_rows(args: &RowsArgs) -> Result<ExitCode> {
    sandbox::prepare()?;
    let rows = rows(&args.filters)?;
    let mut testbed = Testbed::new(&args.dir)?;
    let wire = Wire::listen()?;
    let mut sessions = load::Sessions::default();
    let mut report = Report::new(rows);
    for run in 0..args.runs {
        report.limits.push(Limits::measure(&wire, &mut testbed.client)?);
        // The servers take turns in being first.
        let mut order = ServerKind::BOTH;
        order.rotate_left(usize::from(run % 2));
        for i in 0..report.rows.len() {
            for kind in order {
                eprint!("\r\x1b[Krun {} of {}: {} {kind}", run + 1, args.runs, report.rows[i].row.name());
                let sample = report.rows[i].row.measure(&mut testbed, &mut sessions, kind)?;
                report.rows[i].add(kind, sample);
            }
        }
    }
    eprintln!("\r\x1b[K");
    if args.json {
        report.json().iter().for_each(|line| println!("{line}"));
    } else {
        print!("{report}");
    }
    // The check for an idle server requires that clients have disconnected.
    drop(sessions);
    testbed.finish()?;
    Ok(ExitCode::SUCCESS)
}
