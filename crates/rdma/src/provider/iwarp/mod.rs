//! iWARP in user space (RFC 5040, 5041, 5044, 6581) over TCP.

use std::net::SocketAddr;

use buffer::Arena;
use runtime::{BoxFuture, ByteStream, RuntimeRef};

use crate::{ConnectParams, ConnectionError, Listener, Provider, QueuePair};

/// The iWARP provider: an RNIC in software, over ordinary TCP sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Iwarp;

impl Iwarp {
    /// The provider. It has no state of its own.
    pub const fn new() -> Self {
        Self
    }
}

impl Provider for Iwarp {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn connect(
        &self,
        _rt: RuntimeRef,
        _arena: Arena,
        _addr: SocketAddr,
        _params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(async { Err(ConnectionError::Local("not built yet".into())) })
    }

    fn listen(&self, _rt: RuntimeRef, _addr: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Makes a connection over `stream` as the MPA initiator.
///
/// # Errors
/// [`ConnectionError`].
pub async fn connect_over(
    _rt: RuntimeRef,
    _arena: Arena,
    _stream: Box<dyn ByteStream>,
    _params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    Err(ConnectionError::Local("not built yet".into()))
}

/// Makes a connection over `stream` as the MPA responder.
///
/// # Errors
/// [`ConnectionError`].
pub async fn accept_over(
    _rt: RuntimeRef,
    _arena: Arena,
    _stream: Box<dyn ByteStream>,
    _params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    Err(ConnectionError::Local("not built yet".into()))
}
