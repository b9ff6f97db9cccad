//! `millrace serve` on the host.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{lab, metrics::Metrics, network::HOST};

/// The port of NFS over RDMA.
pub(crate) const RDMA_PORT: u16 = 20049;
/// The port of NFS over TCP, and of MOUNT.
pub(crate) const TCP_PORT: u16 = 2049;
const METRICS_PORT: u16 = 9464;
/// Time limit of a server's stop: its grace period for open calls and some margin.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A server, running or stopped.
pub(crate) struct Server {
    dir: PathBuf,
    config: String,
    descriptors: Option<u32>,
    /// Names of its memory exports.
    memory_exports: Vec<String>,
    process: Option<Child>,
    starts: u32,
    /// Bytes of memory in use before the first call.
    idle_memory: u64,
    /// Fault counters that the case provokes.
    expected: Vec<String>,
}

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerOptions {
    exports: Vec<(String, String)>,
    /// Further lines of its configuration file, before the exports.
    pub(crate) config: String,
    /// Tables of its configuration file, after the exports.
    tables: String,
    descriptors: Option<u32>,
}

impl ServerOptions {
    /// Adds the memory export `name` (`/scratch`) of at most `size` (`256MiB`).
    pub(crate) fn memory(self, name: &str, size: &str) -> Self {
        self.memory_with(name, size, "")
    }

    /// As [`memory`](Self::memory). `policy` contains further keys of the export, one per line.
    pub(crate) fn memory_with(mut self, name: &str, size: &str, policy: &str) -> Self {
        self.exports.push((name.to_owned(), format!("backend = \"memory:{size}\"\n{policy}")));
        self
    }

    /// Adds the directory `dir` as the export `name`. `policy` contains further keys of the export, one per
    /// line.
    pub(crate) fn local(mut self, name: &str, dir: &Path, policy: &str) -> Self {
        self.exports.push((name.to_owned(), format!("backend = \"local:{}\"\n{policy}", dir.display())));
        self
    }

    /// Adds tables to the configuration file.
    pub(crate) fn tables(mut self, text: &str) -> Self {
        self.tables.push_str(text);
        self
    }

    /// Limits the number of open descriptors to `n` (`RLIMIT_NOFILE`, soft and hard).
    pub(crate) fn descriptors(mut self, n: u32) -> Self {
        self.descriptors = Some(n);
        self
    }

    fn config(&self) -> String {
        let mut text = format!(
            "listen_rdma = [\"{HOST}:{RDMA_PORT}\"]\nlisten_tcp = [\"{HOST}:{TCP_PORT}\"]\n\
             metrics = \"{HOST}:{METRICS_PORT}\"\n{}\n[metrics_access]\ninsecure = true\n",
            self.config
        );
        // Clients of the lab run as root, as with the kernel's server (no_root_squash).
        for (name, backend) in &self.exports {
            text.push_str(&format!("[[export]]\nname = \"{name}\"\nsquash = \"none\"\n{backend}\n"));
        }
        text.push_str(&self.tables);
        text
    }
}

impl Server {
    /// Starts a server with its files in `dir`, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) fn start(options: &ServerOptions, dir: &Path) -> Result<Self> {
        let memory = options.exports.iter().filter(|(_, backend)| backend.contains("\"memory:"));
        let mut server = Self {
            dir: dir.to_owned(),
            config: options.config(),
            descriptors: options.descriptors,
            memory_exports: memory.map(|(name, _)| name.clone()).collect(),
            process: None,
            starts: 0,
            idle_memory: 0,
            expected: Vec::new(),
        };
        server.start_again()?;
        Ok(server)
    }

    /// Starts the stopped server again with the same configuration.
    ///
    /// # Errors
    /// When it runs, or does not become ready.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            bail!("the server already runs");
        }
        fs::create_dir_all(&self.dir)?;
        let config = self.dir.join("config.toml");
        fs::write(&config, &self.config)?;
        self.starts += 1;
        let program = lab::millrace_program()?;
        let mut command = match self.descriptors {
            Some(n) => {
                let mut limited = Command::new("prlimit");
                limited.arg(format!("--nofile={n}:{n}")).arg(program);
                limited
            }
            None => Command::new(program),
        };
        let mut process = command
            .args(["--log", "info,millrace_server=debug", "serve", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(self.log_file())?)
            .spawn()
            .context("cannot start millrace")?;
        let mut line = String::new();
        if let Some(out) = process.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        self.process = Some(process);
        if !line.starts_with("ready ") {
            bail!("the server is not ready: {}", fs::read_to_string(self.log_file())?);
        }
        self.idle_memory = self.metrics()?.memory_in_use()?;
        Ok(())
    }

    /// The file of its log since the last start.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.join(format!("log-{}", self.starts))
    }

    /// The counters of the server.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn metrics(&self) -> Result<Metrics> {
        Metrics::scrape(&format!("{HOST}:{METRICS_PORT}"))
    }

    /// Declares a fault counter that this case provokes.
    pub(crate) fn expect_fault(&mut self, counter: &str) {
        self.expected.push(counter.to_owned());
    }

    /// Sends `signal` (`TERM`, `KILL`) and waits for the end.
    ///
    /// # Errors
    /// When the server does not run, does not end, or fails on SIGTERM.
    pub(crate) fn stop(&mut self, signal: &str) -> Result<()> {
        let Some(mut process) = self.process.take() else { bail!("the server does not run") };
        crate::program::must("kill", &["-s", signal, &process.id().to_string()])?;
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            match process.try_wait()? {
                Some(status) if signal == "TERM" && !status.success() => bail!("SIGTERM: {status}"),
                Some(_) => return Ok(()),
                None if Instant::now() > deadline => {
                    process.kill()?;
                    process.wait()?;
                    bail!("the server did not end within {} s of SIG{signal}", STOP_LIMIT.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Checks that a server without clients holds no resources of clients, and has counted no fault that the
    /// case did not declare. Waits at most `limit` for the end of connections.
    ///
    /// # Errors
    /// With the resources and counters that are not zero.
    pub(crate) fn check_idle(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        wait_until(deadline, || Ok(self.metrics()?.connections()? == 0))
            .context("connections are still open after the end of the clients")?;
        for export in &self.memory_exports {
            empty(export).with_context(|| format!("cannot empty the memory export {export}"))?;
        }
        let mut last = 0;
        wait_until(deadline, || {
            let now = self.metrics()?;
            last = now.memory_in_use()?.saturating_sub(now.get("replies_kept_bytes")?);
            Ok(now.connections()? == 0 && last <= self.idle_memory)
        })
        .with_context(|| {
            format!(
                "{last} bytes are in use with no client, file or kept reply, {} at the start",
                self.idle_memory
            )
        })?;
        let now = self.metrics()?;
        let mut problems = now.faults(&self.expected)?;
        if now.get("rdma_regions_exposed")? != 0 {
            problems.push("regions are exposed".into());
        }
        if !problems.is_empty() {
            bail!("the server's counters: {}", problems.join(", "));
        }
        Ok(())
    }

    /// The process ID, or `None` while the server is stopped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // A failure means that the process has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn wait_until(deadline: Instant, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    while !done()? {
        if Instant::now() > deadline {
            bail!("the time limit is over");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes all content of an export, so that any remaining memory use is a leak.
fn empty(export: &str) -> Result<()> {
    let url = |path: &str| format!("nfs://{HOST}:{TCP_PORT}{path}?proto=tcp");
    let names = lab::millrace(&["ls", "--all", &url(export)])?.ok()?.stdout;
    let escaped = |name: &str| name.bytes().map(|b| format!("%{b:02X}")).collect::<String>();
    let urls: Vec<String> = names.lines().map(|n| url(&format!("{export}/{}", escaped(n)))).collect();
    if !urls.is_empty() {
        let mut args = vec!["rm", "-r"];
        args.extend(urls.iter().map(String::as_str));
        lab::millrace(&args)?.ok()?;
    }
    Ok(())
}
