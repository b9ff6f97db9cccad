//! Millrace's iSCSI target beside those of tgt and of the kernel (LIO), with the same initiators.
//!
//! Every run measures every row with each target in turn, as the comparison with knfsd does, and the
//! differences between host and guest are the same ([`super`]). In the rows `iscsi-perf/...` the tool of libiscsi runs on
//! the host, over loopback, with random reads of 4 KiB and 16 in flight: `local` is a file of the same file system for both
//! targets, in the page cache, and `memory` a memory export for Millrace and a file of a tmpfs for tgt. In the rows
//! `kernel/...` the initiator of a guest's kernel uses Millrace (a memory export) and LIO (a disk in memory, `rd_mcp`, in
//! another guest) with the same settings.

mod load;
mod report;
mod testbed;

use std::process::ExitCode;

use anyhow::{Result, bail};

use self::{load::Row, report::Report, testbed::Testbed};
use super::{BenchArgs, RowsArgs, in_sandbox};
use crate::sandbox;

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
    in_sandbox("bench-block-rows", args)
}

/// Measures in this process, which is the first of the sandbox.
///
/// # Errors
/// When a part cannot be started, or a load fails.
pub(crate) fn run_rows(args: &RowsArgs) -> Result<ExitCode> {
    sandbox::prepare()?;
    let rows = rows(&args.filters)?;
    let mut testbed = Testbed::new(&args.dir, rows.iter().any(Row::needs_guests))?;
    let mut report = Report::new(rows);
    for run in 0..args.runs {
        testbed.measure_wire()?;
        for i in 0..report.rows.len() {
            let row = report.rows[i].row;
            // The targets take turns in being first.
            let mut order = [row.reference(), row.millrace()];
            order.rotate_left(usize::from(run % 2));
            for subject in order {
                eprint!("\r\x1b[Krun {} of {}: {} {subject}", run + 1, args.runs, row.name());
                let sample = row.measure(&mut testbed, subject)?;
                report.rows[i].add(subject, sample);
            }
        }
    }
    eprintln!("\r\x1b[K");
    if args.json {
        report.json(&testbed.limits).iter().for_each(|line| println!("{line}"));
    } else {
        print!("{}", report.table(&testbed.limits));
    }
    testbed.finish()?;
    Ok(ExitCode::SUCCESS)
}
