//! Common parts of experiments: IOzone on simulated machines.

use millrace_bench::{
    BenchError, Figure,
    iozone::{Run, Test},
};
use millrace_client::{Options, Proto, Strategy};
use millrace_oncrpc::{Stage, stages::StageSums};
use millrace_rdma_sim::Profile;
use millrace_read_read::Design;
use millrace_simlab::{Lookup, Machines, SimulatedIozone, Storage, Tmpfs};

use crate::{Curves, Modification, Setting, calibration::Testbed};

/// The profile of this name.
pub(crate) fn profile(name: &str) -> Result<Profile, BenchError> {
    Profile::named(name).map_err(|e| BenchError::Parameter(e.to_string()))
}

/// The profile of this name, with `miles` miles of cable between two machines.
pub(crate) fn profile_at(name: &str, miles: f64) -> Result<Profile, BenchError> {
    profile(name)?.at_distance(miles).map_err(|e| BenchError::Parameter(e.to_string()))
}

/// Bytes of a READ or WRITE: the maximum of Linux over RDMA at that time (WAN 2008 section 2.3).
pub(crate) const BLOCK: usize = 32 << 10;
/// Number of blocks in flight: the slots of Linux's RPC-over-RDMA.
pub(crate) const SLOTS: usize = 32;

/// A server and a client of a profile, with dynamic registration at both ends and the parameters of the
/// setting. The papers' Solaris and
/// OpenSolaris servers had their files in a tmpfs, which copies; their Linux servers had them in memory.
pub(crate) fn machines(profile_name: &str, setting: Setting) -> Result<Machines, BenchError> {
    let storage = match profile_name {
        "sdr-opensolaris" | "gige-2003" => Storage::Tmpfs(Tmpfs::opensolaris(Lookup::Hashed)),
        _ => Storage::Free,
    };
    let options = Options::default().registration(Strategy::Dynamic);
    let profile = profile(profile_name)?;
    let mut machines = Machines { seed: setting.seed, options, storage, ..Machines::new(profile) };
    if let Some(values) = setting.calibration {
        match profile_name {
            "sdr-opensolaris" => values.open_solaris(&mut machines),
            "gige-2003" => values.tcp(Testbed::Solaris, &mut machines.profile.tcp),
            "ipoib-ud" => values.tcp(Testbed::LinuxXeons, &mut machines.profile.tcp),
            "wan-infinihost" => values.tcp(Testbed::WanDatagram, &mut machines.profile.tcp),
            _ => {}
        }
    }
    Ok(machines)
}

/// IOzone on simulated machines: one client host, whose threads share its mount, as with a kernel.
#[derive(Clone)]
pub(crate) struct Iozone {
    /// The machines.
    pub(crate) machines: Machines,
    /// Bytes of a record.
    pub(crate) record: usize,
    /// Records in flight for each thread.
    pub(crate) outstanding: usize,
    /// Records of each file.
    pub(crate) records: usize,
    /// The modification of the machines before a run.
    pub(crate) modification: Option<Modification>,
}

impl Iozone {
    /// Records of 128 KiB, one in flight for each thread, on [`machines`] of a profile.
    pub(crate) fn new(profile_name: &str, setting: Setting) -> Result<Self, BenchError> {
        let records = if setting.small { 8 } else { 64 };
        Ok(Self {
            machines: machines(profile_name, setting)?,
            record: 128 << 10,
            outstanding: 1,
            records,
            modification: setting.modification,
        })
    }

    /// Sets the design.
    pub(crate) fn design(mut self, design: Design) -> Self {
        self.machines.options.rdma_protocol = design.protocol();
        self
    }

    /// Selects TCP between the same machines.
    pub(crate) fn over_tcp(mut self) -> Self {
        self.machines.options.proto = Some(Proto::Tcp);
        self
    }

    /// Sets the strategies of the client and of the server.
    pub(crate) fn registration(mut self, client: Strategy, server: Strategy) -> Self {
        self.machines.options.registration = client;
        self.machines.server_registration = Some(server);
        self
    }

    /// Writes a file for each thread, reads them, and returns the figures of both tests.
    pub(crate) fn run(&self, threads: usize) -> Result<Measured, BenchError> {
        let size = (self.record * self.records) as u64;
        let mut machines = self.machines.clone();
        if let Some(modification) = self.modification {
            modification.machines(&mut machines);
        }
        let what = SimulatedIozone { machines, threads, shared_mount: true, size };
        let one =
            |test| Run { test, record: self.record, outstanding: self.outstanding, passes: 1, random_ops: 0 };
        let figures: [Figure; 2] =
            what.run(&[Test::Write, Test::Read].map(one))?.try_into().map_err(|_| {
                BenchError::Client(
                    "IOzone returned a number of figures that differs from the number of tests".into(),
                )
            })?;
        let [write, read] = figures;
        Ok(Measured { write, read })
    }
}

/// The results of IOzone.
pub(crate) struct Measured {
    /// Writing new files.
    pub(crate) write: Figure,
    /// Reading them.
    pub(crate) read: Figure,
}

impl Measured {
    /// Adds the rates of READ and WRITE at `x` to a curve each.
    pub(crate) fn put(
        &self,
        curves: &mut Curves,
        read: &'static str,
        write: &'static str,
        x: f64,
    ) -> Result<(), BenchError> {
        curves.put(read, x, value(self.read.mb_per_s)?);
        curves.put(write, x, value(self.write.mb_per_s)?);
        Ok(())
    }
}

/// A value that a figure must have.
pub(crate) fn value(value: Option<f64>) -> Result<f64, BenchError> {
    value.ok_or_else(|| BenchError::Client("the simulation returned no value".into()))
}

/// The figure of a kind of operation.
pub(crate) fn kind<'a>(figures: &'a [Figure], test: &str) -> Result<&'a Figure, BenchError> {
    let missing = || BenchError::Client(format!("the workload returned no figure of {test}"));
    figures.iter().find(|f| f.test == test).ok_or_else(missing)
}

/// The share of a stage in a call's time, in percent.
pub(crate) fn share(sums: &StageSums, stage: Stage, call_us: f64) -> f64 {
    sums.time(stage).as_secs_f64() * 1e6 / sums.calls.max(1) as f64 / call_us * 100.0
}
