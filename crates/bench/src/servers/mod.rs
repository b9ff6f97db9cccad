//! NFS servers side by side: the same load on each, from the same client.
//!
//! Each run measures each row with all servers, one after the other and beginning with another one, so that other load
//! affects all of them.

mod chart;
mod report;

use millrace_client::{Options, Proto, Url};
use millrace_program::{
    cpu,
    units::{ByteSize, cpu_us_per_op},
};
pub use report::{SideBySide, json};

use crate::{
    At, BenchError, Figure,
    embedded::EmbeddedServer,
    iozone::{Iozone, Run, Session, Test},
    workload::{Metadata, Target, run},
};

/// Name of the server that the comparison starts.
pub const EMBEDDED: &str = "millrace (memory)";
/// Bytes of a large operation, unless a server has a lower maximum.
const LARGE: usize = 1 << 20;
/// Bytes of a small operation.
const SMALL: usize = 4096;
/// The phases of [`Metadata`] that are shown.
const PHASES: [&str; 4] = ["file creation", "file stat", "file removal", "directory creation"];

/// A server to compare.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name in the table; each has another.
    pub name: String,
    /// URL of a directory, in which files and directories are created and removed.
    pub url: Url,
    /// The process whose processor time is measured, if it runs on this host.
    pub pid: Option<u32>,
}

/// Parameters of the comparison.
#[derive(Debug, Clone)]
pub struct Servers {
    /// The servers. Ratios are relative to the first.
    pub places: Vec<Place>,
    /// Whether to start a server with a memory export, which clients reach over TCP, and to compare it too.
    pub embedded: bool,
    /// Client options; settings in a URL take precedence.
    pub options: Options,
    /// Number of runs.
    pub runs: usize,
    /// Size of the file on each server in bytes.
    pub size: u64,
    /// Number of random reads with 16 in flight in one run; with one in flight, a quarter.
    pub random_ops: u64,
    /// Number of files, and of directories, that one run creates and removes.
    pub items: u32,
}

/// What is measured.
#[derive(Clone, Copy)]
enum Measured {
    /// Sequential, with 8 operations in flight.
    Large(Test),
    /// Random READs with this number in flight.
    Random(usize),
    /// Operations on names.
    Names,
}

const ALL: [Measured; 5] = [
    Measured::Large(Test::Rewrite),
    Measured::Large(Test::Read),
    Measured::Random(16),
    Measured::Random(1),
    Measured::Names,
];

/// A server with a connection and a file.
struct Subject<'a> {
    name: String,
    url: Url,
    session: Session,
    pid: Option<u32>,
    embedded: Option<&'a EmbeddedServer>,
}

impl Servers {
    /// Measures all servers. `each` is called with the name of the server and every figure.
    ///
    /// # Errors
    /// A server cannot be started or reached, an operation fails, or `each` fails.
    pub fn run(
        &self,
        mut each: impl FnMut(&str, &Figure) -> Result<(), BenchError>,
    ) -> Result<SideBySide, BenchError> {
        let embedded = self.embedded.then(|| EmbeddedServer::start(self.size, &At::LOOPBACK)).transpose()?;
        let mut subjects = Vec::new();
        for place in &self.places {
            subjects.push(self.open(place.name.clone(), place.url.clone(), place.pid, None)?);
        }
        if let Some(server) = &embedded {
            let url = server.url(Proto::Tcp).parse();
            let url = url.map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?;
            subjects.push(self.open(EMBEDDED.into(), url, None, Some(server))?);
        }
        let large = self.largest(&subjects);
        let mut found = SideBySide::new(subjects.iter().map(|s| s.name.clone()).collect());
        for run in 0..self.runs.max(1) {
            for measured in ALL {
                let all = subjects.iter().enumerate().cycle().skip(run % subjects.len().max(1));
                for (at, subject) in all.take(subjects.len()) {
                    for (row, figure) in self.measure(measured, large, subject)? {
                        each(&subject.name, &figure)?;
                        found.add(&row, at, figure);
                    }
                }
            }
        }
        drop(subjects); // The sessions end before the server.
        Ok(found)
    }

    fn open<'a>(
        &self,
        name: String,
        url: Url,
        pid: Option<u32>,
        embedded: Option<&'a EmbeddedServer>,
    ) -> Result<Subject<'a>, BenchError> {
        let (options, size) = (self.options.clone(), self.size);
        let session = Session::open(Iozone { url: url.clone(), options, threads: 1, size })?;
        session.prepare()?;
        Ok(Subject { name, url, session, pid, embedded })
    }

    /// The size of large operations: the largest power of two up to [`LARGE`] that all servers support.
    fn largest(&self, subjects: &[Subject<'_>]) -> usize {
        let mut record = LARGE;
        let carries = |s: &Subject<'_>, record| {
            [Test::Rewrite, Test::Read].into_iter().all(|test| s.session.carries(&self.large(test, record)))
        };
        while record > SMALL && !subjects.iter().all(|s| carries(s, record)) {
            record /= 2;
        }
        record
    }

    fn large(&self, test: Test, record: usize) -> Run {
        Run { test, record, outstanding: 8, passes: 2, random_ops: 0 }
    }

    /// Measures one server. Returns the figures with the names of their rows.
    fn measure(
        &self,
        measured: Measured,
        large: usize,
        subject: &Subject<'_>,
    ) -> Result<Vec<(String, Figure)>, BenchError> {
        let run = match measured {
            Measured::Large(test) => self.large(test, large),
            Measured::Random(outstanding) => {
                let random_ops = if outstanding == 1 { self.random_ops / 4 } else { self.random_ops }.max(1);
                Run { test: Test::RandomRead, record: SMALL, outstanding, passes: 1, random_ops }
            }
            Measured::Names => return self.names(subject),
        };
        let kind = match run.test {
            Test::RandomRead => "random READ",
            test if test.writes() => "WRITE",
            _ => "READ",
        };
        let row = format!("{kind} {} x {}", ByteSize(run.record as u64).human(), run.outstanding);
        let before = subject.pid.and_then(cpu::of);
        let mut figure = subject.session.run(&run, subject.embedded)?;
        if let Some(used) = subject.pid.and_then(cpu::of).zip(before).map(|(after, before)| after - before) {
            figure.server_cpu_us_per_op = Some(cpu_us_per_op(used, self.operations(&run)));
        }
        Ok(vec![(row, figure)])
    }

    fn operations(&self, run: &Run) -> u64 {
        if run.random_ops > 0 { run.random_ops } else { run.passes * self.size / run.record as u64 }
    }

    fn names(&self, subject: &Subject<'_>) -> Result<Vec<(String, Figure)>, BenchError> {
        let metadata = Metadata { members: 1, items: self.items, branch: 1, depth: 1 };
        let (url, options) = (Box::new(subject.url.clone()), Box::new(self.options.clone()));
        let figures = run(&metadata, &Target::Server { url, options })?;
        let shown = |figure: &Figure| PHASES.contains(&figure.test.as_str());
        Ok(figures.into_iter().filter(shown).map(|figure| (figure.test.clone(), figure)).collect())
    }
}
