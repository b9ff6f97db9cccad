//! The random workload of [`millrace_crashtest`] on a mounted directory, or with the client library on a URL.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use millrace_client::{Options, RetryPolicy, TokioRuntime, Url, nfs3::Client};
use millrace_crashtest::{Library, Posix, Subject, Workload};

const FILES: usize = 4;
const WRITERS: usize = 4;
const FILE_BYTES: u64 = 1 << 20;
const LONGEST_WRITE: u64 = 96 << 10;
/// How long the library tries to reach a server that is restarted.
const PATIENCE: Duration = Duration::from_secs(120);
/// Writes of the library are cancelled within this time.
const CANCEL: Duration = Duration::from_millis(20);

/// Arguments of `interop exercise`.
#[derive(Debug, Args)]
pub(crate) struct ExerciseArgs {
    /// A directory, or an `nfs://` URL, which the client library uses
    place: String,
    /// How long to go on
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What decides the steps
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What the files' names begin with
    #[arg(long, default_value = "exercise")]
    prefix: String,
    /// Truncate files in the directory only when all their data is stable
    #[arg(long)]
    truncate_alone: bool,
}

/// Runs the workload, and prints what it did.
///
/// # Errors
/// What a call failed with, or what was read and was never written there.
pub(crate) fn run(args: &ExerciseArgs) -> Result<()> {
    let names: Vec<String> = (0..FILES).map(|n| format!("{}-{n}", args.prefix)).collect();
    let workload = Workload::new(FILES, FILE_BYTES, LONGEST_WRITE, args.seed);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let played = match args.place.parse::<Url>() {
        Ok(url) => library(&workload, &url, names, end),
        Err(_) => directory(
            &workload,
            &Posix::new(Path::new(&args.place), &names, WRITERS, args.truncate_alone)?,
            end,
        ),
    };
    played.with_context(|| format!("seed {}, after {:?}", args.seed, workload.counts()))?;
    println!("seed {}: {:?}", args.seed, workload.counts());
    Ok(())
}

/// Each writer is a thread.
fn directory(workload: &Workload, subject: &Posix, end: Instant) -> Result<()> {
    let ended: Vec<Result<(), String>> = thread::scope(|s| {
        let play = |writer| {
            move || {
                futures::executor::block_on(workload.run_writer(subject, writer, |_| Instant::now() < end))
            }
        };
        let threads: Vec<_> = (0..WRITERS).map(|writer| s.spawn(play(writer))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a panic".into()))).collect()
    });
    futures::executor::block_on(finish(workload, subject, ended))
}

/// Each writer is a task.
fn library(workload: &Workload, url: &Url, names: Vec<String>, end: Instant) -> Result<()> {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    rt.block_on(async {
        let retry = RetryPolicy { max_elapsed: PATIENCE, ..RetryPolicy::default() };
        let options = Options::default().retry(retry);
        let client = Client::connect(TokioRuntime::current(), url, options).await?;
        let subject = Arc::new(Library::new(client, names, WRITERS, CANCEL).await?);
        let plays =
            (0..WRITERS).map(|writer| workload.run_writer(&*subject, writer, |_| Instant::now() < end));
        let ended = futures::future::join_all(plays).await;
        finish(workload, &*subject, ended).await
    })
}

/// Checks all files, if no writer has found a fault.
async fn finish(workload: &Workload, on: &impl Subject, ended: Vec<Result<(), String>>) -> Result<()> {
    ended.into_iter().collect::<Result<(), String>>().map_err(|e| anyhow!(e))?;
    workload.finish(on).await.map_err(|e| anyhow!(e))
}
