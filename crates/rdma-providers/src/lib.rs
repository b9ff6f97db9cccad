//! Selection of the RDMA provider for an address. `client`, `server`, `bench` and `cli` select a provider with
//! [`ProviderChoice`] and name none themselves.

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

use millrace_rdma::{Provider, provider::local_address_to};
use millrace_rdma_iwarp::Iwarp;
use millrace_rdma_verbs::{self as verbs, Unusable};

/// What a person asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProviderChoice {
    /// `verbs` where our address belongs to an RDMA device, `iwarp` elsewhere. An unspecified address (0.0.0.0, ::)
    /// belongs to no device.
    #[default]
    Auto,
    /// iWARP in software, over TCP.
    Iwarp,
    /// RDMA devices, through rdma-core.
    Verbs,
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Iwarp => "iwarp",
            Self::Verbs => "verbs",
        })
    }
}

impl FromStr for ProviderChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "iwarp" => Ok(Self::Iwarp),
            "verbs" => Ok(Self::Verbs),
            _ => Err(format!("unknown RDMA provider {s:?}: use auto, iwarp or verbs")),
        }
    }
}

/// A provider, and why it was taken.
#[derive(Clone)]
pub struct Chosen {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// Why this one: half a sentence.
    pub why: String,
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.provider.name(), self.why)
    }
}

/// Why the provider that was asked for cannot serve an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUsable {
    /// It cannot be used on this machine.
    #[error("the verbs provider cannot be used here: {0}; or choose the provider iwarp, which needs nothing")]
    Here(#[from] Unusable),
    /// It has no device with that address.
    #[error(
        "{0} belongs to no RDMA device, so the verbs provider cannot use it (millrace devices shows which addresses \
         do); use such an address, or choose the provider iwarp"
    )]
    NoDevice(IpAddr),
    /// There is no way to the peer.
    #[error("there is no route to {0}: {1}")]
    NoRoute(IpAddr, String),
}

impl ProviderChoice {
    /// The provider with which to listen on `local`. Of an unspecified address `verbs` takes all RDMA devices, and
    /// `auto` takes `iwarp`: a socket that every machine has, and that would be in the way of an iWARP device's.
    ///
    /// # Errors
    /// When `verbs` was asked for and cannot be used there.
    pub fn to_listen(self, local: IpAddr) -> Result<Chosen, NotUsable> {
        match self {
            Self::Verbs if local.is_unspecified() => {
                verbs::devices()?;
                Ok(asked(verbs()?))
            }
            _ => self.at(local),
        }
    }

    /// The provider with which to connect to `peer`: our address is the one from which the machine routes to it.
    ///
    /// # Errors
    /// When `verbs` was asked for and cannot be used, or there is no route.
    pub fn to_connect(self, peer: IpAddr) -> Result<Chosen, NotUsable> {
        match (self, local_address_to(peer)) {
            (Self::Iwarp, _) => Ok(asked(iwarp())),
            (_, Ok(local)) => self.at(local),
            // The connection says it better.
            (Self::Auto, Err(e)) => Ok(Chosen { provider: iwarp(), why: format!("no route to {peer}: {e}") }),
            (Self::Verbs, Err(e)) => Err(NotUsable::NoRoute(peer, e.to_string())),
        }
    }

    fn at(self, local: IpAddr) -> Result<Chosen, NotUsable> {
        match self {
            Self::Iwarp => Ok(asked(iwarp())),
            Self::Verbs => {
                verbs::device_of(local)?.ok_or(NotUsable::NoDevice(local))?;
                Ok(asked(verbs()?))
            }
            Self::Auto => Ok(automatic(local)),
        }
    }
}

fn automatic(local: IpAddr) -> Chosen {
    if local.is_unspecified() {
        let why = match verbs::devices() {
            Ok(devices) => {
                let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
                format!(
                    "{local} belongs to no RDMA device; to use {}, name its address, or choose verbs",
                    names.join(", ")
                )
            }
            Err(_) => format!("{local} belongs to no RDMA device"),
        };
        return Chosen { provider: iwarp(), why };
    }
    match verbs::device_of(local) {
        Ok(Some(device)) => match verbs() {
            Ok(provider) => Chosen { provider, why: format!("{local} belongs to {device}") },
            Err(e) => Chosen { provider: iwarp(), why: format!("{local} belongs to {device}, but {e}") },
        },
        Ok(None) => Chosen { provider: iwarp(), why: format!("{local} belongs to no RDMA device") },
        Err(_) => {
            Chosen { provider: iwarp(), why: "verbs cannot be used here (see millrace devices)".into() }
        }
    }
}

fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new())
}

fn verbs() -> Result<Arc<dyn Provider>, NotUsable> {
    Ok(Arc::new(verbs::Verbs::new()?))
}

fn asked(provider: Arc<dyn Provider>) -> Chosen {
    Chosen { provider, why: "as was asked for".into() }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// Of TEST-NET-3 (RFC 5737): nobody's.
    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

    #[test]
    fn names_are_read_and_written() {
        for choice in [ProviderChoice::Auto, ProviderChoice::Iwarp, ProviderChoice::Verbs] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("roce".parse::<ProviderChoice>().unwrap_err().contains("auto, iwarp or verbs"));
    }

    #[test]
    fn iwarp_serves_every_address() {
        for ip in [LOOPBACK, NOBODY, Ipv6Addr::UNSPECIFIED.into()] {
            assert_eq!(ProviderChoice::Iwarp.to_listen(ip).unwrap().provider.name(), "iwarp");
            assert_eq!(ProviderChoice::Iwarp.to_connect(ip).unwrap().provider.name(), "iwarp");
        }
    }

    #[test]
    fn an_address_of_no_device_is_refused_by_verbs_and_given_to_iwarp_by_auto() {
        let refused = ProviderChoice::Verbs.to_listen(NOBODY).unwrap_err();
        assert!(refused.to_string().contains("choose the provider iwarp"), "{refused}");
        let chosen = ProviderChoice::Auto.to_listen(NOBODY).unwrap();
        assert_eq!(chosen.provider.name(), "iwarp");
        assert!(!chosen.why.is_empty());
    }

    #[test]
    fn an_unspecified_address_is_served_by_iwarp_unless_verbs_is_asked_for() {
        let any = Ipv4Addr::UNSPECIFIED.into();
        assert_eq!(ProviderChoice::Auto.to_listen(any).unwrap().provider.name(), "iwarp");
        match ProviderChoice::Verbs.to_listen(any) {
            Ok(chosen) => assert_eq!(chosen.provider.name(), "verbs"),
            Err(e) => assert!(!matches!(e, NotUsable::NoDevice(_)), "{e}"),
        }
    }
}
