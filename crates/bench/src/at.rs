//! Where the other process of a measurement is reached.

use std::net::{IpAddr, Ipv4Addr};

use millrace_rdma_providers::{Chosen, ProviderChoice};
use millrace_rpcrdma::{Design, registration::Strategy};

use crate::BenchError;

/// Where the other process of a measurement listens, and with which RDMA provider it is reached.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// An address of this machine.
    pub address: IpAddr,
    /// The RDMA provider.
    pub provider: ProviderChoice,
    /// The design that a server of RPC-over-RDMA there speaks.
    pub design: Design,
    /// The registration strategy of such a server; `None`: the one that it has by itself.
    pub registration: Option<Strategy>,
    /// Such a server times the stages of one call in so many; 0: of none.
    pub sample_stages: u32,
}

impl At {
    /// The loopback address, and the provider that needs no device.
    pub const LOOPBACK: Self = Self {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        provider: ProviderChoice::Iwarp,
        design: Design::ReadWrite,
        registration: None,
        sample_stages: millrace_oncrpc::stages::DEFAULT_SAMPLE,
    };

    /// The provider to listen with.
    ///
    /// # Errors
    /// When it cannot be used there.
    pub fn choose(&self) -> Result<Chosen, BenchError> {
        self.provider.to_listen(self.address).map_err(|e| BenchError::Parameter(e.to_string()))
    }

    /// The arguments that tell it to this program, started again.
    pub(crate) fn arguments(&self) -> [String; 2] {
        [format!("--address={}", self.address), format!("--provider={}", self.provider)]
    }
}
