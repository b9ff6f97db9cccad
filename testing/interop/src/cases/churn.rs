//! Clients that come and go for a long time: the server's memory does not grow.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use millrace_bench::resident;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::{Case, kernel_client::mount::EXPORT, load::url};
use crate::{
    lab::{self, Lab},
    server::ServerOptions,
    tree,
};

const CLIENTS: u64 = 50;
/// Seconds that the case takes, unless `MILLRACE_CHURN_SECONDS` has another number.
const SECONDS: u64 = 600;
/// Seconds of a lease: clients that were killed leave their state for longer.
const LEASE: u64 = 10;
/// One command of this number is killed.
const KILLED: u64 = 6;
/// Bytes of network memory that a killed client may keep in its session, on average: 420 were seen. A slot that each command
/// lost would exceed it.
const SESSION: u64 = 2 << 10;
/// What the resident memory of the last third may exceed that of the second third by: a fifth, and this number of bytes.
const GROWTH: u64 = 8 << 20;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::long("load/churn", churn)]
}

/// The commands of one client.
struct Client<'c> {
    number: u64,
    random: SplitMix64,
    source: &'c Path,
    counts: &'c Counts,
    end: Instant,
}

#[derive(Default)]
struct Counts {
    commands: AtomicU64,
    killed: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Client<'_> {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    /// Runs a command, or kills it. Returns whether it was killed.
    fn run(&mut self, args: &[&str]) -> Result<bool> {
        let mut command = Command::new(lab::millrace_program()?);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child: Child = command.spawn().context("cannot start a command")?;
        self.counts.commands.fetch_add(1, Ordering::Relaxed);
        let dies = self.below(KILLED) == 0;
        if dies {
            thread::sleep(Duration::from_millis(self.below(300)));
            child.kill()?;
            self.counts.killed.fetch_add(1, Ordering::Relaxed);
        }
        let out = child.wait_with_output()?;
        if !dies && !out.status.success() {
            let error = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            if let Ok(mut failures) = self.counts.failures.lock() {
                failures.push(format!("{args:?}: {error}"));
            }
        }
        Ok(dies)
    }

    /// Copies a tree to the server, changes it, reads it and removes it, with a new connection for each command.
    fn round(&mut self) -> Result<()> {
        let proto = ["tcp", "rdma"][self.below(2) as usize];
        let version = ["3", "4.1", "4.2"][self.below(3) as usize];
        let at = |name: &str| format!("{}&vers={version}", url(proto, name));
        let (first, second) = (format!("/c{}", self.number), format!("/d{}", self.number));
        let copied = self.run(&["put", "-r", &self.source.display().to_string(), &at(&first)])?;
        self.run(&["ls", "-l", &at("")])?;
        if !copied && !self.run(&["mv", &at(&first), &at(&second)])? {
            self.run(&["df", &at(&second)])?;
        }
        for name in [&first, &second] {
            // Also what a killed command has left.
            while self.run(&["rm", "-rf", &at(name)])? {}
        }
        Ok(())
    }

    fn rounds(mut self) -> Result<()> {
        while Instant::now() < self.end {
            self.round()?;
        }
        Ok(())
    }
}

fn churn(lab: &mut Lab) -> Result<()> {
    let seconds = std::env::var("MILLRACE_CHURN_SECONDS").map_or(Ok(SECONDS), |text| text.parse())?;
    let mut options =
        ServerOptions::default().memory(EXPORT, "1GiB").tables(&format!("[nfs4]\nlease = {LEASE}\n"));
    options.config.push_str("[limits]\nmemory = \"256MiB\"\n");
    let mut server = lab.server(&options)?;
    let source = lab.dir.join("source");
    tree::make(&source, 1, true)?;
    let (counts, began) = (Counts::default(), Instant::now());
    let end = began + Duration::from_secs(seconds);
    let samples = thread::scope(|scope| -> Result<Vec<u64>> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let random = SplitMix64::seed_from_u64(number);
                Client { number, random, source: &source, counts: &counts, end }
            })
            .map(|client| scope.spawn(|| client.rounds()))
            .collect();
        let mut samples = Vec::new();
        while Instant::now() < end {
            thread::sleep(Duration::from_secs(1));
            let pid = server.pid().context("the server does not run")?;
            samples.push(resident::now(pid).context("the server has ended")?);
        }
        for client in clients {
            client.join().map_err(|_| anyhow!("a client has panicked"))??;
        }
        Ok(samples)
    })?;
    let third = |n: usize| samples.iter().skip(n * samples.len() / 3).take(samples.len() / 3).max().copied();
    let [first, second, last] = [0, 1, 2].map(|n| third(n).unwrap_or_default());
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    lab.report(&format!(
        "{CLIENTS} clients, {seconds} s: {} commands, {} killed; resident memory in bytes, maxima of each third: {first}, \
         {second}, {last}",
        count(&counts.commands),
        count(&counts.killed)
    ))?;
    let failures = counts.failures.into_inner().unwrap_or_default();
    ensure!(failures.is_empty(), "{} commands failed, first: {}", failures.len(), failures[0]);
    ensure!(
        last <= second + second / 5 + GROWTH,
        "the server's resident memory has grown from {second} to {last} bytes"
    );
    // Not as that of an idle server: killed clients keep their sessions, with the replies of their slots, for up to a day.
    let now = server.metrics()?;
    let left = now.memory_in_use()?.saturating_sub(now.get("replies_kept_bytes")?);
    lab.report(&format!("{left} bytes of memory in use at the end"))?;
    ensure!(left <= (1 + count(&counts.killed)) * SESSION, "{left} bytes of memory are in use at the end");
    server.stop("TERM")?;
    lab.finish(vec![], &[])
}
