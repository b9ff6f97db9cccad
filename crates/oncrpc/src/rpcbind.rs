//! A client of rpcbind (RFC 1833): looks up and registers addresses of programs.
//!
//! Calls use version 4, and version 2 (portmap), which supports IPv4 ports of TCP and UDP only, if version 4
//! is not available. An rpcbind accepts registrations from its own host only, and often only over its Unix
//! socket or from a privileged port. Failures of [`Rpcbind::register`] are therefore common; they are logged.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use millrace_runtime::{ByteStream, RuntimeRef};
use millrace_xdr::{Arena, Decoder, Encode, Encoder, XdrError};

use crate::{
    Credential, ReplySpec, Request, RpcError, Transport, call_header,
    tcp::{TcpClientConfig, TcpTransport},
};

/// Program number of rpcbind.
pub const PROGRAM: u32 = 100_000;
/// Port of rpcbind.
pub const PORT: u16 = 111;

const V2: u32 = 2;
const V4: u32 = 4;
const PROC_SET: u32 = 1;
const PROC_UNSET: u32 = 2;
/// GETPORT in version 2, GETADDR in version 4.
const PROC_GET: u32 = 3;
/// Maximum bytes of a universal address: an IPv6 address has at most 45, a port at most 8.
const MAX_ADDRESS: usize = 64;
/// Maximum bytes of a message.
const MAX_RECORD: usize = 64 << 10;

/// Network ids (RFC 5665) that this client supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetId {
    /// TCP over IPv4.
    Tcp,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp,
    /// UDP over IPv6.
    Udp6,
    /// RDMA, addressed by IPv4.
    Rdma,
    /// RDMA, addressed by IPv6.
    Rdma6,
}

impl NetId {
    /// The netid as text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp6 => "udp6",
            Self::Rdma => "rdma",
            Self::Rdma6 => "rdma6",
        }
    }

    /// TCP for the family of this address.
    pub const fn tcp(addr: &SocketAddr) -> Self {
        if addr.is_ipv4() { Self::Tcp } else { Self::Tcp6 }
    }

    /// RDMA for the family of this address.
    pub const fn rdma(addr: &SocketAddr) -> Self {
        if addr.is_ipv4() { Self::Rdma } else { Self::Rdma6 }
    }

    /// The IP protocol number in version 2.
    const fn portmap_protocol(self) -> Option<u32> {
        match self {
            Self::Tcp => Some(6),
            Self::Udp => Some(17),
            Self::Tcp6 | Self::Udp6 | Self::Rdma | Self::Rdma6 => None,
        }
    }
}

/// A program version at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Program.
    pub prog: u32,
    /// Version.
    pub vers: u32,
    /// Transport.
    pub netid: NetId,
    /// Address. The unspecified address means all addresses of the host.
    pub addr: SocketAddr,
}

/// Formats a universal address (RFC 5665 section 5.2.3): `127.0.0.1:2049` is `127.0.0.1.8.1`.
pub fn universal_address(addr: &SocketAddr) -> String {
    let [high, low] = addr.port().to_be_bytes();
    format!("{}.{high}.{low}", addr.ip())
}

/// Parses a universal address.
pub fn parse_universal_address(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let ip: IpAddr = ip.parse().ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?])))
}

/// `mapping` of version 2.
struct Mapping {
    prog: u32,
    vers: u32,
    protocol: u32,
    port: u16,
}

impl Encode for Mapping {
    fn encode(&self, e: &mut Encoder) {
        [self.prog, self.vers, self.protocol, self.port.into()].iter().for_each(|w| e.put_u32(*w));
    }
}

/// `rpcb` of versions 3 and 4.
struct Rpcb<'a> {
    prog: u32,
    vers: u32,
    netid: NetId,
    addr: &'a str,
}

impl Encode for Rpcb<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_u32(self.prog);
        e.put_u32(self.vers);
        e.put_opaque(self.netid.name().as_bytes());
        e.put_opaque(self.addr.as_bytes());
        e.put_opaque(b""); // rpcbind determines the owner
    }
}

/// A connection to an rpcbind.
pub struct Rpcbind {
    transport: Arc<dyn Transport>,
    arena: Arena,
}

impl Rpcbind {
    /// Starts a client of the rpcbind at the other end of `stream`, with a time limit of `limit` per call.
    ///
    /// # Errors
    /// As [`TcpTransport::start`].
    pub fn new(
        stream: Box<dyn ByteStream>,
        rt: &RuntimeRef,
        arena: &Arena,
        limit: Duration,
    ) -> Result<Self, RpcError> {
        let config = TcpClientConfig {
            max_record: MAX_RECORD,
            max_payload: 0,
            timeout: limit,
            ..TcpClientConfig::default()
        };
        let transport = TcpTransport::start(stream, rt, arena, config)?;
        Ok(Self { transport, arena: arena.clone() })
    }

    async fn call<T>(
        &self,
        vers: u32,
        proc: u32,
        args: &(impl Encode + Sync),
        results: impl FnOnce(&mut Decoder<'_>) -> Result<T, XdrError>,
    ) -> Result<T, RpcError> {
        let mut e = Encoder::new(&self.arena, 256);
        call_header(&mut e, PROGRAM, vers, proc, &Credential::None);
        e.put(args);
        let message = e.finish().map_err(|e| RpcError::Local(e.to_string()))?;
        let reply = ReplySpec { max_head: MAX_RECORD, ..ReplySpec::default() };
        let reply = self.transport.submit(Request::new(message, reply)).await?;
        results(&mut reply.results())
            .map_err(|e| RpcError::BadReply { peer: "rpcbind".into(), what: e.to_string() })
    }

    /// Calls version 4, and version 2 if rpcbind lacks version 4 and version 2 supports the transport.
    async fn call_any_version(&self, proc: u32, binding: &Binding, addr: &str) -> Result<bool, RpcError> {
        let Binding { prog, vers, netid, .. } = *binding;
        let new = self.call(V4, proc, &Rpcb { prog, vers, netid, addr }, |d| d.bool()).await;
        match (new, netid.portmap_protocol()) {
            (Err(RpcError::Accept(_)), Some(protocol)) => {
                let old = Mapping { prog, vers, protocol, port: binding.addr.port() };
                self.call(V2, proc, &old, |d| d.bool()).await
            }
            (other, _) => other,
        }
    }

    /// Registers a binding. Returns `false` if rpcbind rejects it, usually because another server has
    /// registered the same binding.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn set(&self, binding: &Binding) -> Result<bool, RpcError> {
        self.call_any_version(PROC_SET, binding, &universal_address(&binding.addr)).await
    }

    /// Removes the registration of the binding's program, version and transport, at any address. Returns
    /// `false` if there is none, or if it belongs to another user.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn unset(&self, binding: &Binding) -> Result<bool, RpcError> {
        self.call_any_version(PROC_UNSET, binding, "").await
    }

    /// Registers all bindings, and replaces those of a server that was killed. Logs rejected bindings;
    /// returns the number of registered ones.
    pub async fn register(&self, bindings: &[Binding]) -> usize {
        let mut registered = 0;
        for b in bindings {
            let _ = self.unset(b).await;
            let (prog, vers, netid) = (b.prog, b.vers, b.netid.name());
            match self.set(b).await {
                Ok(true) => registered += 1,
                Ok(false) => tracing::warn!(prog, vers, netid, "rpcbind refused the registration"),
                Err(e) => tracing::warn!(prog, vers, netid, "not registered with rpcbind: {e}"),
            }
        }
        registered
    }

    /// Removes the registrations of all bindings. Errors are logged only.
    pub async fn unregister(&self, bindings: &[Binding]) {
        for b in bindings {
            if let Err(e) = self.unset(b).await {
                tracing::debug!(prog = b.prog, "still registered with rpcbind: {e}");
            }
        }
    }

    /// The port of a program on TCP or UDP over IPv4, by version 2. `None` if the program is not registered.
    ///
    /// # Errors
    /// Those of the call; [`RpcError::Unsupported`] for other transports; [`RpcError::BadReply`] for a port
    /// above 65535.
    pub async fn get_port(&self, prog: u32, vers: u32, netid: NetId) -> Result<Option<u16>, RpcError> {
        let protocol = netid.portmap_protocol().ok_or_else(|| {
            RpcError::Unsupported(format!("version 2 of rpcbind does not support {}", netid.name()))
        })?;
        let request = Mapping { prog, vers, protocol, port: 0 };
        let port = self.call(V2, PROC_GET, &request, |d| d.u32()).await?;
        let port = u16::try_from(port).map_err(|_| RpcError::BadReply {
            peer: "rpcbind".into(),
            what: format!("{port} is not a port"),
        })?;
        Ok((port != 0).then_some(port))
    }

    /// The address of a program, by version 4. `None` if the program is not registered.
    ///
    /// # Errors
    /// Those of the call; [`RpcError::BadReply`] for an invalid address.
    pub async fn get_addr(&self, prog: u32, vers: u32, netid: NetId) -> Result<Option<SocketAddr>, RpcError> {
        let request = Rpcb { prog, vers, netid, addr: "" };
        let text = self.call(V4, PROC_GET, &request, |d| d.opaque(MAX_ADDRESS).map(<[u8]>::to_vec)).await?;
        if text.is_empty() {
            return Ok(None);
        }
        let addr = std::str::from_utf8(&text).ok().and_then(parse_universal_address);
        addr.map(Some).ok_or_else(|| RpcError::BadReply {
            peer: "rpcbind".into(),
            what: format!("{} is not a universal address", text.escape_ascii()),
        })
    }
}
