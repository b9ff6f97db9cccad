//! The cost of a *simulated* server's file system. The memory file system executes the calls. This module
//! delays them by the time that they would take on a tmpfs, or on disks behind a cache.

mod raid;
mod timed;
mod tmpfs;

use std::{fmt, str::FromStr, sync::Arc};

use millrace_bench::BenchError;
use millrace_program::units::ByteSize;
use millrace_runtime::{BoxFuture, RuntimeRef};
use millrace_vfs::{FileSystemRef, Handle};
pub use raid::Raid;
use timed::Timed;
pub use tmpfs::{KMEM_MAXBUF, LockedWork, Lookup, Tmpfs};

use crate::Hosts;

/// The file system of a simulated server.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Storage {
    /// No cost: the profile's cost of a message represents the whole call.
    #[default]
    Free,
    /// Memory.
    Tmpfs(Tmpfs),
    /// Disks behind a cache.
    Raid(Raid),
}

/// The buffers of a server's READs and WRITEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffers {
    /// The kernel allocates a buffer for each READ and WRITE.
    Mapped,
    /// Over TCP: the kernel allocates a buffer for each READ. The data of a WRITE is in received segments.
    Segments,
    /// A registration cache keeps the buffers.
    Kept,
}

impl Storage {
    /// Delays the calls of `fs` on the server of `hosts`, which has these buffers.
    ///
    /// # Errors
    /// When a value is invalid, with its name.
    pub(crate) fn wrap(
        &self,
        fs: FileSystemRef,
        hosts: &Hosts,
        rt: &RuntimeRef,
        buffers: Buffers,
    ) -> Result<FileSystemRef, BenchError> {
        let cost: Arc<dyn Cost> = match self {
            Self::Free => return Ok(fs),
            Self::Tmpfs(tmpfs) => Arc::new(tmpfs.open(hosts.clone(), buffers)),
            Self::Raid(raid) => Arc::new(raid.open(hosts.clone(), rt)?),
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

/// Parses `free`, `tmpfs`, `tmpfs-linear` or `raid:BYTES` (bytes of cache memory), which are the machines of
/// the papers.
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
                "unknown storage '{text}'; use free, tmpfs, tmpfs-linear, or raid:MEMORY as in raid:256M"
            )),
        }
    }
}

/// The costs of a file system. A future may be created before the call; its time starts at its first poll.
trait Cost: Send + Sync {
    /// The cost of the lookup of these handles.
    fn look_up(&self, _files: &[Handle]) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The cost of reading `len` bytes of a file from `offset`.
    fn read(&self, file: &Handle, offset: u64, len: u64) -> BoxFuture<'static, ()>;

    /// The cost of writing `len` bytes of a file from `offset`; with `stable`, to stable storage.
    fn write(&self, file: &Handle, offset: u64, len: u64, stable: bool) -> BoxFuture<'static, ()>;

    /// The cost of making all written data of a file stable.
    fn commit(&self, _file: &Handle) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether written data is stable only after a COMMIT.
    fn can_lose(&self) -> bool {
        false
    }

    /// Reports a new object.
    fn created(&self, _file: &Handle) {}

    /// Reports the new size of a file.
    fn resized(&self, _file: &Handle, _size: u64) {}

    /// Reports the removal of an object.
    fn removed(&self, file: &Handle);
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
    fn only_the_cost_of_a_linear_lookup_grows_with_the_number_of_files() {
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
    fn the_disks_limit_readers_of_files_larger_than_memory() {
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
    fn storage_is_parsed_as_it_is_displayed() {
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
