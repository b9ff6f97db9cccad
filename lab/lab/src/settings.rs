//! Conversion of the global options to options of clients and servers.

use std::time::Duration;

use millrace_client::{Options, RetryPolicy, Strategy, Version, rpcrdma::ProtocolRef};
use millrace_read_read::{Design, ReadRead};

use crate::args::Global;

/// Time limit for reconnection attempts of a client.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

impl Global {
    /// The design, if specified.
    pub(crate) fn design(&self) -> Option<Design> {
        self.designs.first().copied()
    }

    /// The protocol of a client of `design`.
    pub(crate) fn protocol(&self, design: Design) -> ProtocolRef {
        match design {
            Design::ReadWrite => design.protocol(),
            Design::ReadRead => ProtocolRef::new(ReadRead { padding: self.padding, ..ReadRead::default() }),
        }
    }

    /// The registration strategy, if specified.
    pub(crate) fn registration(&self) -> Option<Strategy> {
        self.registrations.first().copied()
    }

    /// The client options.
    pub(crate) fn options(&self) -> Options {
        let default = Options::default();
        Options::default()
            // The designs and studies are about NFSv3.
            .vers(Some(Version::V3))
            .retry(RetryPolicy { max_elapsed: RETRY_LIMIT, ..RetryPolicy::default() })
            .provider(self.provider.unwrap_or_default())
            .rdma_protocol(self.protocol(self.design().unwrap_or_default()))
            .registration(self.registration().unwrap_or(default.registration))
            .invalidation(self.fast_invalidate.unwrap_or(default.invalidation))
            .trust_server(self.i_trust_the_server)
            .sample_stages(self.sample_stages.unwrap_or(default.sample_stages))
    }
}

/// The arguments of `millrace-lab serve` for a server of `design` that samples one call in `sample_stages`.
pub(crate) fn server_arguments(design: Design, sample_stages: u32) -> Vec<String> {
    let mut arguments = vec![format!("--design={design}"), format!("--sample-stages={sample_stages}")];
    if design == Design::ReadRead {
        // The measurement selects this design explicitly, so accept it at any address.
        arguments.extend(["--i-accept-exposed-buffers", "--i-accept-exposed-buffers"].map(String::from));
    }
    arguments
}
