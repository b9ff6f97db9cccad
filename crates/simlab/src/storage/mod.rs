//! What a *simulated* server's file system costs. The memory file system does the work; this has its calls take the
//! time that they would take on a tmpfs, or on disks behind a cache.

mod raid;
mod timed;
mod tmpfs;

use std::{fmt, str::FromStr, sync::Arc};

use millrace_bench::{BenchError, units::ByteSize};
use millrace_runtime::{BoxFuture, RuntimeRef};
use millrace_vfs::{FileSystemRef, Handle};

use crate::Hosts;
pub use raid::Raid;
use timed::Timed;
pub use tmpfs::{Lookup, Tmpfs};

/// The file system of a simulated server.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Storage {
    /// It takes no time: the profile's cost of a message stands for the whole call.
    #[default]
    Free,
    /// Memory.
    Tmpfs(Tmpfs),
    /// Disks behind a cache.
    Raid(Raid),
}

impl Storage {
    /// Has the calls of `fs` take time on the server of `hosts`.
    ///
    /// # Errors
    /// When it cannot be: the value is named.
    pub(crate) fn wrap(
        &self,
        fs: FileSystemRef,
        hosts: &Hosts,
        rt: &RuntimeRef,
    ) -> Result<FileSystemRef, BenchError> {
        let cost: Arc<dyn Cost> = match self {
            Self::Free => return Ok(fs),
            Self::Tmpfs(tmpfs) => Arc::new(tmpfs.open(hosts.clone())),
            Self::Raid(raid) => Arc::new(raid.open(rt)?),
        };
        Ok(Arc::new(Timed::new(fs, cost)))
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("free"),
            Self::Tmpfs(Tmpfs { lookup: Lookup::Hashed, .. }) => f.write_str("tmpfs"),
            Self::Tmpfs(Tmpfs { lookup: Lookup::Linear, .. }) => f.write_str("tmpfs-linear"),
            Self::Raid(raid) => write!(f, "raid:{}", raid.memory),
        }
    }
}

/// `free`, `tmpfs`, `tmpfs-linear`, `raid:BYTES` (of memory before it): the machines of the papers.
impl FromStr for Storage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("raid:")) {
            ("free", _) => Ok(Self::Free),
            ("tmpfs", _) => Ok(Self::Tmpfs(Tmpfs::opensolaris(Lookup::Hashed))),
            ("tmpfs-linear", _) => Ok(Self::Tmpfs(Tmpfs::opensolaris(Lookup::Linear))),
            (_, Some(memory)) => {
                let memory: ByteSize =
                    memory.parse().map_err(|e: millrace_buffer::InvalidByteSize| e.to_string())?;
                let raid = Raid::eight_disks(memory.0);
                raid.check().map_err(|e| e.to_string())?;
                Ok(Self::Raid(raid))
            }
            _ => Err(format!(
                "'{text}' is not a storage; write free, tmpfs, tmpfs-linear, or raid:MEMORY as in raid:256M"
            )),
        }
    }
}

/// What takes time in a file system. A future may be made before its call is, and begins when it is first polled.
trait Cost: Send + Sync {
    /// These handles are looked up.
    fn look_up(&self, _files: &[Handle]) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// `len` bytes of a file from `offset` are read.
    fn read(&self, file: &Handle, offset: u64, len: u64) -> BoxFuture<'static, ()>;

    /// `len` bytes of a file from `offset` are written; if `stable`, to where they are never lost.
    fn write(&self, file: &Handle, offset: u64, len: u64, stable: bool) -> BoxFuture<'static, ()>;

    /// What was written of a file becomes stable.
    fn commit(&self, _file: &Handle) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether data is stable only when it was committed.
    fn can_lose(&self) -> bool {
        false
    }

    /// There is a new object.
    fn made(&self, _file: &Handle) {}

    /// A file has this size from now on.
    fn cut(&self, _file: &Handle, _size: u64) {}

    /// An object is there no more.
    fn gone(&self, file: &Handle);
}

#[cfg(test)]
mod tests {
    use millrace_bench::{
        Figure,
        iozone::{Run, Test},
    };
    use millrace_rdma_sim::Profile;
    use millrace_workloads::{Sources, Untar};

    use super::*;
    use crate::{Machines, SimulatedIozone, simulate};

    fn machines(storage: &str) -> Machines {
        let profile = Profile::named("sdr-opensolaris").unwrap();
        Machines { storage: storage.parse().unwrap(), ..Machines::new(profile) }
    }

    fn rate(figures: &[Figure], test: &str) -> f64 {
        figures.iter().find(|f| f.test == test).and_then(|f| f.ops_per_s).unwrap()
    }

    #[test]
    fn a_linear_look_up_costs_more_the_more_files_there_are_and_a_hash_does_not() {
        let untar = |storage, files| {
            let sources = Sources { files, seed: 1 };
            rate(&simulate(&Untar { sources }, &machines(storage)).unwrap(), "untar")
        };
        let (few, many) = (untar("tmpfs", 100), untar("tmpfs", 1600));
        assert!((0.9..1.1).contains(&(many / few)), "{few} {many}");
        let (few, many) = (untar("tmpfs-linear", 100), untar("tmpfs-linear", 1600));
        assert!(many < 0.8 * few, "{few} {many}");
    }

    #[test]
    fn readers_are_as_fast_as_the_disks_when_their_files_do_not_fit_into_memory() {
        let read = |storage| {
            let run = |test| Run { test, record: 256 << 10, outstanding: 1, passes: 1, random_ops: 0 };
            let (machines, size) = (machines(storage), 8 << 20);
            let what = SimulatedIozone { machines, threads: 2, shared_mount: false, size };
            what.run(&[Test::Write, Test::Read].map(run)).unwrap()[1].mb_per_s.unwrap()
        };
        let (fits, does_not, free) = (read("raid:32M"), read("raid:8M"), read("free"));
        // Eight disks of 30 MB/s.
        assert!(does_not < 240.0, "{does_not}");
        assert!((0.99..1.01).contains(&(fits / free)), "{fits} {free}");
        assert!(fits > 240.0, "{fits}");
    }

    #[test]
    fn storage_is_read_as_it_is_written() {
        for text in ["free", "tmpfs", "tmpfs-linear", "raid:268435456"] {
            assert_eq!(text.parse::<Storage>().unwrap().to_string(), text);
        }
        assert_eq!("raid:256M".parse::<Storage>().unwrap(), Storage::Raid(Raid::eight_disks(256 << 20)));
        for text in ["", "disk", "raid", "raid:", "raid:x"] {
            assert!(text.parse::<Storage>().is_err(), "{text}");
        }
        assert!("raid:1".parse::<Storage>().unwrap_err().contains("raid.memory"));
    }
}
