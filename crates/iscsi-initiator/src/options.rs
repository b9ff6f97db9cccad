//! Options of block devices.

use std::{fmt, sync::Arc, time::Duration};

use millrace_iscsi::{
    chap::Mutual,
    name::IscsiName,
    negotiation::{DigestPolicy, Settings},
};
use millrace_rdma::Provider;
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::{RuntimeRef, StreamProvider, tokio_rt::TokioRuntime};

/// Options of connections to targets.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The initiator's name. Default: `iqn.2026-01.example.millrace:` with the name of the host.
    pub initiator: IscsiName,
    /// CHAP names and secrets; they replace those of the URL. With those of the target, the target has to authenticate
    /// (mutual CHAP).
    pub chap: Option<Mutual>,
    /// Whether headers and data have CRC32C digests. Default: if the target requires them.
    pub digests: DigestPolicy,
    /// Time limit for an attempt to connect, log in and identify the device. Default: 10 seconds.
    pub connect_timeout: Duration,
    /// Time without the completion of a command of an operation after which the operation fails; reconnects are part of
    /// it. Default: 60 seconds.
    pub timeout: Duration,
    /// After this time without data from the target a NOP-Out requires an answer within the same time. Default: 5
    /// seconds.
    pub ping_interval: Duration,
    /// Maximum number of commands in flight, at least 1. The target may permit fewer. Default: 128.
    pub queue_depth: usize,
    /// Maximum bytes of buffers ([`BlockDevice::buffer`](crate::BlockDevice::buffer)), and with iSER of as many for
    /// messages and for data that is copied. Default: 256 MiB.
    pub memory: usize,
    /// The executor. Default: the present Tokio runtime.
    pub runtime: Option<RuntimeRef>,
    /// The network stack. Default: that of the Tokio runtime.
    pub streams: Option<Arc<dyn StreamProvider>>,
    /// Selects the RDMA provider for `iser://` URLs. Default: automatically.
    pub provider: ProviderChoice,
    /// An RDMA provider of the caller, instead of `provider`. Default: none.
    pub rdma: Option<Arc<dyn Provider>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            initiator: default_initiator(),
            chap: None,
            digests: DigestPolicy::Accept,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            ping_interval: Duration::from_secs(5),
            queue_depth: 128,
            memory: 256 << 20,
            runtime: None,
            streams: None,
            provider: ProviderChoice::Auto,
            rdma: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("initiator", &self.initiator)
            .field("chap", &self.chap)
            .field("digests", &self.digests)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("ping_interval", &self.ping_interval)
            .field("queue_depth", &self.queue_depth)
            .field("memory", &self.memory)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

impl Options {
    pub(crate) fn runtime(&self) -> RuntimeRef {
        self.runtime.clone().unwrap_or_else(TokioRuntime::current)
    }

    /// The parameters that the initiator negotiates.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            header_digest: self.digests,
            data_digest: self.digests,
            initial_r2t: false,
            max_burst: 1 << 20,
            max_outstanding_r2t: 4,
            ..Settings::default()
        }
    }
}

/// The name of this host in an iSCSI name.
fn default_initiator() -> IscsiName {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .chars()
        .take(64)
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    let host = if host.is_empty() { "initiator" } else { &host };
    named(host)
}

#[allow(clippy::expect_used)] // The characters are those of iSCSI names, and there are few of them.
fn named(host: &str) -> IscsiName {
    format!("iqn.2026-01.example.millrace:{host}").parse().expect("a valid name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_valid_and_secrets_are_not_shown() {
        let options = Options::default();
        assert!(options.initiator.as_str().starts_with("iqn.2026-01.example.millrace:"));
        assert!(format!("{options:?}").contains("queue_depth"));
    }
}
