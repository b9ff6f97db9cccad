//! The directory workload, in the guest: one operation after the other on a directory.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

/// Listings of one [`Step::List`].
const LISTINGS: usize = 10;

/// Arguments of `interop bench-names`.
#[derive(Debug, Args)]
pub(crate) struct NamesArgs {
    /// Only prepare the directory for the step
    #[arg(long)]
    prepare: bool,
    dir: PathBuf,
    names: usize,
    step: Step,
}

/// One kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Create the files, with O_EXCL.
    Create,
    /// Read the attributes of each file, with empty caches.
    Stat,
    /// List the names several times, with empty caches.
    List,
    /// Remove the files.
    Unlink,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Unlink => "unlink",
        })
    }
}

/// Runs the step and prints the number of names and the seconds.
///
/// # Errors
/// Those of the file system.
pub(crate) fn run(args: &NamesArgs) -> Result<()> {
    if args.prepare {
        return prepare(args);
    }
    let (done, took) = step(args).with_context(|| format!("{} in {}", args.step, args.dir.display()))?;
    println!("{done} {}", took.as_secs_f64());
    Ok(())
}

fn files(args: &NamesArgs) -> Vec<PathBuf> {
    (0..args.names).map(|i| args.dir.join(format!("file-{i:05}"))).collect()
}

/// Makes an empty directory for [`Step::Create`] and a full one for the other steps.
fn prepare(args: &NamesArgs) -> Result<()> {
    if args.step == Step::Create && args.dir.exists() {
        fs::remove_dir_all(&args.dir)?;
    }
    fs::create_dir_all(&args.dir)?;
    if args.step != Step::Create && fs::read_dir(&args.dir)?.count() < args.names {
        files(args).iter().try_for_each(|f| fs::File::create(f).map(drop))?;
    }
    Ok(())
}

fn step(args: &NamesArgs) -> Result<(usize, Duration)> {
    let files = files(args);
    match args.step {
        Step::Create => {
            timed(files.len(), || files.iter().try_for_each(|f| fs::File::create_new(f).map(drop)))
        }
        Step::Stat => {
            drop_caches()?;
            timed(files.len(), || files.iter().try_for_each(|f| f.symlink_metadata().map(drop)))
        }
        Step::List => list(&args.dir),
        Step::Unlink => timed(files.len(), || files.iter().try_for_each(fs::remove_file)),
    }
}

fn timed(count: usize, work: impl FnOnce() -> std::io::Result<()>) -> Result<(usize, Duration)> {
    let began = Instant::now();
    work()?;
    Ok((count, began.elapsed()))
}

fn list(dir: &Path) -> Result<(usize, Duration)> {
    let (mut names, mut took) = (0, Duration::ZERO);
    for _ in 0..LISTINGS {
        drop_caches()?;
        let began = Instant::now();
        names += fs::read_dir(dir)?.count();
        took += began.elapsed();
    }
    Ok((names, took))
}

/// Drops the kernel's caches of pages, dentries and inodes.
fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches")
}
