//! Where the other process of a measurement is reached.

use std::net::{IpAddr, Ipv4Addr};

use millrace_rdma_providers::{Chosen, ProviderChoice};

use crate::BenchError;

/// Where the other process of a measurement listens, and with which RDMA provider it is reached.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// An address of this machine.
    pub address: IpAddr,
    /// The RDMA provider.
    pub provider: ProviderChoice,
}

impl At {
    /// The loopback address, and the provider that needs no device.
    pub const LOOPBACK: Self =
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), provider: ProviderChoice::Iwarp };

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
