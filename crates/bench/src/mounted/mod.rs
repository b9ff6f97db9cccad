//! A mounted export beside the client library without FUSE, and beside FUSE without NFS (a passthrough of a directory
//! in a tmpfs): in turns, so that the machine's noise meets all three alike.
//!
//! The server, the mount and the passthrough each run in a process of their own; what uses them is this one. Before
//! each sequential read and each listing the file systems are mounted anew, so that the kernel has none of their pages
//! and names; random reads go past its pages (`O_DIRECT`). A write includes its fsync, or the library's COMMIT.

mod calls;
mod library;
mod report;
mod subject;

use std::{fmt, path::PathBuf};

use millrace_client::Proto;

use crate::{At, BenchError, Figure, embedded::EmbeddedServer};
use library::Library;
pub use report::Report;
use subject::{Mounted, fuse_is_there, tmpfs};

/// Bytes of a record of the sequential tests.
pub(crate) const RECORD: usize = 1 << 20;
/// Bytes of a random read.
pub(crate) const SMALL: usize = 4096;
/// Random reads at a time.
pub(crate) const JOBS: usize = 8;
/// How often the files are asked for their attributes in one run.
const STAT_PASSES: usize = 10;
/// Room for the small files, which hold nothing: a memory export has at most one for each KiB of its capacity.
const SMALL_FILES: u64 = 512 << 20;
/// The large file, and the directories of small ones.
const LARGE: &str = "large";
const FILES: &str = "files";
const ENTRIES: &str = "entries";

/// What to measure.
#[derive(Debug, Clone)]
pub struct MountBench {
    /// Runs of everything.
    pub runs: usize,
    /// Bytes of the file that is read and written, in records of 1 MiB; what does not fill one is left out.
    pub size: u64,
    /// Random reads of one run.
    pub random_ops: u64,
    /// Files that are asked for their attributes.
    pub files: u32,
    /// Entries of the directory that is listed.
    pub entries: u32,
    /// How the server is reached.
    pub proto: Proto,
    /// Where the server listens.
    pub at: At,
    /// A directory in a tmpfs, in which the passthrough's directory is made.
    pub tmpfs: PathBuf,
    /// The arguments that make this program the passthrough; two directories follow.
    pub passthrough: Vec<&'static str>,
}

/// A thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// READ of a file from start to end.
    Read,
    /// WRITE of a file from start to end.
    Write,
    /// READs at random places, several at a time.
    RandomRead,
    /// stat(2) of files whose attributes are cached; the library, which caches none, does a LOOKUP each.
    Stat,
    /// The names of a directory.
    List,
    /// Its names, and the attributes of each.
    ListAttributes,
}

impl Case {
    /// All, in the order in which they are measured.
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

/// What is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The client library.
    Library,
    /// A FUSE file system that hands each call to a local directory.
    Passthrough,
    /// The mounted export.
    Mount,
}

impl Subject {
    /// All, in the order in which each case is measured.
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

/// One figure of a run.
pub struct Run {
    /// What was measured.
    pub case: Case,
    /// With what.
    pub subject: Subject,
    /// The figure; its workload is the subject, its test the case.
    pub figure: Figure,
    /// The most memory, in bytes, that the process of the file system had until then since it was mounted.
    pub resident: Option<u64>,
}

/// Everything that is measured with, ready.
struct Bench<'b> {
    config: &'b MountBench,
    /// Before the server, which it needs to go away.
    library: Library,
    passthrough: Mounted,
    mount: Mounted,
    server: EmbeddedServer,
}

impl MountBench {
    /// Measures everything. `each` sees every figure as it comes.
    ///
    /// # Errors
    /// When FUSE cannot be used, the tmpfs is none, or anything cannot be started or fails.
    pub fn run(&self, mut each: impl FnMut(&Run)) -> Result<Report, BenchError> {
        fuse_is_there()?;
        let backing = tmpfs(&self.tmpfs)?;
        // The library's large file and the mount's.
        let server =
            EmbeddedServer::start(self.size.saturating_mul(2).saturating_add(SMALL_FILES), &self.at)?;
        let url = server.url(self.proto);
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
            outstanding: if case == Case::RandomRead { JOBS } else { 1 },
            ..figure
        };
        Ok(Run { case, subject, figure, resident })
    }
}

impl Mounted {
    /// Measures one case on the file system; with the most memory that its process had.
    fn measure(
        &mut self,
        case: Case,
        config: &MountBench,
        server: Option<&EmbeddedServer>,
    ) -> Result<(Figure, Option<u64>), BenchError> {
        if matches!(case, Case::Read | Case::List | Case::ListAttributes) {
            self.mount_anew()?;
        }
        let dir = self.dir();
        let begun = self.begin(server);
        let measured = match case {
            Case::Read => calls::read(&dir.join(LARGE), config.size)?,
            Case::Write => calls::write(&dir.join(LARGE), config.size)?,
            Case::RandomRead => calls::random_read(&dir.join(LARGE), config.size, config.random_ops)?,
            Case::Stat => calls::stat(&dir.join(FILES), config.files, STAT_PASSES)?,
            Case::List => calls::list(&dir.join(ENTRIES), config.entries, false)?,
            Case::ListAttributes => calls::list(&dir.join(ENTRIES), config.entries, true)?,
        };
        Ok((begun.figure(&measured), self.resident()))
    }
}

/// The name of the `n`th small file or entry.
fn name(n: u32) -> String {
    format!("file-{n:06}")
}
