//! The cross product of designs, registration strategies, threads, records and tests.

use std::net::IpAddr;

use millrace_client::{Options, Proto, Url};
use millrace_rpcrdma::{Design, registration::Strategy};

use super::{Iozone, Run, Session, Simulated, Test, common};
use crate::{
    At, BenchError, Figure,
    embedded::{EmbeddedServer, SERVERS_OWN, server_strategy},
    simulated::Machines,
};

/// Which end of a connection uses the strategies that are compared; the other keeps to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ends {
    /// Both, as in TR06 fig. 11, 12, 14 and 15.
    #[default]
    Both,
    /// The client, as in TR06 fig. 13.
    Client,
    /// The server.
    Server,
}

/// The server to measure.
#[derive(Debug, Clone)]
pub enum Servers {
    /// One in a process of its own, started for each design and strategy.
    Embedded {
        /// An address of this machine for it to listen at.
        address: IpAddr,
        /// How to reach it.
        proto: Proto,
    },
    /// One that runs: the directory in which files are made.
    Url(Url),
    /// That of simulated machines, which are started for each design, strategy and number of threads.
    Simulated {
        /// The machines. Their clients' options are those of the matrix.
        machines: Box<Machines>,
        /// As [`Simulated::shared_mount`].
        shared_mount: bool,
    },
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The server.
    pub servers: Servers,
    /// How clients connect. What the URL states wins, and so do `designs` and `registrations`.
    pub options: Options,
    /// The designs; none: that of `options`.
    pub designs: Vec<Design>,
    /// The strategies; none: each end's own.
    pub registrations: Vec<Strategy>,
    /// Which end uses the strategies.
    pub ends: Ends,
    /// Numbers of threads, each with a connection and a file of its own.
    pub threads: Vec<usize>,
    /// Bytes of one operation.
    pub records: Vec<usize>,
    /// The tests, in this order.
    pub tests: Vec<Test>,
    /// Bytes of each file; rounded down to a multiple of all records.
    pub size: u64,
    /// Operations in flight per thread.
    pub outstanding: usize,
    /// Random tests: operations per thread; 0: one for each record of the file, at most 100 000.
    pub random_ops: u64,
    /// How often everything is measured.
    pub runs: usize,
}

impl Matrix {
    /// How many figures a run has.
    pub fn cells(&self) -> usize {
        let (designs, registrations) = (self.designs.len().max(1), self.registrations.len().max(1));
        designs * registrations * self.threads.len() * self.records.len() * self.tests.len()
    }

    /// Measures every cell once, then every cell again, as often as is wanted: the noise of the machine meets all alike.
    /// Gives the medians, in the order of designs, registrations, threads, records, tests; `each` sees every figure as
    /// it comes.
    ///
    /// A cell whose record is larger than one READ or WRITE carries with its strategy has no values (unless nothing is
    /// compared but tests, where that is an error).
    ///
    /// A server of the Read-Read design does not take [`Strategy::AllPhysical`] and keeps to its own there;
    /// [`Figure::server_registration`] says so.
    ///
    /// # Errors
    /// When the parts do not go together, or a measurement fails.
    pub fn run(
        &self,
        mut each: impl FnMut(&Figure) -> Result<(), BenchError>,
    ) -> Result<Vec<Figure>, BenchError> {
        self.check()?;
        let size = self.file_size()?;
        let mut runs = Vec::new();
        for _ in 0..self.runs.max(1) {
            let mut figures = Vec::with_capacity(self.cells());
            for (design, registration) in self.pairs() {
                let server = self.server(design, registration, size)?;
                for threads in &self.threads {
                    let mut seen = |figure: Figure| {
                        each(&figure)?;
                        figures.push(figure);
                        Ok(())
                    };
                    if let Servers::Simulated { machines, shared_mount } = &self.servers {
                        let what = self.simulated(machines, (design, registration), *threads, size);
                        let figures = self.simulate(&Simulated { shared_mount: *shared_mount, ..what })?;
                        figures.into_iter().try_for_each(seen)?;
                        continue;
                    }
                    let session = self.session(server.as_ref(), (design, registration), *threads, size)?;
                    self.measure(&session, server.as_ref(), &mut seen)?;
                }
            }
            runs.push(figures);
        }
        let cell = |i| runs.iter().filter_map(|r: &Vec<Figure>| r.get(i).cloned()).collect::<Vec<_>>();
        Ok((0..self.cells()).filter_map(|i| Figure::median(&cell(i))).collect())
    }

    fn check(&self) -> Result<(), BenchError> {
        let several = self.designs.len() > 1 || self.registrations.len() > 1;
        let refused = |why: &str| Err(BenchError::Parameter(why.to_owned()));
        let over_tcp = match &self.servers {
            Servers::Embedded { proto, .. } => *proto == Proto::Tcp,
            Servers::Simulated { .. } => self.options.proto == Proto::Tcp,
            Servers::Url(_) => false,
        };
        if several && over_tcp {
            return refused(
                "designs and registration strategies are those of RDMA; leave them out, or leave out --proto tcp",
            );
        }
        match &self.servers {
            Servers::Url(_) if self.designs.len() > 1 => refused(
                "a server speaks one design; compare several with --self, which starts servers of each",
            ),
            Servers::Url(_) if self.ends != Ends::Client && self.registrations.len() > 1 => refused(
                "only a server that is started here can change its strategy: say --registration-of client, or --self",
            ),
            Servers::Url(url) if url.registration.is_some() && self.registrations.len() > 1 => {
                refused("the URL states a registration strategy; leave it out to compare several")
            }
            _ => Ok(()),
        }
    }

    /// The size of each file: whole records, whatever their size.
    fn file_size(&self) -> Result<u64, BenchError> {
        let too_large =
            || BenchError::Parameter("the records do not all fit into a file; choose a larger --size".into());
        let mut step = 1_u64;
        for record in &self.records {
            let record = (*record as u64).max(1);
            step = (step / common(step, record)).checked_mul(record).ok_or_else(too_large)?;
        }
        match self.size / step * step {
            0 => Err(too_large()),
            size => Ok(size),
        }
    }

    /// Every design with every strategy.
    fn pairs(&self) -> Vec<(Design, Option<Strategy>)> {
        let own = [self.options.design];
        let designs = if self.designs.is_empty() { &own[..] } else { &self.designs };
        let strategies: Vec<_> = match self.registrations.as_slice() {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        designs.iter().flat_map(|d| strategies.iter().map(|s| (*d, *s))).collect()
    }

    fn server(
        &self,
        design: Design,
        registration: Option<Strategy>,
        size: u64,
    ) -> Result<Option<EmbeddedServer>, BenchError> {
        let Servers::Embedded { address, .. } = self.servers else { return Ok(None) };
        let of_server = registration.filter(|_| self.ends != Ends::Client).unwrap_or(SERVERS_OWN);
        let registration = Some(server_strategy(design, of_server));
        let most = self.threads.iter().copied().max().unwrap_or(1) as u64;
        let (provider, sample_stages) = (self.options.provider, self.options.sample_stages);
        let at = At { address, provider, design, registration, sample_stages };
        EmbeddedServer::start(size.saturating_mul(most), &at).map(Some)
    }

    fn session(
        &self,
        server: Option<&EmbeddedServer>,
        (design, registration): (Design, Option<Strategy>),
        threads: usize,
        size: u64,
    ) -> Result<Session, BenchError> {
        let url = match (&self.servers, server) {
            (Servers::Embedded { proto, .. }, Some(server)) => {
                let text = server.url(*proto);
                text.parse().map_err(|e: millrace_client::Error| BenchError::Client(e.to_string()))?
            }
            (Servers::Embedded { .. }, None) => return Err(BenchError::Peer("there is no server".into())),
            (Servers::Simulated { .. }, _) => return Err(BenchError::Peer("it is simulated".into())),
            (Servers::Url(url), _) => url.clone(),
        };
        let of_client = registration.filter(|_| self.ends != Ends::Server);
        let options = Options {
            design,
            registration: of_client.unwrap_or(self.options.registration),
            // The embedded server is this program again, on this machine, and nobody else's.
            trust_server: self.options.trust_server || server.is_some(),
            ..self.options.clone()
        };
        let session = Session::open(Iozone { url, options, threads, size })?;
        let first =
            self.tests.first().zip(self.records.first()).map(|(test, record)| self.cell(*test, *record));
        if first.is_none_or(|run| run.test != Test::Write || !session.carries(&run)) {
            session.prepare()?;
        }
        Ok(session)
    }

    /// `machines` with this design and strategy, and threads on them.
    fn simulated(
        &self,
        machines: &Machines,
        (design, registration): (Design, Option<Strategy>),
        threads: usize,
        size: u64,
    ) -> Simulated {
        let of_client = registration.filter(|_| self.ends != Ends::Server);
        let of_server = match self.ends {
            Ends::Both => None,
            Ends::Client => registration.map(|_| SERVERS_OWN),
            Ends::Server => registration,
        };
        let options = Options {
            design,
            registration: of_client.unwrap_or(self.options.registration),
            ..self.options.clone()
        };
        let server_registration = of_server.or(machines.server_registration);
        let machines = Machines { options, server_registration, ..machines.clone() };
        Simulated { machines, threads, shared_mount: false, size }
    }

    /// Every record and test.
    fn simulate(&self, what: &Simulated) -> Result<Vec<Figure>, BenchError> {
        let runs =
            self.records.iter().flat_map(|record| self.tests.iter().map(|test| self.cell(*test, *record)));
        let runs: Vec<_> = runs.collect();
        if self.compares() { what.run_those_that_can_be(&runs) } else { what.run(&runs) }
    }

    /// Whether there is more than tests of one kind of cell: then one that cannot be has no values; alone it is a mistake.
    fn compares(&self) -> bool {
        self.cells() > self.tests.len()
    }

    fn cell(&self, test: Test, record: usize) -> Run {
        Run { test, record, outstanding: self.outstanding, passes: 1, random_ops: self.random_ops }
    }

    fn measure(
        &self,
        session: &Session,
        server: Option<&EmbeddedServer>,
        seen: &mut impl FnMut(Figure) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        for record in &self.records {
            for test in &self.tests {
                let run = self.cell(*test, *record);
                let impossible = self.compares() && !session.carries(&run);
                seen(if impossible {
                    session.unmeasured(&run, server)
                } else {
                    session.run(&run, server)?
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn matrix() -> Matrix {
        Matrix {
            servers: Servers::Embedded { address: Ipv4Addr::LOCALHOST.into(), proto: Proto::Rdma },
            options: Options::default(),
            designs: vec![Design::ReadWrite, Design::ReadRead],
            registrations: Strategy::ALL.to_vec(),
            ends: Ends::Both,
            threads: vec![1, 2],
            records: vec![4096, 12_288],
            tests: vec![Test::Write, Test::Read, Test::Reread],
            size: 100_000,
            outstanding: 8,
            random_ops: 0,
            runs: 1,
        }
    }

    #[test]
    fn every_design_meets_every_strategy() {
        let pairs = matrix().pairs();
        assert_eq!((pairs.len(), matrix().cells()), (8, 96));
        assert_eq!(pairs[4], (Design::ReadRead, Some(Strategy::Dynamic)));
        let own = Matrix { designs: Vec::new(), registrations: Vec::new(), ..matrix() };
        assert_eq!((own.pairs(), own.cells()), (vec![(Design::ReadWrite, None)], 12));
    }

    #[test]
    fn files_are_whole_records_of_every_size() {
        assert_eq!(matrix().file_size().unwrap(), 8 * 12_288);
        assert_eq!(Matrix { records: vec![4096, 6144], ..matrix() }.file_size().unwrap(), 8 * 12_288);
        for records in [vec![200_000], vec![usize::MAX, usize::MAX - 1]] {
            let e = Matrix { records, ..matrix() }.file_size().unwrap_err().to_string();
            assert!(e.contains("--size"), "{e}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_refused_before_anything_runs() {
        let refused = |m: Matrix| m.run(|_| panic!("it ran")).unwrap_err().to_string();
        let tcp = Servers::Embedded { address: Ipv4Addr::LOCALHOST.into(), proto: Proto::Tcp };
        assert!(refused(Matrix { servers: tcp, ..matrix() }).contains("--proto tcp"));
        let url = |text: &str| Servers::Url(text.parse().unwrap());
        let plain = Matrix { servers: url("nfs://h/x"), ..matrix() };
        assert!(refused(plain.clone()).contains("one design"));
        let one = Matrix { designs: Vec::new(), ..plain };
        assert!(refused(one.clone()).contains("--registration-of client"));
        let stated = Matrix { servers: url("nfs://h/x?registration=fast"), ends: Ends::Client, ..one };
        assert!(refused(stated).contains("the URL states"));
    }
}
