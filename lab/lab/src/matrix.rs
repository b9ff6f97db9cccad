//! The cross product of designs, registration strategies, threads, records and tests.

use millrace_bench::{
    BenchError, Figure,
    embedded::{EmbeddedServer, SERVER_DEFAULT},
    iozone::{Grid, Seen, Servers},
};
use millrace_client::{Options, Proto, Strategy};
use millrace_read_read::Design;
use millrace_simlab::{Machines, SimulatedIozone, server_strategy};

use crate::settings::server_arguments;

/// The end of a connection that uses the compared strategies; the other end uses its default.
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

/// Whether a matrix is measured or simulated.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // There is one for each command.
pub(crate) enum Place {
    /// Measured on this machine; an embedded server is started for each design and strategy.
    Measured(Servers),
    /// Simulated; the machines are created for each design, strategy and number of threads.
    Simulated {
        /// The machines. The options of their clients are those of the matrix.
        machines: Box<Machines>,
        /// See [`SimulatedIozone::shared_mount`].
        shared_mount: bool,
    },
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    /// Measured or simulated.
    pub(crate) place: Place,
    /// Client options. Settings in the URL take precedence, and so do `designs` and `registrations`.
    pub(crate) options: Options,
    /// Designs to compare; if empty, that of `options` is used.
    pub(crate) designs: Vec<Design>,
    /// Strategies to compare; if empty, each end uses its default.
    pub(crate) registrations: Vec<Strategy>,
    /// The end that uses the strategies.
    pub(crate) ends: Ends,
    /// The other parameters.
    pub(crate) grid: Grid,
}

/// A design and a compared strategy.
type Pair = (Design, Option<Strategy>);

impl Matrix {
    /// The number of figures of one run.
    pub(crate) fn cells(&self) -> usize {
        self.designs.len().max(1) * self.registrations.len().max(1) * self.grid.cells()
    }

    /// Measures all cells, as many times as the grid specifies. Returns the medians in the order of designs,
    /// registrations, threads, records, tests; `each` is called with every figure.
    ///
    /// A cell whose record exceeds a READ or WRITE of its strategy has no values (it is an error if only
    /// tests are compared).
    ///
    /// A server of the Read-Read design does not support [`Strategy::AllPhysical`] and uses its default
    /// instead, as [`Figure::server_registration`] states.
    ///
    /// # Errors
    /// The parameters are inconsistent, or a measurement fails.
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
        let error_of = |why: &str| Err(BenchError::Parameter(why.to_owned()));
        let over_tcp = match &self.place {
            Place::Measured(Servers::Embedded { proto, .. }) => *proto == Proto::Tcp,
            Place::Measured(Servers::Url(_)) => false,
            Place::Simulated { .. } => self.options.proto == Some(Proto::Tcp),
        };
        if several && over_tcp {
            return error_of(
                "designs and registration strategies require RDMA; omit them, or omit --proto tcp",
            );
        }
        let Place::Measured(Servers::Url(url)) = &self.place else { return Ok(()) };
        if self.designs.len() > 1 {
            return error_of(
                "a server supports one design; use --self, which starts a server for each design",
            );
        }
        if self.ends != Ends::Client && self.registrations.len() > 1 {
            return error_of(
                "the strategy of a running server cannot be changed; use --registration-of client, or --self",
            );
        }
        if url.registration.is_some() && self.registrations.len() > 1 {
            return error_of("the URL states a registration strategy; omit it to compare several");
        }
        Ok(())
    }

    /// Every combination of design and strategy.
    fn pairs(&self) -> Vec<Pair> {
        let own = [Design::of(&self.options.rdma_protocol)];
        let designs = if self.designs.is_empty() { &own[..] } else { &self.designs };
        let strategies: Vec<_> = match self.registrations.as_slice() {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        designs.iter().flat_map(|d| strategies.iter().map(|s| (*d, *s))).collect()
    }

    /// The client options of a cell.
    fn options(&self, (design, registration): Pair) -> Options {
        let of_client = registration.filter(|_| self.ends != Ends::Server);
        let options = self.options.clone().registration(of_client.unwrap_or(self.options.registration));
        // The selected protocol may have padding.
        if Design::of(&options.rdma_protocol) == design {
            options
        } else {
            options.rdma_protocol(design.protocol())
        }
    }

    fn measure(&self, servers: &Servers, pair: Pair, seen: &mut Seen<'_>) -> Result<(), BenchError> {
        let server = self.server(servers, pair)?;
        let options = self.options(pair);
        for threads in &self.grid.threads {
            // The embedded server is a child process of this program.
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
            let figures = if self.compares() { what.run_feasible(&tests)? } else { what.run(&tests)? };
            figures.into_iter().try_for_each(&mut *seen)?;
        }
        Ok(())
    }

    /// Whether other parameters than tests are compared.
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
    fn every_design_is_combined_with_every_strategy() {
        let pairs = matrix().pairs();
        assert_eq!((pairs.len(), matrix().cells()), (8, 96));
        assert_eq!(pairs[4], (Design::ReadRead, Some(Strategy::Dynamic)));
        let own = Matrix { designs: Vec::new(), registrations: Vec::new(), ..matrix() };
        assert_eq!((own.pairs(), own.cells()), (vec![(Design::ReadWrite, None)], 12));
    }

    #[test]
    fn invalid_comparisons_are_rejected_before_any_run() {
        let error_of = |m: Matrix| m.run(|_| panic!("unexpected run")).unwrap_err().to_string();
        let tcp = Servers::Embedded { address: Ipv4Addr::LOCALHOST.into(), proto: Proto::Tcp };
        let tcp = Place::Measured(tcp);
        assert!(error_of(Matrix { place: tcp, ..matrix() }).contains("--proto tcp"));
        let url = |text: &str| Place::Measured(Servers::Url(text.parse().unwrap()));
        let plain = Matrix { place: url("nfs://h/x"), ..matrix() };
        assert!(error_of(plain.clone()).contains("one design"));
        let one = Matrix { designs: Vec::new(), ..plain };
        assert!(error_of(one.clone()).contains("--registration-of client"));
        let stated = Matrix { place: url("nfs://h/x?registration=fast"), ends: Ends::Client, ..one };
        assert!(error_of(stated).contains("the URL states"));
    }
}
