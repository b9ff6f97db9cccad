//! Measurements of every combination of threads, record size and test.

use std::net::IpAddr;

use millrace_client::{Options, Proto, Url};

use super::{Iozone, Run, Session, Test, gcd};
use crate::{
    At, BenchError, Figure,
    embedded::{EmbeddedServer, SERVER_DEFAULT},
};

/// The server to measure.
#[derive(Debug, Clone)]
pub enum Servers {
    /// A server in a child process.
    Embedded {
        /// The local address that it listens on.
        address: IpAddr,
        /// The transport to it.
        proto: Proto,
    },
    /// A running server: URL of the directory in which files are created.
    Url(Url),
}

/// The parameters of a measurement, of which every combination is measured.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Numbers of threads, each with its own connection and file.
    pub threads: Vec<usize>,
    /// Record sizes in bytes.
    pub records: Vec<usize>,
    /// Tests, in this order.
    pub tests: Vec<Test>,
    /// Size of each file in bytes; rounded down to a multiple of all record sizes.
    pub size: u64,
    /// Number of operations in flight per thread.
    pub outstanding: usize,
    /// Random tests: number of operations per thread; 0: one for each record of the file, at most 100 000.
    pub random_ops: u64,
    /// Number of runs.
    pub runs: usize,
}

/// Callback for figures as they are measured; an error ends the measurement.
pub type Seen<'a> = dyn FnMut(Figure) -> Result<(), BenchError> + 'a;

impl Grid {
    /// The number of figures of one run.
    pub fn cells(&self) -> usize {
        self.threads.len() * self.records.len() * self.tests.len()
    }

    /// The size of each file: a multiple of every record size.
    ///
    /// # Errors
    /// [`Self::size`] is smaller than the least common multiple.
    pub fn file_size(&self) -> Result<u64, BenchError> {
        let too_large =
            || BenchError::Parameter("the records do not all fit into a file; choose a larger --size".into());
        let mut step = 1_u64;
        for record in &self.records {
            let record = (*record as u64).max(1);
            step = (step / gcd(step, record)).checked_mul(record).ok_or_else(too_large)?;
        }
        match self.size / step * step {
            0 => Err(too_large()),
            size => Ok(size),
        }
    }

    /// Every combination of record and test, in the order of the measurements.
    pub fn tests(&self) -> Vec<Run> {
        let runs = |record| self.tests.iter().map(move |test| self.test(*test, record));
        self.records.iter().flat_map(|record| runs(*record)).collect()
    }

    fn test(&self, test: Test, record: usize) -> Run {
        Run { test, record, outstanding: self.outstanding, passes: 1, random_ops: self.random_ops }
    }

    /// Calls `pass` [`Self::runs`] times; each call must report `cells` figures to its argument. `each` is
    /// called with every figure. Returns the median of each cell.
    ///
    /// All cells are measured once before any is measured again, so that other load of the machine affects
    /// all of them.
    ///
    /// # Errors
    /// Those of `pass` and `each`.
    pub fn repeat(
        &self,
        cells: usize,
        mut each: impl FnMut(&Figure) -> Result<(), BenchError>,
        mut pass: impl FnMut(&mut Seen<'_>) -> Result<(), BenchError>,
    ) -> Result<Vec<Figure>, BenchError> {
        let mut runs = Vec::new();
        for _ in 0..self.runs.max(1) {
            let mut figures = Vec::with_capacity(cells);
            pass(&mut |figure: Figure| {
                each(&figure)?;
                figures.push(figure);
                Ok(())
            })?;
            runs.push(figures);
        }
        let cell = |i| runs.iter().filter_map(|r: &Vec<Figure>| r.get(i).cloned()).collect::<Vec<_>>();
        Ok((0..cells).filter_map(|i| Figure::median(&cell(i))).collect())
    }

    /// Starts the server of [`Servers::Embedded`], with capacity for the files of the maximum number of
    /// threads.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start(
        &self,
        servers: &Servers,
        options: &Options,
        registration: millrace_client::Strategy,
        more: &[String],
    ) -> Result<Option<EmbeddedServer>, BenchError> {
        let Servers::Embedded { address, .. } = servers else { return Ok(None) };
        let most = self.threads.iter().copied().max().unwrap_or(1) as u64;
        let at = At { address: *address, provider: options.provider };
        let bytes = self.file_size()?.saturating_mul(most);
        EmbeddedServer::start_with(bytes, &at, Some(registration), more).map(Some)
    }

    /// Connects `threads` threads to the server and creates their files.
    ///
    /// # Errors
    /// Those of [`Session::open`].
    pub fn open(
        &self,
        servers: &Servers,
        server: Option<&EmbeddedServer>,
        options: Options,
        threads: usize,
    ) -> Result<Session, BenchError> {
        let url = match (servers, server) {
            (Servers::Embedded { proto, .. }, Some(server)) => {
                let text = server.url(*proto);
                text.parse().map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?
            }
            (Servers::Embedded { .. }, None) => {
                return Err(BenchError::Peer("the server was not started".into()));
            }
            (Servers::Url(url), _) => url.clone(),
        };
        let session = Session::open(Iozone { url, options, threads, size: self.file_size()? })?;
        let first = self.tests().into_iter().next();
        if first.is_none_or(|run| run.test != Test::Write || !session.carries(&run)) {
            session.prepare()?;
        }
        Ok(session)
    }

    /// Measures every combination of record and test. A record that is larger than one READ or WRITE results
    /// in a figure without values if `compares`, and in an error otherwise.
    ///
    /// # Errors
    /// Those of [`Session::run`] and of `seen`.
    pub fn measure(
        &self,
        session: &Session,
        server: Option<&EmbeddedServer>,
        compares: bool,
        seen: &mut Seen<'_>,
    ) -> Result<(), BenchError> {
        for run in self.tests() {
            let impossible = compares && !session.carries(&run);
            seen(if impossible { session.unmeasured(&run, server) } else { session.run(&run, server)? })?;
        }
        Ok(())
    }
}

/// Measures all cells of `grid`, each [`Grid::runs`] times. Returns the medians in the order of threads,
/// records, tests; `each` is called with every figure. `options` are those of the clients; settings in a URL
/// take precedence.
///
/// # Errors
/// The parameters are inconsistent, or a measurement fails.
pub fn measure(
    servers: &Servers,
    options: &Options,
    registration: Option<millrace_client::Strategy>,
    grid: &Grid,
    each: impl FnMut(&Figure) -> Result<(), BenchError>,
) -> Result<Vec<Figure>, BenchError> {
    let compares = grid.cells() > grid.tests.len();
    grid.file_size()?;
    grid.repeat(grid.cells(), each, |seen| {
        let server = grid.start(servers, options, registration.unwrap_or(SERVER_DEFAULT), &[])?;
        for threads in &grid.threads {
            let session = grid.open(servers, server.as_ref(), options.clone(), *threads)?;
            grid.measure(&session, server.as_ref(), compares, seen)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(records: Vec<usize>) -> Grid {
        Grid {
            threads: vec![1, 2],
            records,
            tests: vec![Test::Write, Test::Read, Test::Reread],
            size: 100_000,
            outstanding: 8,
            random_ops: 0,
            runs: 1,
        }
    }

    #[test]
    fn file_sizes_are_multiples_of_all_records() {
        assert_eq!(grid(vec![4096, 12_288]).file_size().unwrap(), 8 * 12_288);
        assert_eq!(grid(vec![4096, 6144]).file_size().unwrap(), 8 * 12_288);
        for records in [vec![200_000], vec![usize::MAX, usize::MAX - 1]] {
            let e = grid(records).file_size().unwrap_err().to_string();
            assert!(e.contains("--size"), "{e}");
        }
    }

    #[test]
    fn every_record_is_measured_with_every_test() {
        let grid = grid(vec![4096, 8192]);
        let runs: Vec<_> = grid.tests().iter().map(|r| (r.record, r.test)).collect();
        assert_eq!((runs.len(), grid.cells()), (6, 12));
        assert_eq!(runs[3], (8192, Test::Write));
    }
}
