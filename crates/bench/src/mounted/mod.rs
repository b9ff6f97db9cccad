//! Comparison of a mounted export with the client library without FUSE, and with FUSE without NFS
//! (passthrough of a directory in a tmpfs). The runs are interleaved, so that other load affects all of them.
//!
//! The server, the mount and the passthrough each run in a separate process; this process accesses the file
//! systems. They are remounted before each sequential read and each listing, so that the kernel caches no
//! pages and names of them; random reads bypass the page cache (`O_DIRECT`). A write includes the fsync, or
//! the library's COMMIT.

mod calls;
mod library;
pub mod passthrough;
mod report;
mod subject;

use std::{fmt, path::PathBuf};

use millrace_client::Proto;

use crate::{At, BenchError, Figure, VERSION, embedded::EmbeddedServer, no_halt};
use library::Library;
pub use report::Report;
use subject::{Mounted, check_fuse, tmpfs};

/// Record size of the sequential tests in bytes.
pub(crate) const RECORD: usize = 1 << 20;
/// Size of a random read in bytes.
pub(crate) const SMALL: usize = 4096;
/// Number of concurrent random reads.
pub(crate) const JOBS: usize = 8;
/// Number of passes over the files of the stat test in one run.
const STAT_PASSES: usize = 10;
/// Capacity for the small, empty files: a memory export holds at most one file per KiB of its capacity.
const SMALL_FILES: u64 = 512 << 20;
/// Names of the large file and of the directories of small files.
const LARGE: &str = "large";
const FILES: &str = "files";
const ENTRIES: &str = "entries";

/// Parameters of the comparison.
#[derive(Debug, Clone)]
pub struct MountBench {
    /// Number of runs.
    pub runs: usize,
    /// Size of the large file in bytes, accessed in records of 1 MiB; an incomplete last record is omitted.
    pub size: u64,
    /// Number of random reads in one run.
    pub random_ops: u64,
    /// Number of files of the stat test.
    pub files: u32,
    /// Number of entries of the listed directory.
    pub entries: u32,
    /// Transport to the server.
    pub proto: Proto,
    /// Address and provider of the server.
    pub at: At,
    /// A directory in a tmpfs, in which the directory of the passthrough is created.
    pub tmpfs: PathBuf,
    /// Arguments with which this program runs as the passthrough, to be followed by two directories.
    pub passthrough: Vec<&'static str>,
}

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Sequential READ of a file.
    Read,
    /// Sequential WRITE of a file.
    Write,
    /// Concurrent READs at random offsets.
    RandomRead,
    /// stat(2) of files with cached attributes; the library, which has no attribute cache, does a LOOKUP for
    /// each.
    Stat,
    /// Listing of the names in a directory.
    List,
    /// Listing of the names with their attributes.
    ListAttributes,
}

impl Case {
    /// All tests, in the order of the measurements.
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Read, Self::RandomRead, Self::Stat, Self::List, Self::ListAttributes];

    fn record(self) -> usize {
        match self {
            Self::Read | Self::Write => RECORD,
            Self::RandomRead => SMALL,
            _ => 0,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandomRead => "random-read",
            Self::Stat => "stat",
            Self::List => "list",
            Self::ListAttributes => "list-attributes",
        })
    }
}

/// A subject of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The client library.
    Library,
    /// A FUSE file system that forwards each call to a local directory.
    Passthrough,
    /// The mounted export.
    Mount,
}

impl Subject {
    /// All subjects, in the order of the measurements of each test.
    pub const ALL: [Self; 3] = [Self::Library, Self::Passthrough, Self::Mount];
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Library => "library",
            Self::Passthrough => "passthrough",
            Self::Mount => "mount",
        })
    }
}

/// Result of one test of one subject.
pub struct Run {
    /// The test.
    pub case: Case,
    /// The subject.
    pub subject: Subject,
    /// The figure; its workload is the subject, its test the case.
    pub figure: Figure,
    /// Peak resident memory of the file system's process since it was mounted, in bytes.
    pub resident: Option<u64>,
}

/// The subjects, ready to be measured.
struct Bench<'b> {
    config: &'b MountBench,
    /// Dropped before the server, which it needs to remove its files.
    library: Library,
    passthrough: Mounted,
    mount: Mounted,
    server: EmbeddedServer,
}

impl MountBench {
    /// Measures all tests of all subjects. `each` is called with every result.
    ///
    /// # Errors
    /// FUSE is not available, [`Self::tmpfs`] is not in a tmpfs, or a process or a test fails.
    pub fn run(&self, mut each: impl FnMut(&Run)) -> Result<Report, BenchError> {
        check_fuse()?;
        let backing = tmpfs(&self.tmpfs)?;
        // The export has room for the large files of the library and of the mount.
        let server =
            EmbeddedServer::start(self.size.saturating_mul(2).saturating_add(SMALL_FILES), &self.at)?;
        let url = format!("{}&vers={VERSION}", server.url(self.proto));
        let library = Library::open(&url, self)?;
        library.fill(self)?;
        calls::fill(backing.path(), self)?;
        let provider = self.at.provider.to_string();
        let mount = ["mount", &url, "--provider", &provider, "--log", "error"].map(str::to_owned);
        let passthrough = self.passthrough.iter().map(|a| (*a).to_owned());
        let passthrough = passthrough.chain([backing.path().display().to_string()]);
        let mut bench = Bench {
            config: self,
            library,
            passthrough: Mounted::new(passthrough, Some(backing))?,
            mount: Mounted::new(mount, None)?,
            server,
        };
        let mut runs = Vec::new();
        for _ in 0..self.runs.max(1) {
            for case in Case::ALL {
                for subject in Subject::ALL {
                    let run = bench.measure(case, subject)?;
                    each(&run);
                    runs.push(run);
                }
            }
        }
        Ok(Report { config: self.clone(), runs })
    }
}

impl Bench<'_> {
    fn measure(&mut self, case: Case, subject: Subject) -> Result<Run, BenchError> {
        let (figure, resident) = match subject {
            Subject::Library => (self.library.measure(case, self.config, &self.server)?, None),
            Subject::Passthrough => self.passthrough.measure(case, self.config, None)?,
            Subject::Mount => self.mount.measure(case, self.config, Some(&self.server))?,
        };
        let over_network = subject != Subject::Passthrough;
        let figure = Figure {
            workload: subject.to_string(),
            test: case.to_string(),
            proto: if over_network { self.config.proto.to_string() } else { "local".into() },
            record: case.record() as u64,
            threads: 1,
            no_halt: Some(no_halt::held()),
            outstanding: if case == Case::RandomRead { JOBS } else { 1 },
            ..figure
        };
        Ok(Run { case, subject, figure, resident })
    }
}

impl Mounted {
    /// Measures one test on the file system. Also returns the peak memory of its process.
    fn measure(
        &mut self,
        case: Case,
        config: &MountBench,
        server: Option<&EmbeddedServer>,
    ) -> Result<(Figure, Option<u64>), BenchError> {
        if matches!(case, Case::Read | Case::List | Case::ListAttributes) {
            self.remount()?;
        }
        let dir = self.dir();
        let started = self.begin(server);
        let measured = match case {
            Case::Read => calls::read(&dir.join(LARGE), config.size)?,
            Case::Write => calls::write(&dir.join(LARGE), config.size)?,
            Case::RandomRead => calls::random_read(&dir.join(LARGE), config.size, config.random_ops)?,
            Case::Stat => calls::stat(&dir.join(FILES), config.files, STAT_PASSES)?,
            Case::List => calls::list(&dir.join(ENTRIES), config.entries, false)?,
            Case::ListAttributes => calls::list(&dir.join(ENTRIES), config.entries, true)?,
        };
        Ok((started.figure(&measured), self.resident()))
    }
}

/// Name of the `n`th small file or entry.
fn name(n: u32) -> String {
    format!("file-{n:06}")
}
