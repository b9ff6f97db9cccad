//! iWARP as a provider over any streams.

use std::{io, net::SocketAddr, sync::Arc};

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Incoming, Listener, Provider, QueuePair, RejectReason};
use millrace_rdma_iwarp::{accept_over, connect_over};
use millrace_runtime::{BoxFuture, ByteStream, RuntimeRef, StreamListener, StreamProvider};

type Qp = Result<Box<dyn QueuePair>, ConnectionError>;

/// iWARP over the streams of one host.
pub(super) struct IwarpOver(pub(super) Arc<dyn StreamProvider>);

impl Provider for IwarpOver {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Qp> {
        let stream = self.0.connect(params.local_port, addr);
        Box::pin(async move {
            let stream = millrace_runtime::timeout(&*rt, params.timeout, stream).await;
            let stream = stream.ok_or(ConnectionError::TimedOut(params.timeout))?;
            connect_over(rt, arena, stream.map_err(|e| ConnectionError::Io(e.to_string()))?, params).await
        })
    }

    fn listen(&self, _rt: RuntimeRef, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(Listening(self.0.listen(addr)?)))
    }
}

struct Listening(Box<dyn StreamListener>);

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let stream = self.0.accept().await?;
            let peer = stream.peer_addr()?;
            Ok(Box::new(Arrived { stream, peer }) as Box<dyn Incoming>)
        })
    }
}

struct Arrived {
    stream: Box<dyn ByteStream>,
    peer: SocketAddr,
}

impl Incoming for Arrived {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn accept(
        self: Box<Self>,
        rt: RuntimeRef,
        arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Qp> {
        Box::pin(accept_over(rt, arena, self.stream, params))
    }

    fn reject(self: Box<Self>, _reason: RejectReason) {}
}
