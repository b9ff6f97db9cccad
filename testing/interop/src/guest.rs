//! A guest, a virtual machine with a Linux kernel, seen from the host.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use crate::{agent::HOST_FILES, machine::Machine, network, program::Output};

/// Options of a guest.
#[derive(Debug, Clone)]
pub(crate) struct GuestOptions {
    /// Megabytes of memory.
    pub(crate) memory: u32,
    /// MTU of the guest's network card, in bytes.
    pub(crate) mtu: u32,
    /// Whether it has tlshd, and therefore perhaps another release of Debian than the host.
    pub(crate) tlshd: bool,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self { memory: 512, mtu: network::LARGE_MTU, tlshd: false }
    }
}

type Waiting = Arc<Mutex<HashMap<String, mpsc::Sender<i32>>>>;

/// A running guest.
pub(crate) struct Guest {
    machine: Machine,
    number: u32,
    dir: PathBuf,
    process: Child,
    control: ChildStdin,
    waiting: Waiting,
    commands: u32,
    /// The kernel log at the time when the guest was killed.
    last_log: Option<String>,
}

/// A command that runs in a guest.
pub(crate) struct Job {
    what: String,
    ended: mpsc::Receiver<i32>,
    status: Option<i32>,
    files: PathBuf,
}

impl Guest {
    /// Boots guest `number` on its tap device and waits for its agent. The console and the output of commands
    /// go to `dir`.
    ///
    /// # Errors
    /// When the guest does not boot. Its console is in `dir`.
    pub(crate) fn boot(machine: Machine, number: u32, options: &GuestOptions, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        network::make_tap(number, options.mtu)?;
        let console = File::options().create(true).append(true).open(dir.join("console"))?;
        let mut process = machine
            .command(number, options, dir)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(console)
            .spawn()
            .context("cannot start the guest's kernel")?;
        let (Some(control), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the guest has no control channel");
        };
        let waiting = Waiting::default();
        let ready = register(&waiting, "ready");
        let table = Arc::clone(&waiting);
        std::thread::spawn(move || dispatch(answers, &table));
        ready
            .recv_timeout(machine.boot_limit())
            .map_err(|_| anyhow!("guest {number} did not boot; see its console"))?;
        let dir = dir.to_owned();
        Ok(Self { machine, number, dir, process, control, waiting, commands: 0, last_log: None })
    }

    /// Starts `script` (bash) in the guest.
    ///
    /// # Errors
    /// When the guest has ended.
    pub(crate) fn spawn(&mut self, script: &str) -> Result<Job> {
        self.commands += 1;
        let id = self.commands.to_string();
        let files = self.dir.join(&id);
        fs::write(files.with_extension("sh"), script)?;
        let ended = register(&self.waiting, &id);
        writeln!(self.control, "{id}").with_context(|| format!("guest {} has ended", self.number))?;
        let what = match script.trim() {
            line if !line.contains('\n') => line.to_owned(),
            _ => files.with_extension("sh").display().to_string(),
        };
        Ok(Job { what, ended, status: None, files })
    }

    /// Runs `script` (bash) in the guest to its end and returns its output, also if it fails.
    ///
    /// # Errors
    /// When the guest has ended, or the script exceeds the time limit of this kind of machine.
    pub(crate) fn run(&mut self, script: &str) -> Result<Output> {
        self.spawn(script)?.wait(self.machine.command_limit())
    }

    /// Runs `script`, which must succeed, and returns its standard output.
    ///
    /// # Errors
    /// As [`run`](Self::run), and with the script's error output when it fails.
    pub(crate) fn must(&mut self, script: &str) -> Result<String> {
        Ok(self.run(script)?.ok()?.stdout)
    }

    /// The time limit on this kind of machine for an operation whose limit is `quick` on the quickest kind.
    pub(crate) fn limit(&self, quick: Duration) -> Duration {
        quick * self.machine.time_factor()
    }

    /// The path in the guest of a file of the host.
    pub(crate) fn host_file(&self, path: &Path) -> String {
        format!("{HOST_FILES}{}", path.display())
    }

    /// The path in the guest of this program.
    ///
    /// # Errors
    /// When the path of this program is unknown.
    pub(crate) fn interop(&self) -> Result<String> {
        Ok(self.host_file(&std::env::current_exe()?))
    }

    /// The directory with the guest's console, commands and output.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The IP address of the guest.
    pub(crate) fn address(&self) -> String {
        network::address(self.number)
    }

    /// Creates the siw device `siw0` on the guest's network card.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn add_siw(&mut self) -> Result<()> {
        self.must("rdma link add siw0 type siw netdev vec0").map(drop)
    }

    /// The kernel log, each line with its level: `<4>[    1.234567] text`.
    ///
    /// # Errors
    /// When the guest has ended and was not killed by [`kill`](Self::kill).
    pub(crate) fn kernel_log(&mut self) -> Result<String> {
        match &self.last_log {
            Some(log) => Ok(log.clone()),
            None => self.must("dmesg --raw"),
        }
    }

    /// Ends the guest at once, like a power failure, and keeps its kernel log.
    ///
    /// # Errors
    /// When the guest has already ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.last_log = Some(self.kernel_log()?);
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// The process of the guest. Programs in the guest run in its descendants.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it was killed.
    pub(crate) fn was_killed(&self) -> bool {
        self.last_log.is_some()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The guest has no disk with data to lose. A failure means that it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Job {
    /// Waits for the end of the guest.
    ///
    /// # Errors
    /// When the command does not end within `limit`, or the guest ends.
    pub(crate) fn wait(self, limit: Duration) -> Result<Output> {
        let status = match self.status {
            Some(status) => status,
            None => self.ended.recv_timeout(limit).map_err(|e| match e {
                mpsc::RecvTimeoutError::Timeout => {
                    anyhow!("`{}` has not ended after {} s", self.what, limit.as_secs())
                }
                mpsc::RecvTimeoutError::Disconnected => anyhow!("the guest ended during `{}`", self.what),
            })?,
        };
        let read = |kind| {
            let bytes = fs::read(self.files.with_extension(kind))?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Output { stdout: read("out")?, stderr: read("err")?, what: self.what, status })
    }

    /// Whether the command still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.ended.try_recv().ok();
        }
        self.status.is_none()
    }
}

fn register(waiting: &Waiting, id: &str) -> mpsc::Receiver<i32> {
    let (sender, ended) = mpsc::channel();
    if let Ok(mut table) = waiting.lock() {
        table.insert(id.to_owned(), sender);
    }
    ended
}

/// Passes the statuses from the agent to the waiting jobs until the guest ends. Then drops all senders, which
/// ends every wait.
fn dispatch(answers: ChildStdout, waiting: &Waiting) {
    for line in BufReader::new(answers).lines().map_while(Result::ok) {
        let Some((id, status)) = line.trim().split_once(' ') else { continue };
        let sender = waiting.lock().ok().and_then(|mut table| table.remove(id));
        if let (Some(sender), Ok(status)) = (sender, status.parse()) {
            // A failure means that the job was dropped.
            let _ = sender.send(status);
        }
    }
    if let Ok(mut table) = waiting.lock() {
        table.clear();
    }
}
