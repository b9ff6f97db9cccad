//! The settings of the Read-Read design.

use std::{net::SocketAddr, time::Duration};

use millrace_buffer::ByteSize;
use millrace_rpcrdma::{Design, ExposureLimits, ResponderConfig};

use super::Research;
use crate::error::InvalidSetting;

/// Consent to the Read-Read design, with which clients can read the server's buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExposedBuffers {
    /// No consent.
    #[default]
    NotAccepted,
    /// Consent for clients on this host: RDMA listens on loopback addresses only.
    AcceptedOnLoopback,
    /// Consent for all clients that can reach the server.
    AcceptedOnNetworks,
}

/// Limits of the memory that the Read-Read design exposes on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// Maximum number of regions.
    pub regions: usize,
    /// Maximum number of bytes.
    pub bytes: ByteSize,
    /// Time limit in seconds for the acknowledgement of a reply, after which the client is disconnected; at
    /// least 1.
    pub done_seconds: u64,
}

impl Default for Exposure {
    fn default() -> Self {
        let ExposureLimits { regions, bytes, done_timeout } = ExposureLimits::default();
        Self { regions, bytes: ByteSize(bytes as u64), done_seconds: done_timeout.as_secs() }
    }
}

impl Research {
    /// Adds the design to the configuration of a connection.
    pub(crate) fn configure(&self, config: ResponderConfig) -> ResponderConfig {
        let exposure = ExposureLimits {
            regions: self.exposure.regions,
            bytes: usize::try_from(self.exposure.bytes.0).unwrap_or(usize::MAX),
            done_timeout: Duration::from_secs(self.exposure.done_seconds),
        };
        ResponderConfig { design: self.design, exposure, ..config }
    }

    /// The Read-Read design requires consent, and for addresses other than loopback, consent for networks.
    pub(crate) fn check(&self, listen_rdma: &[SocketAddr]) -> Result<(), InvalidSetting> {
        if self.design == Design::ReadWrite {
            return Ok(());
        }
        let open = listen_rdma.iter().find(|a| !a.ip().is_loopback());
        let rejected = |reason: &str| Err(InvalidSetting::new("design", reason));
        match (self.exposed_buffers, open) {
            (ExposedBuffers::NotAccepted, _) => rejected(
                "the read-read design lets every client read the server's \
                 exposed buffers, by guessing tags those of others too, and hold its memory; if that is what you want, \
                 add --i-accept-exposed-buffers",
            ),
            (ExposedBuffers::AcceptedOnLoopback, Some(addr)) => rejected(&format!(
                "listen_rdma is {addr}, which other hosts may reach, and the read-read design would expose the \
                 server's buffers to them; listen on 127.0.0.1, or give --i-accept-exposed-buffers twice"
            )),
            _ if self.exposure.done_seconds == 0 => {
                rejected("exposure.done_seconds is 0; no client could acknowledge a reply in time")
            }
            _ => Ok(()),
        }
    }

    /// Logs a warning about the exposure of the Read-Read design.
    pub(crate) fn log_exposure(&self, rdma: &[SocketAddr]) {
        if self.design == Design::ReadRead && !rdma.is_empty() {
            let Exposure { regions, bytes, done_seconds } = &self.exposure;
            tracing::warn!(
                "read-read design: what READ and READDIR answer is EXPOSED to the client until it says that it is \
                 done; for each connection at most {regions} regions and {bytes}, each for at most {done_seconds} s"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn design_check(addr: &str, exposed_buffers: ExposedBuffers, done_seconds: u64) -> Result<(), String> {
        let config = Config {
            listen_rdma: vec![addr.parse().unwrap()],
            research: Research {
                design: Design::ReadRead,
                exposed_buffers,
                exposure: Exposure { done_seconds, ..Exposure::default() },
            },
            ..Config::default()
        };
        config.check().map_err(|e| e.to_string())
    }

    #[test]
    fn the_read_read_design_requires_consent_per_scope() {
        use ExposedBuffers::{AcceptedOnLoopback, AcceptedOnNetworks, NotAccepted};
        for addr in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"] {
            let e = design_check(addr, NotAccepted, 1).unwrap_err();
            assert!(e.contains("--i-accept-exposed-buffers"), "{e}");
            assert!(design_check(addr, AcceptedOnNetworks, 1).is_ok());
        }
        assert!(design_check("127.0.0.1:1", AcceptedOnLoopback, 1).is_ok());
        assert!(design_check("[::1]:1", AcceptedOnLoopback, 1).is_ok());
        for addr in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let e = design_check(addr, AcceptedOnLoopback, 1).unwrap_err();
            assert!(e.contains("twice"), "{e}");
        }
        assert!(design_check("127.0.0.1:1", AcceptedOnLoopback, 0).is_err());
    }
}
