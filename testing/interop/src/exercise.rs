//! The random workload of [`millrace_crashtest`] on a mounted directory, or with the client library on a URL; and
//! a similar one on a disk.

mod disk;

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use millrace_client::{Options, RetryPolicy, TokioRuntime, Url, handles::Client};
use millrace_crashtest::{Library, Posix, Subject, Workload};

const FILES: usize = 4;
const WRITERS: usize = 4;
const FILE_BYTES: u64 = 1 << 20;
const LONGEST_WRITE: u64 = 96 << 10;
/// Time for which the library tries to reach a server that is being restarted.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Writes of the library are cancelled within this time.
const CANCEL: Duration = Duration::from_millis(20);

/// Arguments of `interop exercise`.
#[derive(Debug, Args)]
pub(crate) struct ExerciseArgs {
    /// A directory, or an `nfs://` URL for the client library; a block device, or an `iscsi://` or `iser://` URL
    place: String,
    /// Seconds of the workload
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// End the workload when this file exists, instead of after a time
    #[arg(long, conflicts_with = "seconds")]
    until: Option<PathBuf>,
    /// Seed of the random operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prefix of the files' names
    #[arg(long, default_value = "exercise")]
    prefix: String,
    /// Truncate files of the directory only when all their data is stable
    #[arg(long)]
    truncate_alone: bool,
}

/// When the workload ends.
enum End {
    At(Instant),
    Exists(PathBuf),
}

impl End {
    fn is_reached(&self) -> bool {
        match self {
            Self::At(time) => Instant::now() >= *time,
            Self::Exists(file) => file.exists(),
        }
    }
}

/// Runs the workload and prints its counts.
///
/// # Errors
/// When a call fails, or a read returns data that was never written there.
pub(crate) fn run(args: &ExerciseArgs) -> Result<()> {
    let end = match &args.until {
        Some(file) => End::Exists(file.clone()),
        None => End::At(Instant::now() + Duration::from_secs(args.seconds)),
    };
    let device = Path::new(&args.place).metadata().is_ok_and(|m| m.file_type().is_block_device());
    if device || ["iscsi://", "iser://"].iter().any(|scheme| args.place.starts_with(scheme)) {
        return disk::run(&args.place, args.seed, end);
    }
    let names: Vec<String> = (0..FILES).map(|n| format!("{}-{n}", args.prefix)).collect();
    let workload = Workload::new(FILES, FILE_BYTES, LONGEST_WRITE, args.seed);
    let result = match args.place.parse::<Url>() {
        Ok(url) => library(&workload, &url, names, &end),
        Err(_) => directory(
            &workload,
            &Posix::new(Path::new(&args.place), &names, WRITERS, args.truncate_alone)?,
            &end,
        ),
    };
    result.with_context(|| format!("seed {}, after {:?}", args.seed, workload.counts()))?;
    println!("seed {}: {:?}", args.seed, workload.counts());
    Ok(())
}

/// Runs each writer in a thread.
fn directory(workload: &Workload, subject: &Posix, end: &End) -> Result<()> {
    let ended: Vec<Result<(), String>> = thread::scope(|s| {
        let write = |writer| {
            move || futures_executor::block_on(workload.run_writer(subject, writer, |_| !end.is_reached()))
        };
        let threads: Vec<_> = (0..WRITERS).map(|writer| s.spawn(write(writer))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a writer panicked".into()))).collect()
    });
    futures_executor::block_on(finish(workload, subject, ended))
}

/// Runs each writer in a task.
fn library(workload: &Workload, url: &Url, names: Vec<String>, end: &End) -> Result<()> {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    rt.block_on(async {
        let retry = RetryPolicy { max_elapsed: TIMEOUT, ..RetryPolicy::default() };
        let options = Options::default().retry(retry);
        let client = Client::connect(TokioRuntime::current(), url, options).await?;
        let subject = Arc::new(Library::new(client.clone(), names, WRITERS, CANCEL).await?);
        let writers =
            (0..WRITERS).map(|writer| workload.run_writer(&*subject, writer, |_| !end.is_reached()));
        let ended = futures::future::join_all(writers).await;
        let result = finish(workload, &*subject, ended).await;
        // Without it, the end of the process resets the connection, which the server counts as a fault.
        client.shutdown().await;
        result
    })
}

/// Checks all files, unless a writer has already found a fault.
async fn finish(workload: &Workload, on: &impl Subject, ended: Vec<Result<(), String>>) -> Result<()> {
    ended.into_iter().collect::<Result<(), String>>().map_err(|e| anyhow!(e))?;
    workload.finish(on).await.map_err(|e| anyhow!(e))
}
