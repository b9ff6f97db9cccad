//! iSCSI connections of a shard: over TCP, over RDMA with iSER, and both on one listener.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use millrace_admission::Account;
use millrace_iscsi_target::{iser::IserTarget, tcp::TcpTarget};
use millrace_rdma::{ConnectParams, ConnectionError, ConnectionInfo, Incoming, QueuePair};
use millrace_rdma_providers::accept_iwarp;
use millrace_runtime::{timeout, tokio_rt::TcpByteStream};

use super::{OpenStream, ShardWorker, set_up::SetUp, stop_requested};

/// The first byte of an MPA request, which begins with `MPA ID Req Frame` (RFC 5044, 7.1.1).
const MPA_REQUEST: u8 = b'M';
/// The first byte of a Login Request, with and without the I bit, which is required (RFC 7143, 11.12).
const LOGIN_REQUEST: [u8; 2] = [0x43, 0x03];

/// A new iSCSI connection.
pub(super) struct BlockConnection {
    target: TcpTarget,
    iser: IserTarget,
    params: ConnectParams,
    peer: SocketAddr,
    connection: u64,
    account: Account,
    set_up: SetUp,
}

impl ShardWorker {
    /// A connection of `peer` to the targets.
    pub(super) fn block(&self, peer: SocketAddr, account: Account) -> BlockConnection {
        let TcpTarget { table, rt, arena, limits, stats } = self.iscsi.clone();
        let registration = Arc::clone(&self.shared.registration);
        let params = IserTarget::connect_params(ConnectParams {
            crc: self.shared.config.crc,
            timeout: limits.login_timeout,
            ..ConnectParams::default()
        });
        BlockConnection {
            target: self.iscsi.clone(),
            iser: IserTarget { table, rt, arena, limits, stats, registration },
            params,
            peer,
            connection: self.shared.connections.fetch_add(1, Ordering::Relaxed),
            account,
            set_up: self.set_up(),
        }
    }
}

impl BlockConnection {
    /// Serves a connection over TCP.
    pub(super) async fn serve_tcp(self, open: OpenStream<TcpByteStream>) {
        if let Some(stream) = self.open(open) {
            self.tcp(stream).await;
        }
    }

    /// Serves a connection over RDMA.
    pub(super) async fn serve_iser(self, incoming: Box<dyn Incoming>) {
        let (rt, arena) = (Arc::clone(&self.iser.rt), self.iser.arena.clone());
        let accept = incoming.accept(rt, arena, self.params.clone());
        self.iser(accept).await;
    }

    /// Serves a connection over TCP or iWARP; its first byte determines which.
    pub(super) async fn serve_either(self, open: OpenStream<TcpByteStream>) {
        let Some(stream) = self.open(open) else { return };
        let limit = self.target.limits.login_timeout;
        let first = timeout(&*self.target.rt, limit, stream.peek());
        let Some(first) = self.set_up.unless_cancelled(&self.account, first).await else { return };
        let (peer, stats) = (self.peer, &self.target.stats);
        match first {
            Some(Ok(Some(MPA_REQUEST))) => {
                let (rt, arena) = (Arc::clone(&self.iser.rt), self.iser.arena.clone());
                let accept = accept_iwarp(rt, arena, Box::new(stream), self.params.clone());
                self.iser(accept).await;
            }
            Some(Ok(Some(byte))) if LOGIN_REQUEST.contains(&byte) => self.tcp(stream).await,
            Some(Ok(Some(byte))) => {
                stats.malformed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "connection closed: its first byte, {byte:#04x}, begins neither iSCSI nor iSER");
            }
            Some(Ok(None)) => tracing::debug!(%peer, "connection closed by the peer before its first byte"),
            Some(Err(e)) => tracing::debug!(%peer, "connection ended before its first byte: {e}"),
            None => {
                stats.stalled.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "connection closed: no byte within {limit:?}");
            }
        }
    }

    fn open(&self, open: OpenStream<TcpByteStream>) -> Option<TcpByteStream> {
        match open() {
            Ok(stream) => Some(stream),
            Err(e) => {
                tracing::warn!(peer = %self.peer, "iSCSI connection failed: {e}");
                None
            }
        }
    }

    async fn tcp(self, stream: TcpByteStream) {
        let Self { target, peer, connection, account, set_up, .. } = self;
        tracing::info!(%peer, connection, "iSCSI connection up");
        target.serve(Box::new(stream), account, stop_requested(set_up.stopped)).await;
        tracing::info!(%peer, connection, "iSCSI connection down");
    }

    async fn iser(self, accept: impl Future<Output = Result<Box<dyn QueuePair>, ConnectionError>>) {
        let Self { iser, peer, connection, account, set_up, .. } = self;
        let qp = match set_up.unless_cancelled(&account, accept).await {
            Some(Ok(qp)) => qp,
            Some(Err(e)) => return tracing::warn!(%peer, "iSER connection set-up failed: {e}"),
            None => return,
        };
        let ConnectionInfo { ird, ord, crc, .. } = *qp.info();
        tracing::info!(%peer, connection, ird, ord, crc, "iSER connection up");
        iser.serve(qp, account, stop_requested(set_up.stopped)).await;
        tracing::info!(%peer, connection, "iSER connection down");
    }
}
