//! Which RPC-over-RDMA design the server speaks, and what must be said before it exposes its memory.

use std::{net::SocketAddr, time::Duration};

use millrace_rpcrdma::{Design, ExposureLimits};
use serde::{Deserialize, Deserializer, de};

use crate::{Config, size::ByteSize};

/// Whether somebody has accepted that the Read-Read design lets clients read the server's buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExposedBuffers {
    /// Nobody has.
    #[default]
    NotAccepted,
    /// For clients of this machine: RDMA listens on loopback addresses only.
    AcceptedOnLoopback,
    /// For every client that reaches the server.
    AcceptedOnNetworks,
}

/// What the Read-Read design may expose on one connection (`[exposure]`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exposure {
    /// The most regions.
    pub regions: usize,
    /// The most bytes.
    pub bytes: ByteSize,
    /// A client that has not acknowledged a reply after so many seconds loses its connection.
    pub done_seconds: u64,
}

impl Default for Exposure {
    fn default() -> Self {
        let ExposureLimits { regions, bytes, done_timeout } = ExposureLimits::default();
        Self { regions, bytes: ByteSize(bytes as u64), done_seconds: done_timeout.as_secs() }
    }
}

impl Exposure {
    pub(crate) fn limits(&self) -> ExposureLimits {
        ExposureLimits {
            regions: self.regions,
            bytes: usize::try_from(self.bytes.0).unwrap_or(usize::MAX),
            done_timeout: Duration::from_secs(self.done_seconds),
        }
    }
}

/// Reads the design's name in a file, where it can only be the default.
pub(crate) fn of_file<'de, D: Deserializer<'de>>(d: D) -> Result<Design, D::Error> {
    match String::deserialize(d)?.parse().map_err(de::Error::custom)? {
        Design::ReadRead => {
            Err(de::Error::custom("design read-read is a research option: use millrace-lab serve"))
        }
        Design::ReadWrite => Ok(Design::ReadWrite),
    }
}

/// The Read-Read design must be asked for and accepted; on a network, accepted for networks.
pub(crate) fn check(config: &Config) -> Result<(), String> {
    if config.design == Design::ReadWrite {
        return Ok(());
    }
    let open = config.listen_rdma.iter().find(|a| !a.ip().is_loopback());
    match (config.exposed_buffers, open) {
        (ExposedBuffers::NotAccepted, _) => Err("the read-read design lets every client read the server's \
            exposed buffers, by guessing tags those of others too, and hold its memory; if that is what you want, add \
            --i-accept-exposed-buffers"
            .into()),
        (ExposedBuffers::AcceptedOnLoopback, Some(addr)) => Err(format!(
            "listen_rdma is {addr}, which others than this machine may reach, and the read-read design would expose \
             the server's buffers to them; listen on 127.0.0.1, or give --i-accept-exposed-buffers twice"
        )),
        _ if config.exposure.done_seconds == 0 => {
            Err("exposure.done_seconds is 0; no client could acknowledge a reply in time".into())
        }
        _ => Ok(()),
    }
}

/// Says in the log what the design means.
pub(crate) fn announce(config: &Config, rdma: &[SocketAddr]) {
    if config.design == Design::ReadRead && !rdma.is_empty() {
        let Exposure { regions, bytes, done_seconds } = &config.exposure;
        tracing::warn!(
            "read-read design: what READ and READDIR answer is EXPOSED to the client until it says that it is done; \
             for each connection at most {regions} regions and {bytes}, each for at most {done_seconds} s"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(addr: &str, exposed_buffers: ExposedBuffers, done_seconds: u64) -> Result<(), String> {
        let config = Config {
            listen_rdma: vec![addr.parse().unwrap()],
            design: Design::ReadRead,
            exposed_buffers,
            exposure: Exposure { done_seconds, ..Exposure::default() },
            ..Config::default()
        };
        config.check().map_err(|e| e.to_string())
    }

    #[test]
    fn read_read_needs_an_acceptance_and_on_a_network_another_one() {
        use ExposedBuffers::{AcceptedOnLoopback, AcceptedOnNetworks, NotAccepted};
        for addr in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"] {
            let e = check(addr, NotAccepted, 1).unwrap_err();
            assert!(e.contains("--i-accept-exposed-buffers"), "{e}");
            assert!(check(addr, AcceptedOnNetworks, 1).is_ok());
        }
        assert!(check("127.0.0.1:1", AcceptedOnLoopback, 1).is_ok());
        assert!(check("[::1]:1", AcceptedOnLoopback, 1).is_ok());
        for addr in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let e = check(addr, AcceptedOnLoopback, 1).unwrap_err();
            assert!(e.contains("twice"), "{e}");
        }
        assert!(check("127.0.0.1:1", AcceptedOnLoopback, 0).is_err());
    }
}
