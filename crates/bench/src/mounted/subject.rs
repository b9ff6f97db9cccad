//! Mounted file systems in separate processes.

use std::{fs, path::Path, time::Duration};

use millrace_program::{
    cpu,
    units::{cpu_s_per_gb, mb_per_s},
};
use tempfile::TempDir;

use super::calls::Measured;
use crate::{BenchError, Figure, child::Peer, embedded::EmbeddedServer, resident};

/// Type of a tmpfs in statfs(2), `TMPFS_MAGIC`.
const TMPFS: u64 = 0x0102_1994;
/// Time limit for a file system process to end after unmounting.
const ENDING: Duration = Duration::from_secs(5);

/// Returns an error if FUSE is not available.
pub(super) fn check_fuse() -> Result<(), BenchError> {
    let open = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    open.map(drop).map_err(|e| {
        BenchError::Parameter(format!(
            "cannot measure a mount: /dev/fuse cannot be opened ({e}); run modprobe fuse, or start the \
             container with --device /dev/fuse"
        ))
    })
}

/// Creates a directory in `dir`, which must be in a tmpfs.
pub(super) fn tmpfs(dir: &Path) -> Result<TempDir, BenchError> {
    let refuse = |why: String| {
        BenchError::Parameter(format!(
            "{}: {why}; specify a directory in a tmpfs with --tmpfs",
            dir.display()
        ))
    };
    let stat = rustix::fs::statfs(dir).map_err(|e| refuse(e.to_string()))?;
    if stat.f_type as u64 != TMPFS {
        return Err(refuse("not in a tmpfs".into()));
    }
    temporary().tempdir_in(dir).map_err(|e| refuse(e.to_string()))
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut b = tempfile::Builder::new();
    b.prefix("millrace-bench-");
    b
}

/// A mounted file system in a separate process; dropping it unmounts it.
pub(super) struct Mounted {
    arguments: Vec<String>,
    process: Option<Peer>,
    dir: TempDir,
    /// The directory behind a passthrough, removed on drop.
    _backing: Option<TempDir>,
}

impl Mounted {
    /// Mounts the file system that this program serves if started with `arguments` and a directory.
    pub(super) fn new(
        arguments: impl IntoIterator<Item = String>,
        backing: Option<TempDir>,
    ) -> Result<Self, BenchError> {
        let dir = temporary().tempdir().map_err(BenchError::io("create a mount point"))?;
        let mut mounted =
            Self { arguments: arguments.into_iter().collect(), process: None, dir, _backing: backing };
        mounted.remount()?;
        Ok(mounted)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the process and starts another, so that kernel and file system cache nothing.
    pub(super) fn remount(&mut self) -> Result<(), BenchError> {
        self.end();
        let arguments = self.arguments.iter().map(AsRef::as_ref).chain([self.dir.path().as_os_str()]);
        let mut process = Peer::start(arguments)?;
        let ready = process.line();
        self.process = Some(process);
        ready.map(drop)
    }

    /// Starts a measurement of processor time.
    pub(super) fn begin<'s>(&'s self, server: Option<&'s EmbeddedServer>) -> CpuMeasurement<'s> {
        CpuMeasurement {
            mounted: self,
            server,
            client: self.cpu(),
            of_server: server.and_then(EmbeddedServer::cpu),
        }
    }

    /// Processor time of this process and of the file system's process.
    fn cpu(&self) -> Duration {
        cpu::own() + self.process.as_ref().and_then(Peer::cpu).unwrap_or_default()
    }

    /// Peak resident memory of the process so far, in bytes.
    pub(super) fn resident(&self) -> Option<u64> {
        resident::peak(self.process.as_ref()?.pid())
    }

    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process ends when the kernel reports the unmount. One that has ended before has printed its
            // error.
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

/// A measurement in progress.
pub(super) struct CpuMeasurement<'s> {
    mounted: &'s Mounted,
    server: Option<&'s EmbeddedServer>,
    client: Duration,
    of_server: Option<Duration>,
}

impl CpuMeasurement<'_> {
    /// The figure of the measurement.
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
