//! What experiments have in common: IOzone on simulated machines.

use bench::{
    BenchError, Figure,
    iozone::{Run, Simulated, Test},
    simulated::Machines,
};
use client::{Design, Options, Strategy};
use rdma::provider::sim::Profile;

use crate::Setting;

/// The profile of a name.
pub(crate) fn profile(name: &str) -> Result<Profile, BenchError> {
    Profile::named(name).map_err(|e| BenchError::Parameter(e.to_string()))
}

/// IOzone on simulated machines: one client host, all threads with one record in flight.
#[derive(Clone)]
pub(crate) struct Iozone {
    /// The machines.
    pub(crate) machines: Machines,
    /// Whether threads share one mount; else each has its own.
    pub(crate) shared_mount: bool,
    /// Bytes of a record.
    pub(crate) record: usize,
    /// Records in flight for each thread.
    pub(crate) outstanding: usize,
    /// Records of each file.
    pub(crate) records: usize,
}

impl Iozone {
    /// Threads with mounts of their own, records of 128 KiB, registration dynamic at both ends, on a profile.
    pub(crate) fn new(profile_name: &str, setting: Setting) -> Result<Self, BenchError> {
        let options = Options { registration: Strategy::Dynamic, ..Options::default() };
        let machines = Machines { seed: setting.seed, options, ..Machines::new(profile(profile_name)?) };
        let records = if setting.small { 8 } else { 64 };
        Ok(Self { machines, shared_mount: false, record: 128 << 10, outstanding: 1, records })
    }

    /// With another design.
    pub(crate) fn design(mut self, design: Design) -> Self {
        self.machines.options.design = design;
        self
    }

    /// With other strategies at the client and at the server.
    pub(crate) fn registration(mut self, client: Strategy, server: Strategy) -> Self {
        self.machines.options.registration = client;
        self.machines.server_registration = Some(server);
        self
    }

    /// Writes a file for each thread, reads them, and gives what both did.
    pub(crate) fn run(&self, threads: usize) -> Result<Measured, BenchError> {
        let size = (self.record * self.records) as u64;
        let what =
            Simulated { machines: self.machines.clone(), threads, shared_mount: self.shared_mount, size };
        let one =
            |test| Run { test, record: self.record, outstanding: self.outstanding, passes: 1, random_ops: 0 };
        let figures: [Figure; 2] = what
            .run(&[Test::Write, Test::Read].map(one))?
            .try_into()
            .map_err(|_| BenchError::Client("IOzone gave another number of figures than tests".into()))?;
        let [write, read] = figures;
        Ok(Measured { write, read })
    }
}

/// What IOzone gave.
pub(crate) struct Measured {
    /// Writing new files.
    pub(crate) write: Figure,
    /// Reading them.
    pub(crate) read: Figure,
}

/// A value that a figure must have.
pub(crate) fn value(value: Option<f64>) -> Result<f64, BenchError> {
    value.ok_or_else(|| BenchError::Client("the simulation gave no value".into()))
}

/// The figure of a kind of operation.
pub(crate) fn kind<'a>(figures: &'a [Figure], test: &str) -> Result<&'a Figure, BenchError> {
    let missing = || BenchError::Client(format!("the workload gave no figure of {test}"));
    figures.iter().find(|f| f.test == test).ok_or_else(missing)
}
