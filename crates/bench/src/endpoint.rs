//! Address and provider of the peer process.

use std::net::{IpAddr, Ipv4Addr};

use millrace_rdma_providers::{Chosen, ProviderChoice};

use crate::BenchError;

/// The address on which the peer process of a measurement listens, and the RDMA provider to connect with.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// A local address.
    pub address: IpAddr,
    /// The RDMA provider.
    pub provider: ProviderChoice,
}

impl At {
    /// The loopback address, with the provider that needs no device.
    pub const LOOPBACK: Self =
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), provider: ProviderChoice::Iwarp };

    /// Returns the provider to listen with.
    ///
    /// # Errors
    /// The provider cannot be used on this address.
    pub fn choose(&self) -> Result<Chosen, BenchError> {
        self.provider.to_listen(self.address).map_err(|e| BenchError::Parameter(e.to_string()))
    }

    /// The arguments that pass these values to a child process of this program.
    pub(crate) fn arguments(&self) -> [String; 2] {
        [format!("--address={}", self.address), format!("--provider={}", self.provider)]
    }
}
