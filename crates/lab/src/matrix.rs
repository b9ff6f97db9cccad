//! The cross product of designs, registration strategies, threads, records and tests.

use millrace_bench::{
    BenchError, Figure,
    embedded::{EmbeddedServer, SERVER_DEFAULT},
    iozone::{Grid, Seen, Servers},
};
use millrace_client::{Design, Options, Proto, Strategy};
use millrace_simlab::{Machines, SimulatedIozone, server_strategy};

use crate::settings::server_arguments;

/// The end of a connection that uses the compared strategies; the other uses its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ends {
    /// Both, as in TR06 fig. 11, 12, 14 and 15.
    #[default]
    Both,
    /// The client, as in TR06 fig. 13.
    Client,
    /// The server.
    Server,
}

/// Where a matrix is measured or simulated.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// On this machine; an embedded server is started for each design and strategy.
    Measured(Servers),
    /// On simulated machines, which are started for each design, strategy and number of threads.
    Simulated {
        /// The machines. Their clients' options are those of the matrix.
        machines: Box<Machines>,
        /// As [`SimulatedIozone::shared_mount`].
        shared_mount: bool,
    },
}

/// What to measure.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    /// Where.
    pub(crate) place: Place,
    /// How clients connect. What the URL states takes precedence, and so do `designs` and `registrations`.
    pub(crate) options: Options,
    /// The designs; none: that of `options`.
    pub(crate) designs: Vec<Design>,
    /// The strategies; none: the default of each end.
    pub(crate) registrations: Vec<Strategy>,
    /// Which end uses the strategies.
    pub(crate) ends: Ends,
    /// The other parameters.
    pub(crate) grid: Grid,
}

/// A design, and the compared strategy.
type Pair = (Design, Option<Strategy>);

impl Matrix {
    /// The number of figures of one run.
    pub(crate) fn cells(&self) -> usize {
        self.designs.len().max(1) * self.registrations.len().max(1) * self.grid.cells()
    }

    /// Measures every cell, then every cell again, as often as the grid says. Returns the medians, in the order of
    /// designs, registrations, threads, records, tests; `each` sees every figure.
    ///
    /// A cell whose record is larger than one READ or WRITE carries with its strategy has no values (unless nothing is
    /// compared but tests, where that is an error).
    ///
    /// A server of the Read-Read design refuses [`Strategy::AllPhysical`] and uses its default;
    /// [`Figure::server_registration`] says so.
    ///
    /// # Errors
    /// When the parameters do not fit together, or a measurement fails.
    pub(crate) fn run(
        &self,
        each: impl FnMut(&Figure) -> Result<(), BenchError>,
    ) -> Result<Vec<Figure>, BenchError> {
        self.check()?;
        self.grid.file_size()?;
        self.grid.repeat(self.cells(), each, |seen| {
            self.pairs().into_iter().try_for_each(|pair| match &self.place {
                Place::Measured(servers) => self.measure(servers, pair, seen),
                Place::Simulated { machines, shared_mount } => {
                    self.simulate(machines, *shared_mount, pair, seen)
                }
            })
        })
    }

    fn check(&self) -> Result<(), BenchError> {
        let several = self.designs.len() > 1 || self.registrations.len() > 1;
        let refused = |why: &str| Err(BenchError::Parameter(why.to_owned()));
        let over_tcp = match &self.place {
            Place::Measured(Servers::Embedded { proto, .. }) => *proto == Proto::Tcp,
            Place::Measured(Servers::Url(_)) => false,
            Place::Simulated { .. } => self.options.proto == Proto::Tcp,
        };
        if several && over_tcp {
            return refused(
                "designs and registration strategies are those of RDMA; leave them out, or leave out --proto tcp",
            );
        }
        let Place::Measured(Servers::Url(url)) = &self.place else { return Ok(()) };
        if self.designs.len() > 1 {
            return refused(
                "a server speaks one design; compare several with --self, which starts servers of each",
            );
        }
        if self.ends != Ends::Client && self.registrations.len() > 1 {
            return refused(
                "only a server that is started here can change its strategy: say --registration-of client, or --self",
            );
        }
        if url.registration.is_some() && self.registrations.len() > 1 {
            return refused("the URL states a registration strategy; leave it out to compare several");
        }
        Ok(())
    }

    /// Every design with every strategy.
    fn pairs(&self) -> Vec<Pair> {
        let own = [self.options.design];
        let designs = if self.designs.is_empty() { &own[..] } else { &self.designs };
        let strategies: Vec<_> = match self.registrations.as_slice() {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        designs.iter().flat_map(|d| strategies.iter().map(|s| (*d, *s))).collect()
    }

    /// The options of clients of a cell.
    fn options(&self, (design, registration): Pair) -> Options {
        let of_client = registration.filter(|_| self.ends != Ends::Server);
        self.options.clone().design(design).registration(of_client.unwrap_or(self.options.registration))
    }

    fn measure(&self, servers: &Servers, pair: Pair, seen: &mut Seen<'_>) -> Result<(), BenchError> {
        let server = self.server(servers, pair)?;
        let options = self.options(pair);
        for threads in &self.grid.threads {
            // The embedded server is this program again, on this machine.
            let options = options.clone().trust_server(options.trust_server || server.is_some());
            let session = self.grid.open(servers, server.as_ref(), options, *threads)?;
            self.grid.measure(&session, server.as_ref(), self.compares(), seen)?;
        }
        Ok(())
    }

    fn server(
        &self,
        servers: &Servers,
        (design, registration): Pair,
    ) -> Result<Option<EmbeddedServer>, BenchError> {
        let of_server = registration.filter(|_| self.ends != Ends::Client).unwrap_or(SERVER_DEFAULT);
        let more = server_arguments(design, self.options.sample_stages);
        self.grid.start(servers, &self.options, server_strategy(design, of_server), &more)
    }

    fn simulate(
        &self,
        machines: &Machines,
        shared_mount: bool,
        pair: Pair,
        seen: &mut Seen<'_>,
    ) -> Result<(), BenchError> {
        let of_server = match self.ends {
            Ends::Both => None,
            Ends::Client => pair.1.map(|_| SERVER_DEFAULT),
            Ends::Server => pair.1,
        };
        let server_registration = of_server.or(machines.server_registration);
        let machines = Machines { options: self.options(pair), server_registration, ..machines.clone() };
        for threads in &self.grid.threads {
            let (machines, size) = (machines.clone(), self.grid.file_size()?);
            let what = SimulatedIozone { machines, threads: *threads, shared_mount, size };
            let tests = self.grid.tests();
            let figures =
                if self.compares() { what.run_those_that_can_be(&tests)? } else { what.run(&tests)? };
            figures.into_iter().try_for_each(&mut *seen)?;
        }
        Ok(())
    }

    /// Whether more is compared than tests.
    fn compares(&self) -> bool {
        self.cells() > self.grid.tests.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use millrace_bench::iozone::Test;

    use super::*;

    fn matrix() -> Matrix {
        Matrix {
            place: Place::Measured(Servers::Embedded {
                address: Ipv4Addr::LOCALHOST.into(),
                proto: Proto::Rdma,
            }),
            options: Options::default(),
            designs: vec![Design::ReadWrite, Design::ReadRead],
            registrations: Strategy::ALL.to_vec(),
            ends: Ends::Both,
            grid: Grid {
                threads: vec![1, 2],
                records: vec![4096, 12_288],
                tests: vec![Test::Write, Test::Read, Test::Reread],
                size: 100_000,
                outstanding: 8,
                random_ops: 0,
                runs: 1,
            },
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
    fn what_cannot_be_compared_is_refused_before_anything_runs() {
        let refused = |m: Matrix| m.run(|_| panic!("it ran")).unwrap_err().to_string();
        let tcp = Servers::Embedded { address: Ipv4Addr::LOCALHOST.into(), proto: Proto::Tcp };
        let tcp = Place::Measured(tcp);
        assert!(refused(Matrix { place: tcp, ..matrix() }).contains("--proto tcp"));
        let url = |text: &str| Place::Measured(Servers::Url(text.parse().unwrap()));
        let plain = Matrix { place: url("nfs://h/x"), ..matrix() };
        assert!(refused(plain.clone()).contains("one design"));
        let one = Matrix { designs: Vec::new(), ..plain };
        assert!(refused(one.clone()).contains("--registration-of client"));
        let stated = Matrix { place: url("nfs://h/x?registration=fast"), ends: Ends::Client, ..one };
        assert!(refused(stated).contains("the URL states"));
    }
}
