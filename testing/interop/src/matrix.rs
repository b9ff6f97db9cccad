//! Runs a set of cases, or one case.

use std::{
    fs,
    iter::Sum,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    cases::{self, Case},
    lab::{Lab, REPORT, Skipped},
    machine::Machine,
    sandbox,
};

/// Time limit of a case on the quickest machine, with `--quick` and without.
const CASE_LIMITS: [Duration; 2] = [Duration::from_secs(900), Duration::from_secs(3000)];
/// Name of the file with the reason of a failure.
const REASON: &str = "reason";
/// Exit status of a case that cannot run here, as in `automake`.
const SKIPPED: u8 = 77;

/// Arguments of `interop matrix`.
#[derive(Debug, Args)]
pub(crate) struct MatrixArgs {
    /// Run only cases whose name contains one of these texts
    filters: Vec<String>,
    /// Print the names of the cases and run nothing
    #[arg(long)]
    list: bool,
    /// Run the main cases with the kernel of Debian under QEMU, with smaller trees: slow
    #[arg(long)]
    qemu: bool,
    /// Use smaller trees and shorter runs, and omit long cases
    #[arg(long)]
    quick: bool,
    /// Keep the files of cases that succeed too
    #[arg(long)]
    keep: bool,
    /// Count a case that cannot run here as a success
    #[arg(long)]
    allow_skip: bool,
    /// Number of cases that run concurrently
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// Number of times that a failed case is run again; if it then succeeds, it is reported as flaky
    #[arg(long, default_value_t = 0)]
    retries: u8,
    /// Seconds after which a case has failed (default: 900 with --quick, otherwise 3000; ten times as many with --qemu)
    #[arg(long)]
    limit: Option<u64>,
    /// Directory of the cases' files
    #[arg(long, env = "MILLRACE_INTEROP_CACHE", default_value = "/var/tmp/millrace-interop")]
    cache: PathBuf,
}

/// Arguments of `interop case`.
#[derive(Debug, Args)]
pub(crate) struct CaseArgs {
    name: String,
    dir: PathBuf,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    qemu: bool,
}

enum Verdict {
    Success,
    /// Success after a failure.
    Flaky,
    Failure(String),
    Skip(String),
}

/// The number of cases that did not succeed at once.
#[derive(Debug, Default)]
struct Tally {
    failed: usize,
    flaky: usize,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict) {
        self.failed += usize::from(matches!(verdict, Verdict::Failure(_)));
        self.flaky += usize::from(matches!(verdict, Verdict::Flaky));
        self.skipped += usize::from(matches!(verdict, Verdict::Skip(_)));
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let both = |a: Self, b: Self| Self {
            failed: a.failed + b.failed,
            flaky: a.flaky + b.flaky,
            skipped: a.skipped + b.skipped,
        };
        all.fold(Self::default(), both)
    }
}

/// Runs the selected cases.
///
/// # Errors
/// When no case has such a name, or the machine lacks a tool of the runner.
pub(crate) fn run(args: &MatrixArgs) -> Result<ExitCode> {
    let wanted =
        |c: &Case| args.filters.is_empty() || args.filters.iter().any(|f| c.name.contains(f.as_str()));
    let mut cases: Vec<Case> = cases::of(Machine::selected(args.qemu)).into_iter().filter(wanted).collect();
    cases.retain(|c| !(args.quick && c.long));
    if cases.is_empty() {
        bail!("no case has such a name (some need a run without --quick); --list prints the names");
    }
    if args.list {
        cases.iter().for_each(|c| println!("{}", c.name));
        return Ok(ExitCode::SUCCESS);
    }
    let run = args.cache.join("run").join(std::process::id().to_string());
    let began = Instant::now();
    let count = cases.len();
    let waiting = Mutex::new(cases.into_iter());
    let work = || -> Result<Tally> {
        let mut tally = Tally::default();
        while let Some(case) = next(&waiting) {
            tally.add(&run_with_retries(&case.name, &run, args)?);
        }
        Ok(tally)
    };
    let tally = thread::scope(|s| {
        let workers: Vec<_> = (0..args.jobs).map(|_| s.spawn(work)).collect();
        let ended = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a worker panicked")));
        ended.sum::<Result<Tally>>()
    })?;
    // Removal fails when a case has left files in the directory.
    let _ = fs::remove_dir(&run);
    let Tally { failed, flaky, skipped } = tally;
    println!(
        "{count} cases, {failed} failed, {flaky} flaky, {skipped} skipped, {:.0} s",
        began.elapsed().as_secs_f64()
    );
    let good = failed == 0 && (skipped == 0 || args.allow_skip);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn next(waiting: &Mutex<impl Iterator<Item = Case>>) -> Option<Case> {
    waiting.lock().ok()?.next()
}

/// Runs the case until it does not fail, at most 1 + `retries` times. The files of failed runs are kept.
fn run_with_retries(name: &str, run: &Path, args: &MatrixArgs) -> Result<Verdict> {
    let dir = run.join(name.replace('/', "-"));
    let mut verdict = run_and_report(name, &dir, args)?;
    for retry in 1..=args.retries {
        if !matches!(verdict, Verdict::Failure(_)) {
            break;
        }
        verdict = match run_and_report(name, &dir.with_extension(retry.to_string()), args)? {
            Verdict::Success => Verdict::Flaky,
            other => other,
        };
    }
    Ok(verdict)
}

/// Runs the case once and prints its line.
fn run_and_report(name: &str, dir: &Path, args: &MatrixArgs) -> Result<Verdict> {
    let started = Instant::now();
    let verdict = run_in_sandbox(name, dir, args)?;
    let seconds = started.elapsed().as_secs_f64();
    match &verdict {
        Verdict::Success | Verdict::Flaky => {
            println!("{name:<50} ok       {seconds:5.1} s");
            let report = fs::read_to_string(dir.join(REPORT)).unwrap_or_default();
            report.lines().for_each(|line| println!("    {line}"));
        }
        Verdict::Skip(why) => println!("{name:<50} SKIPPED  {seconds:5.1} s\n    {why}"),
        Verdict::Failure(why) => {
            println!("{name:<50} FAILED   {seconds:5.1} s\n    {why}\n    files: {}", dir.display());
        }
    }
    if !args.keep && !matches!(verdict, Verdict::Failure(_)) {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(verdict)
}

fn run_in_sandbox(name: &str, dir: &Path, options: &MatrixArgs) -> Result<Verdict> {
    fs::create_dir_all(dir)?;
    let path = dir.display().to_string();
    let mut args = vec!["case", name, &path];
    args.extend(options.quick.then_some("--quick"));
    args.extend(options.qemu.then_some("--qemu"));
    let output = fs::File::create(dir.join("output"))?;
    let mut process = sandbox::command(&args)?
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("cannot create a sandbox (needs root)")?;
    let usual = CASE_LIMITS[usize::from(!options.quick)] * Machine::selected(options.qemu).time_factor();
    let limit = options.limit.map_or(usual, Duration::from_secs);
    let deadline = Instant::now() + limit;
    let status = loop {
        match process.try_wait()? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                process.kill()?;
                process.wait()?;
                return Ok(Verdict::Failure(format!("the case did not end within {} s", limit.as_secs())));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let reason =
        fs::read_to_string(dir.join(REASON)).unwrap_or_else(|_| format!("the case ended with {status}"));
    Ok(match status.code() {
        Some(0) => Verdict::Success,
        Some(code) if code == i32::from(SKIPPED) => Verdict::Skip(reason),
        _ => Verdict::Failure(reason),
    })
}

/// Runs one case. This process is the first of the sandbox, and its end ends every process of the sandbox.
///
/// # Errors
/// When there is no such case, or this process is not in a sandbox.
pub(crate) fn run_case(args: &CaseArgs) -> Result<ExitCode> {
    sandbox::prepare()?;
    let case = cases::all().into_iter().find(|c| c.name == args.name);
    let case = case.with_context(|| format!("there is no case {}", args.name))?;
    let Err(e) = execute(&case, args) else { return Ok(ExitCode::SUCCESS) };
    fs::write(args.dir.join(REASON), format!("{e:#}"))?;
    Ok(if e.is::<Skipped>() { ExitCode::from(SKIPPED) } else { ExitCode::FAILURE })
}

fn execute(case: &Case, args: &CaseArgs) -> Result<()> {
    let mut lab = Lab::new(&args.dir, args.quick, Machine::selected(args.qemu))?;
    (case.run)(&mut lab)?;
    lab.must_be_finished()
}
