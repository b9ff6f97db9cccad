//! The consent to the exposure of a server's memory.

use std::net::SocketAddr;

/// Consent to a server of the Read-Read design, with which clients can read the server's buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Consent {
    /// No consent.
    #[default]
    None,
    /// Consent for clients on this host: RDMA listens on loopback addresses only.
    Loopback,
    /// Consent for all clients that can reach the server.
    Networks,
}

impl Consent {
    /// Checks that the consent covers a server that listens on `addr`.
    ///
    /// # Errors
    /// The reason why it does not.
    pub(crate) fn check(self, addr: SocketAddr) -> Result<(), String> {
        match self {
            Self::None => {
                Err("the read-read design lets every client read the server's exposed buffers, by guessing \
                 tags those of others too, and hold its memory; if that is what you want, add \
                 --i-accept-exposed-buffers"
                    .into())
            }
            Self::Loopback if !addr.ip().is_loopback() => Err(format!(
                "the address for RDMA is {addr}, which other hosts may reach, and the read-read design would expose the \
                 server's buffers to them; listen on 127.0.0.1, or give --i-accept-exposed-buffers twice"
            )),
            Self::Loopback | Self::Networks => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_is_required_per_scope() {
        let check = |addr: &str, consent: Consent| consent.check(addr.parse().unwrap());
        for addr in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"] {
            let e = check(addr, Consent::None).unwrap_err();
            assert!(e.contains("--i-accept-exposed-buffers"), "{e}");
            assert!(check(addr, Consent::Networks).is_ok());
        }
        assert!(check("127.0.0.1:1", Consent::Loopback).is_ok());
        assert!(check("[::1]:1", Consent::Loopback).is_ok());
        for addr in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let e = check(addr, Consent::Loopback).unwrap_err();
            assert!(e.contains("twice"), "{e}");
        }
    }
}
