//! A connection to a server over TCP.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use millrace_buffer::ArenaConfig;
use millrace_oncrpc::{
    AuthSys, CallbackHandler, Credential, Reply, Request, RpcError, Transport,
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_runtime::{
    BoxFuture,
    tokio_rt::{TcpByteStream, TokioRuntime},
};
use millrace_xdr::Arena;

use crate::compound::Call;

/// Memory of a connection in bytes.
const MEMORY: usize = 64 << 20;
/// Time that a server has for a reply.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection of the superuser, with AUTH_SYS.
#[derive(Clone)]
pub struct Connection {
    transport: Arc<TcpTransport>,
    arena: Arena,
    credential: Credential,
}

impl Connection {
    /// Connects to a server. The connection belongs to the executor of the caller, such as that of
    /// [`run_shard`](millrace_runtime::tokio_rt::run_shard).
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(server: SocketAddr) -> Result<Self, RpcError> {
        let arena = Arena::new(ArenaConfig { limit: MEMORY, huge_pages: false });
        let stream = TcpByteStream::connect(server).await.map_err(|e| RpcError::Local(e.to_string()))?;
        let config = TcpClientConfig { timeout: TIMEOUT, ..TcpClientConfig::default() };
        let transport = TcpTransport::start(Box::new(stream), &TokioRuntime::current(), &arena, config)?;
        Ok(Self { transport, arena, credential: Credential::Sys(AuthSys::default()) })
    }
}

impl Call for Connection {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn credential(&self) -> &Credential {
        &self.credential
    }

    fn with(&self, credential: Credential) -> Self {
        Self { credential, ..self.clone() }
    }

    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>> {
        Box::pin(self.transport.submit(request))
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        self.transport.handle_callbacks(handler);
    }
}
