//! File systems in processes of their own, mounted.

use std::{fs, path::Path, time::Duration};

use tempfile::TempDir;

use super::calls::Measured;
use crate::{
    BenchError, Figure,
    child::Peer,
    cpu,
    embedded::EmbeddedServer,
    units::{cpu_s_per_gb, mb_per_s},
};

/// The type of a tmpfs in statfs(2), `TMPFS_MAGIC`.
const TMPFS: u64 = 0x0102_1994;
/// How long a file system may take to end by itself once it is unmounted.
const ENDING: Duration = Duration::from_secs(5);

/// Says why FUSE cannot be used, if it cannot.
pub(super) fn fuse_is_there() -> Result<(), BenchError> {
    let open = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    open.map(drop).map_err(|e| {
        BenchError::Parameter(format!(
            "a mount cannot be measured without FUSE: /dev/fuse cannot be opened ({e}); modprobe fuse, or give the \
             container --device /dev/fuse"
        ))
    })
}

/// A new directory in `dir`, which must be in a tmpfs.
pub(super) fn tmpfs(dir: &Path) -> Result<TempDir, BenchError> {
    let refuse = |why: String| {
        BenchError::Parameter(format!("{}: {why}; name a directory in a tmpfs with --tmpfs", dir.display()))
    };
    let stat = rustix::fs::statfs(dir).map_err(|e| refuse(e.to_string()))?;
    if stat.f_type as u64 != TMPFS {
        return Err(refuse("it is not in a tmpfs".into()));
    }
    temporary().tempdir_in(dir).map_err(|e| refuse(e.to_string()))
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut b = tempfile::Builder::new();
    b.prefix("millrace-bench-");
    b
}

/// A file system that a process of its own serves; dropping it takes it away.
pub(super) struct Mounted {
    arguments: Vec<String>,
    process: Option<Peer>,
    dir: TempDir,
    /// What it shows, removed with it.
    _backing: Option<TempDir>,
}

impl Mounted {
    /// Mounts what this program, started again with `arguments` and a directory, serves.
    pub(super) fn new(
        arguments: impl IntoIterator<Item = String>,
        backing: Option<TempDir>,
    ) -> Result<Self, BenchError> {
        let dir = temporary().tempdir().map_err(BenchError::io("make a directory to mount on"))?;
        let mut mounted =
            Self { arguments: arguments.into_iter().collect(), process: None, dir, _backing: backing };
        mounted.mount_anew()?;
        Ok(mounted)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the process, and starts another: the kernel and the file system remember nothing.
    pub(super) fn mount_anew(&mut self) -> Result<(), BenchError> {
        self.end();
        let arguments = self.arguments.iter().map(AsRef::as_ref).chain([self.dir.path().as_os_str()]);
        let mut process = Peer::start(arguments)?;
        let ready = process.line();
        self.process = Some(process);
        ready.map(drop)
    }

    /// What was used until now by all that takes part.
    pub(super) fn begin<'s>(&'s self, server: Option<&'s EmbeddedServer>) -> Begun<'s> {
        Begun { mounted: self, server, client: self.cpu(), of_server: server.and_then(EmbeddedServer::cpu) }
    }

    /// The processor time of this process and of the file system's.
    fn cpu(&self) -> Duration {
        cpu::own() + self.process.as_ref().and_then(Peer::cpu).unwrap_or_default()
    }

    /// The most memory that the process had until now, bytes.
    pub(super) fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.as_ref()?.pid())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It ends by itself when the kernel says that the mount is gone. One that has ended already has said why.
            drop(millrace_fuse::detach(self.dir.path()));
            process.end_within(ENDING);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.end();
    }
}

/// A measurement that has begun.
pub(super) struct Begun<'s> {
    mounted: &'s Mounted,
    server: Option<&'s EmbeddedServer>,
    client: Duration,
    of_server: Option<Duration>,
}

impl Begun<'_> {
    /// What came of it.
    pub(super) fn figure(&self, m: &Measured) -> Figure {
        let client = self.mounted.cpu().saturating_sub(self.client);
        let server = self.server.and_then(EmbeddedServer::cpu).zip(self.of_server).map(|(now, b)| now - b);
        let percent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / m.took.as_secs_f64().max(1e-9);
        let of_bytes = |cpu| (m.bytes > 0).then(|| cpu_s_per_gb(cpu, m.bytes));
        Figure {
            mb_per_s: (m.bytes > 0).then(|| mb_per_s(m.bytes, m.took)),
            ops_per_s: Some(m.operations as f64 / m.took.as_secs_f64().max(1e-9)),
            client_cpu_s_per_gb: of_bytes(client),
            server_cpu_s_per_gb: server.and_then(of_bytes),
            client_cpu_percent: Some(percent(client)),
            server_cpu_percent: server.map(percent),
            ..Figure::default()
        }
    }
}
