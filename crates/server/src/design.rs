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

/// Reads the design's name.
pub(crate) fn named<'de, D: Deserializer<'de>>(d: D) -> Result<Design, D::Error> {
    String::deserialize(d)?.parse().map_err(de::Error::custom)
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
            --i-accept-exposed-buffers (in a file: exposed_buffers = \"accepted-on-loopback\")"
            .into()),
        (ExposedBuffers::AcceptedOnLoopback, Some(addr)) => Err(format!(
            "listen_rdma is {addr}, which others than this machine may reach, and the read-read design would expose \
             the server's buffers to them; listen on 127.0.0.1, or give --i-accept-exposed-buffers twice (in a file: \
             exposed_buffers = \"accepted-on-networks\")"
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

    fn config(text: &str) -> Result<(), String> {
        let config: Config = text.parse().map_err(|e: crate::ServerError| e.to_string())?;
        config.check().map_err(|e| e.to_string())
    }

    #[test]
    fn read_read_needs_an_acceptance_and_on_a_network_another_one() {
        let on = |addr: &str, more: &str| config(&format!("listen_rdma = [\"{addr}\"]\n{more}\n"));
        let (asked, local, network) = (
            "design = \"read-read\"",
            "exposed_buffers = \"accepted-on-loopback\"",
            "exposed_buffers = \"accepted-on-networks\"",
        );
        assert!(on("0.0.0.0:1", "").is_ok());
        for addr in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"] {
            let e = on(addr, asked).unwrap_err();
            assert!(e.contains("--i-accept-exposed-buffers"), "{e}");
            assert!(on(addr, &format!("{asked}\n{network}")).is_ok());
        }
        assert!(on("127.0.0.1:1", &format!("{asked}\n{local}")).is_ok());
        assert!(on("[::1]:1", &format!("{asked}\n{local}")).is_ok());
        for addr in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let e = on(addr, &format!("{asked}\n{local}")).unwrap_err();
            assert!(e.contains("twice") && e.contains("accepted-on-networks"), "{e}");
        }
        assert!(on("127.0.0.1:1", "exposed_buffers = true").is_err());
        assert!(
            on("127.0.0.1:1", "design = \"read_read\"").unwrap_err().contains("use read-write or read-read")
        );
        assert!(on("127.0.0.1:1", &format!("{asked}\n{local}\n[exposure]\ndone_seconds = 0")).is_err());
    }
}
