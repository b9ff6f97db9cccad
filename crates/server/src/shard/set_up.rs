//! The set-up of connections whose peers may begin with TLS.

use std::{future::poll_fn, io, pin::pin, sync::Arc, time::Duration};

use futures::future::{Either, select};
use millrace_admission::Account;
use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Incoming, QueuePair};
use millrace_rdma_providers::accept_iwarp;
use millrace_runtime::{ByteStream, RuntimeRef, timeout};
use millrace_tls::{Accepted, Protocol, ServerSession, TlsAcceptor};
use tokio::sync::watch;

use super::{StopSignal, stop_requested};

/// An RDMA connection, with the session of its stream if it has TLS.
pub(super) type AcceptedRdma = Result<(Box<dyn QueuePair>, Option<ServerSession>), ConnectionError>;

/// What sets up connections of a shard.
#[derive(Clone)]
pub(super) struct SetUp {
    pub(super) tls: Arc<TlsAcceptor>,
    pub(super) rt: RuntimeRef,
    pub(super) arena: Arena,
    pub(super) stopped: watch::Receiver<StopSignal>,
}

impl SetUp {
    /// Runs `step`. `None` if the server is requested to stop, or the account is evicted.
    pub(super) async fn unless_cancelled<T>(
        &self,
        account: &Account,
        step: impl Future<Output = T>,
    ) -> Option<T> {
        let evicted = poll_fn(|cx| account.poll_evicted(cx));
        let cancelled = select(Box::pin(stop_requested(self.stopped.clone())), evicted);
        match select(pin!(step), cancelled).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    /// Accepts a session for one of `protocols` on `stream` within `limit`. `None` if the server is requested to stop.
    pub(super) async fn accept_tls(
        &self,
        stream: Box<dyn ByteStream>,
        protocols: &[Protocol],
        account: &mut Account,
        limit: Duration,
    ) -> Option<io::Result<Accepted>> {
        let accept = timeout(&*self.rt, limit, self.tls.accept(stream, protocols, account));
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, format!("no end within {limit:?}")));
        match select(pin!(accept), Box::pin(stop_requested(self.stopped.clone()))).await {
            Either::Left((accepted, _)) => Some(accepted.unwrap_or_else(late)),
            Either::Right(_) => None,
        }
    }

    /// Accepts an RDMA connection, with iWARP within TLS if its peer begins so. `None` if it is cancelled.
    pub(super) async fn accept_rdma(
        &self,
        mut incoming: Box<dyn Incoming>,
        params: ConnectParams,
        account: &mut Account,
    ) -> Option<AcceptedRdma> {
        let limit = params.timeout;
        let begun = self.unless_cancelled(account, timeout(&*self.rt, limit, incoming.tls_stream())).await?;
        let stream = match begun {
            Some(Ok(Some(stream))) => stream,
            Some(Ok(None)) => {
                let accept = incoming.accept(Arc::clone(&self.rt), self.arena.clone(), params);
                let accepted = self.unless_cancelled(account, accept).await?;
                return Some(accepted.map(|qp| (qp, None)));
            }
            Some(Err(e)) => return Some(Err(ConnectionError::Io(e.to_string()))),
            None => return Some(Err(ConnectionError::TimedOut(limit))),
        };
        match self.accept_tls(stream, &[Protocol::Iwarp], account, limit).await? {
            Ok(Accepted { stream, session, .. }) => {
                let qp = self.unless_cancelled(account, self.accept_iwarp(stream, params)).await?;
                Some(qp.map(|qp| (qp, Some(session))))
            }
            Err(e) => Some(Err(ConnectionError::Io(format!("TLS: {e}")))),
        }
    }

    /// Accepts iWARP within TLS, which detects what a CRC would.
    pub(super) async fn accept_iwarp(
        &self,
        stream: Box<dyn ByteStream>,
        params: ConnectParams,
    ) -> Result<Box<dyn QueuePair>, ConnectionError> {
        let params = ConnectParams { crc: false, ..params };
        accept_iwarp(Arc::clone(&self.rt), self.arena.clone(), stream, params).await
    }
}
