//! The environment of a case: a network, guests, servers and a directory, with the checks after every case.

use std::{
    fmt,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    guest::{Guest, GuestOptions},
    kernel_log,
    machine::Machine,
    network,
    program::{self, Output},
    server::{Server, ServerOptions},
};

/// Name of the file with the report of a case.
pub(crate) const REPORT: &str = "report";
/// Time limit of a `millrace` command.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Time in which servers must release the resources of clients that disconnected.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// The same for clients that were killed: the server probes a silent connection within a minute.
const DEAD_LIMIT: Duration = Duration::from_secs(90);

/// The environment of one case.
pub(crate) struct Lab {
    /// The directory of the case, on disk. Guests see it too ([`Guest::host_file`]).
    pub(crate) dir: PathBuf,
    /// Whether to use smaller trees and shorter runs.
    pub(crate) quick: bool,
    machine: Machine,
    guests: u32,
    finished: bool,
    expected_log: Vec<String>,
}

/// Why a case cannot run here.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

impl Lab {
    /// An environment with only the network.
    ///
    /// # Errors
    /// When the bridge or the directory cannot be created.
    pub(crate) fn new(dir: &Path, quick: bool, machine: Machine) -> Result<Self> {
        fs::create_dir_all(dir)?;
        network::make_bridge()?;
        let quick = quick || machine == Machine::Qemu;
        Ok(Self { dir: dir.to_owned(), quick, machine, guests: 0, finished: false, expected_log: Vec::new() })
    }

    /// Boots another guest. The first has the address 10.77.0.2, the next 10.77.0.3.
    ///
    /// # Errors
    /// When it does not boot.
    pub(crate) fn guest(&mut self, options: &GuestOptions) -> Result<Guest> {
        self.guests += 1;
        let dir = self.dir.join(format!("guest{}", self.guests));
        Guest::boot(self.machine, self.guests, options, &dir)
    }

    /// Starts `millrace serve` at the host's address, 10.77.0.1.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) fn server(&self, options: &ServerOptions) -> Result<Server> {
        Server::start(options, &self.dir.join("server"))
    }

    /// Creates a directory on the host.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Declares a text of a kernel message that this case provokes in a guest.
    pub(crate) fn expect_log(&mut self, text: &str) {
        self.expected_log.push(text.to_owned());
    }

    /// Adds a line to the case's report, which the runner prints if the case succeeds.
    ///
    /// # Errors
    /// When the report cannot be written.
    pub(crate) fn report(&self, line: &str) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(self.dir.join(REPORT))?;
        Ok(writeln!(file, "{line}")?)
    }

    /// Ends the case: unmounts in the guests, checks their kernel logs, and checks the resources and fault
    /// counters of the servers. Guests and servers that the case has dropped before are not checked.
    ///
    /// # Errors
    /// With the faults that were found.
    pub(crate) fn finish(&mut self, guests: Vec<Guest>, servers: &[&Server]) -> Result<()> {
        self.finished = true;
        let limit = if guests.iter().any(Guest::was_killed) { DEAD_LIMIT } else { IDLE_LIMIT };
        for mut guest in guests {
            self.check_guest(&mut guest).with_context(|| format!("guest {}", guest.address()))?;
        }
        for server in servers.iter().filter(|s| s.is_running()) {
            server.check_idle(limit)?;
        }
        Ok(())
    }

    /// Checks that the case has called [`finish`](Self::finish). A case without it would not notice such
    /// faults.
    ///
    /// # Errors
    /// When it has not.
    pub(crate) fn must_be_finished(&self) -> Result<()> {
        ensure!(self.finished, "the case does not end with Lab::finish, which checks logs and counters");
        Ok(())
    }

    fn check_guest(&self, guest: &mut Guest) -> Result<()> {
        if !guest.was_killed() {
            guest.must("umount --all --types nfs,nfs4")?;
        }
        let log = guest.kernel_log()?;
        fs::write(guest.dir().join("kernel-log"), &log)?;
        let lines = kernel_log::unexpected_lines(&log, &self.expected_log);
        if !lines.is_empty() {
            bail!("the kernel log has {} unexpected lines: {}", lines.len(), some(&lines));
        }
        Ok(())
    }
}

/// The first few of `lines`, joined.
fn some(lines: &[&str]) -> String {
    lines.iter().take(5).copied().collect::<Vec<_>>().join(" | ")
}

/// The `millrace` program of the release build.
///
/// # Errors
/// When it does not exist.
pub(crate) fn millrace_program() -> Result<PathBuf> {
    built("release/millrace")
}

/// The example `name` of the debug build, whose libraries the tests share.
///
/// # Errors
/// When it was not built.
pub(crate) fn example(name: &str) -> Result<PathBuf> {
    built(&format!("debug/examples/{name}"))
}

/// The file `path` of Cargo's target directory.
fn built(path: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target =
        program.parent().and_then(Path::parent).context("the directory of this program has no parent")?;
    let path = target.join(path);
    if !path.exists() {
        bail!("{} is missing; use testing/interop/run, which builds it", path.display());
    }
    Ok(path)
}

/// Runs a `millrace` command on the host.
///
/// # Errors
/// When it cannot be started. The output contains a failure of the command.
pub(crate) fn millrace(args: &[&str]) -> Result<Output> {
    program::run(&millrace_program()?.display().to_string(), args, COMMAND_LIMIT)
}
