//! The values of the parameters, and their application to simulated machines.

use millrace_bench::BenchError;
use millrace_rdma_sim::{
    Profile,
    profile::{Kernel, TcpModel},
};
use millrace_simlab::{KMEM_MAXBUF, LockedWork, Machines, Raid, Storage};

use super::{PARAMETERS, Parameter, Testbed};

/// A kernel that registers and deregisters one at a time.
const SERIAL: Kernel = Kernel { serial_registrations: true, serial_deregistrations: true, read_copies: 0 };

/// A value for each element of [`PARAMETERS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values([f64; PARAMETERS.len()]);

impl Values {
    /// The smallest value of each parameter.
    pub fn smallest() -> Self {
        Self(std::array::from_fn(|n| PARAMETERS[n].range.0))
    }

    /// The value of the parameter with index `n`; 0 if there is none.
    pub fn get(&self, n: usize) -> f64 {
        self.0.get(n).copied().unwrap_or_default()
    }

    /// The same values, except that the parameter with index `n` is `value`.
    #[must_use]
    pub fn with(mut self, n: usize, value: f64) -> Self {
        if let Some(old) = self.0.get_mut(n) {
            *old = value;
        }
        self
    }

    /// Takes the values of a testbed from `other`.
    pub(crate) fn adopt(&mut self, testbed: Testbed, other: &Self) {
        for (n, _) in of_testbed(testbed) {
            *self = self.with(n, other.get(n));
        }
    }

    fn of(&self, testbed: Testbed, name: &str) -> f64 {
        of_testbed(testbed).find(|(_, p)| p.name == name).map_or(0.0, |(n, _)| self.get(n))
    }

    /// OpenSolaris on Opterons: tmpfs, registrations and TCP. The client copies what it reads with RDMA Read.
    pub(crate) fn open_solaris(&self, machines: &mut Machines) {
        let of = |name| self.of(Testbed::OpenSolaris, name);
        let profile = &mut machines.profile;
        profile.kernel = Kernel { read_copies: 1, ..SERIAL };
        profile.registration.table_ns = of("registration.table_ns").round() as u64;
        self.tcp(Testbed::OpenSolaris, &mut profile.tcp);
        if let Storage::Tmpfs(tmpfs) = &mut machines.storage {
            tmpfs.locked = Some(LockedWork {
                byte_ps: of("tmpfs.byte_ps"),
                fresh_page_ns: of("tmpfs.fresh_page_ns"),
                kept_bytes: KMEM_MAXBUF,
            });
        }
    }

    /// Linux on the same Opterons: their adapter, bus and link, and registrations. Chunks keep their segments.
    pub(crate) fn linux_opterons(&self, machines: &mut Machines) -> Result<(), BenchError> {
        let hardware = Profile::named("sdr-opensolaris").map_err(|e| BenchError::Parameter(e.to_string()))?;
        let profile = &mut machines.profile;
        let segment_bytes = profile.adapter.segment_bytes;
        (profile.adapter, profile.link) = (hardware.adapter, hardware.link);
        profile.adapter.segment_bytes = segment_bytes;
        profile.kernel = SERIAL;
        profile.registration.table_ns =
            self.of(Testbed::LinuxOpterons, "registration.table_ns").round() as u64;
        Ok(())
    }

    /// Linux on Xeons of 3.6 GHz: the page cache.
    pub(crate) fn page_cache(&self, raid: Raid) -> Raid {
        Raid { byte_ps: self.of(Testbed::LinuxXeons, "page_cache.byte_ps"), ..raid }
    }

    /// NFS or iSCSI over the TCP of these hosts: time for each segment at each end.
    pub(crate) fn tcp(&self, testbed: Testbed, tcp: &mut TcpModel) {
        let more = self.of(testbed, "tcp.segment_ns").round() as u64;
        tcp.send_segment_ns += more;
        tcp.receive_segment_ns += more;
    }
}

/// The parameters of a testbed with their indices, in order.
pub(crate) fn of_testbed(testbed: Testbed) -> impl Iterator<Item = (usize, &'static Parameter)> {
    PARAMETERS.iter().enumerate().filter(move |(_, p)| p.testbed == testbed)
}
