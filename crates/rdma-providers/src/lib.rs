//! Selection of the RDMA provider for an address.
//!
//! `client`, `server`, `bench` and `cli` select the provider of an address with [`ProviderChoice`]. The Cargo
//! features `iwarp` and `verbs`, both enabled by default, decide which providers are compiled in.

mod adapters;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, TcpListener},
    str::FromStr,
    sync::Arc,
};

use millrace_buffer::Arena;
use millrace_rdma::{
    ConnectParams, ConnectionError, Listener, Provider, QueuePair, provider::local_address_to,
};
use millrace_runtime::{ByteStream, RuntimeRef};

/// The RDMA provider that a user requests. [`Display`](fmt::Display) and [`FromStr`] use the names `auto`,
/// `iwarp` and `verbs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProviderChoice {
    /// `verbs` if the local address belongs to an RDMA device, otherwise `iwarp`. The unspecified address
    /// (0.0.0.0, ::) belongs to no device.
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

/// A selected provider and the reason for the selection.
#[derive(Clone)]
pub struct Chosen {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The reason, a clause for logs and tables such as `10.0.0.1 belongs to mlx5_0`.
    pub why: String,
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.provider.name(), self.why)
    }
}

/// Why no provider can serve an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The verbs provider cannot be used on this machine.
    #[cfg(feature = "verbs")]
    #[error("the verbs provider cannot be used here: {0}; or choose the provider iwarp, which needs nothing")]
    Here(#[from] millrace_rdma_verbs::VerbsError),
    /// The address belongs to no RDMA device.
    #[error(
        "{0} belongs to no RDMA device, so the verbs provider cannot use it (millrace devices shows which addresses \
         do); use such an address, or choose the provider iwarp"
    )]
    NoDevice(IpAddr),
    /// The machine has no route to the peer.
    #[error("there is no route to {0}: {1}")]
    NoRoute(IpAddr, String),
    /// The provider was not compiled in.
    #[error(
        "the RDMA provider {0} is not part of this build: enable the Cargo feature {0} of millrace-rdma-providers"
    )]
    NotBuilt(&'static str),
}

impl ProviderChoice {
    /// Selects the provider with which to listen on `local`. For an unspecified address, `verbs` listens on
    /// all RDMA devices; `auto` selects `iwarp`, whose socket can be bound on every machine.
    ///
    /// # Errors
    /// When `verbs` was requested and cannot be used with that address, or the provider was not compiled in.
    pub fn to_listen(self, local: IpAddr) -> Result<Chosen, ProviderError> {
        match self {
            Self::Verbs if local.is_unspecified() => {
                adapters::device_names()?;
                Ok(requested(adapters::provider()?))
            }
            _ => self.for_local_address(local),
        }
    }

    /// Selects the provider with which to connect to `peer`. The local address is the one from which the
    /// machine routes to `peer`.
    ///
    /// # Errors
    /// When `verbs` was requested and cannot be used or has no route, or the provider was not compiled in.
    pub fn to_connect(self, peer: SocketAddr) -> Result<Chosen, ProviderError> {
        match (self, local_address_to(peer)) {
            (Self::Iwarp, _) => Ok(requested(iwarp()?)),
            (_, Ok(local)) => self.for_local_address(local.ip()),
            // The connection attempt reports the missing route in more detail.
            (Self::Auto, Err(e)) => {
                Ok(Chosen { provider: iwarp()?, why: format!("no route to {}: {e}", peer.ip()) })
            }
            (Self::Verbs, Err(e)) => Err(ProviderError::NoRoute(peer.ip(), e.to_string())),
        }
    }

    fn for_local_address(self, local: IpAddr) -> Result<Chosen, ProviderError> {
        match self {
            Self::Iwarp => Ok(requested(iwarp()?)),
            Self::Verbs => {
                adapters::device_of(local)?.ok_or(ProviderError::NoDevice(local))?;
                Ok(requested(adapters::provider()?))
            }
            Self::Auto => automatic(local),
        }
    }
}

/// The selection of [`ProviderChoice::Auto`] for the local address `local`.
fn automatic(local: IpAddr) -> Result<Chosen, ProviderError> {
    if local.is_unspecified() {
        let why = match adapters::device_names() {
            Ok(names) => format!(
                "{local} belongs to no RDMA device; to use {}, name its address, or choose verbs",
                names.join(", ")
            ),
            Err(_) => format!("{local} belongs to no RDMA device"),
        };
        return Ok(Chosen { provider: iwarp()?, why });
    }
    match adapters::device_of(local) {
        Ok(Some(device)) => match adapters::provider() {
            Ok(provider) => Ok(Chosen { provider, why: format!("{local} belongs to {device}") }),
            Err(e) => Ok(Chosen { provider: iwarp()?, why: format!("{local} belongs to {device}, but {e}") }),
        },
        Ok(None) => Ok(Chosen { provider: iwarp()?, why: format!("{local} belongs to no RDMA device") }),
        Err(_) => {
            Ok(Chosen { provider: iwarp()?, why: "verbs cannot be used here (see millrace devices)".into() })
        }
    }
}

/// The name of the provider of iWARP in software ([`Provider::name`]).
pub const IWARP: &str = "iwarp";

/// Sets up a connection of the provider `iwarp` over `stream`, on which the peer has connected. For listeners that
/// accept streams for several protocols.
///
/// # Errors
/// Those of [`Incoming::accept`](millrace_rdma::Incoming::accept);
/// [`Incompatible`](ConnectionError::Incompatible) in a build without the provider.
pub async fn accept_iwarp(
    rt: RuntimeRef,
    arena: Arena,
    stream: Box<dyn ByteStream>,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    #[cfg(feature = "iwarp")]
    return millrace_rdma_iwarp::accept_over(rt, arena, stream, params).await;
    #[cfg(not(feature = "iwarp"))]
    {
        drop((rt, arena, stream, params));
        Err(ConnectionError::Incompatible(ProviderError::NotBuilt(IWARP).to_string()))
    }
}

/// Connects to `addr` with the provider `iwarp`, over the stream that `secure` makes of the socket's, with TLS for example.
///
/// # Errors
/// Those of `secure` and of [`Provider::connect`]; [`Incompatible`](ConnectionError::Incompatible) in a build without the
/// provider.
pub async fn connect_iwarp<E: From<ConnectionError>, F>(
    rt: RuntimeRef,
    addr: SocketAddr,
    params: ConnectParams,
    secure: impl FnOnce(Box<dyn ByteStream>) -> F,
) -> Result<Box<dyn QueuePair>, E>
where
    F: Future<Output = Result<Box<dyn ByteStream>, E>>,
{
    #[cfg(feature = "iwarp")]
    return millrace_rdma_iwarp::connect_secured(rt, addr, params, secure).await;
    #[cfg(not(feature = "iwarp"))]
    {
        drop((rt, addr, params, secure));
        Err(ConnectionError::Incompatible(ProviderError::NotBuilt(IWARP).to_string()).into())
    }
}

/// Listens with the provider `iwarp` on `listener`, a listening socket that does not block.
///
/// # Errors
/// When the socket has no address; [`Unsupported`](io::ErrorKind::Unsupported) in a build without the provider.
pub fn listen_iwarp(rt: RuntimeRef, listener: TcpListener) -> io::Result<Box<dyn Listener>> {
    #[cfg(feature = "iwarp")]
    return millrace_rdma_iwarp::Iwarp::new().listen_on(rt, listener);
    #[cfg(not(feature = "iwarp"))]
    {
        drop((rt, listener));
        Err(io::Error::new(io::ErrorKind::Unsupported, ProviderError::NotBuilt(IWARP).to_string()))
    }
}

#[cfg(feature = "iwarp")]
fn iwarp() -> Result<Arc<dyn Provider>, ProviderError> {
    Ok(Arc::new(millrace_rdma_iwarp::Iwarp::new()))
}

#[cfg(not(feature = "iwarp"))]
fn iwarp() -> Result<Arc<dyn Provider>, ProviderError> {
    Err(ProviderError::NotBuilt("iwarp"))
}

fn requested(provider: Arc<dyn Provider>) -> Chosen {
    Chosen { provider, why: "as requested".into() }
}
