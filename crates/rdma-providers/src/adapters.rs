//! RDMA devices and the provider that uses them; every function fails in a build without the feature `verbs`.

use std::{net::IpAddr, sync::Arc};

use millrace_rdma::Provider;

use crate::ProviderError;

/// The names of the RDMA devices of this machine, at least one.
#[cfg(feature = "verbs")]
pub(crate) fn device_names() -> Result<Vec<String>, ProviderError> {
    Ok(millrace_rdma_verbs::devices()?.into_iter().map(|d| d.name).collect())
}

/// The name of the RDMA device to which the address `local` belongs.
#[cfg(feature = "verbs")]
pub(crate) fn device_of(local: IpAddr) -> Result<Option<String>, ProviderError> {
    Ok(millrace_rdma_verbs::device_of(local)?)
}

/// The verbs provider.
#[cfg(feature = "verbs")]
pub(crate) fn provider() -> Result<Arc<dyn Provider>, ProviderError> {
    Ok(Arc::new(millrace_rdma_verbs::Verbs::new()?))
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn device_names() -> Result<Vec<String>, ProviderError> {
    Err(ProviderError::NotBuilt("verbs"))
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn device_of(_local: IpAddr) -> Result<Option<String>, ProviderError> {
    Err(ProviderError::NotBuilt("verbs"))
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn provider() -> Result<Arc<dyn Provider>, ProviderError> {
    Err(ProviderError::NotBuilt("verbs"))
}
