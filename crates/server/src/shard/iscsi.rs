//! iSCSI connections of a shard: over TCP, over RDMA with iSER, and both on one listener.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use millrace_admission::Account;
use millrace_iscsi_target::{iser::IserTarget, tcp::TcpTarget};
use millrace_rdma::{ConnectParams, ConnectionInfo, Incoming};
use millrace_rdma_providers::accept_iwarp;
use millrace_runtime::{ByteStream, timeout, tokio_rt::TcpByteStream};
use millrace_tls::{Accepted, Protocol, ServerSession, TransportSecurity};

use super::{
    OpenStream, ShardWorker,
    set_up::{AcceptedRdma, SetUp},
    stop_requested,
};

/// The first byte of a handshake record of TLS (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 22;
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
        let set_up = self.set_up(limits.login_timeout);
        BlockConnection {
            target: self.iscsi.clone(),
            iser: IserTarget { table, rt, arena, limits, stats, registration },
            params,
            peer,
            connection: self.shared.connections.fetch_add(1, Ordering::Relaxed),
            account,
            set_up,
        }
    }
}

/// The protocols that a listener for streams has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    /// iSCSI.
    Iscsi,
    /// iSCSI, and iSER over iWARP.
    IscsiOrIser,
}

impl BlockConnection {
    /// Serves a connection over RDMA.
    pub(super) async fn serve_iser(mut self, incoming: Box<dyn Incoming>) {
        let set_up = self.set_up.clone();
        let accepted = set_up.accept_rdma(incoming, self.params.clone(), &mut self.account).await;
        self.iser(accepted).await;
    }

    /// Serves a connection over TCP or iWARP; its first byte determines which, and whether it has TLS.
    pub(super) async fn serve_stream(self, open: OpenStream<TcpByteStream>, streams: Streams) {
        let Some(stream) = self.open(open) else { return };
        let first = timeout(&*self.target.rt, self.set_up.left(), stream.peek());
        let Some(first) = self.set_up.unless_cancelled(&self.account, first).await else { return };
        let (peer, stats) = (self.peer, &self.target.stats);
        match first {
            Some(Ok(Some(TLS_HANDSHAKE))) => self.serve_tls(Box::new(stream), streams).await,
            Some(Ok(Some(MPA_REQUEST))) if streams == Streams::IscsiOrIser => {
                let (rt, arena) = (Arc::clone(&self.iser.rt), self.iser.arena.clone());
                let params = ConnectParams { timeout: self.set_up.left(), ..self.params.clone() };
                let accept = accept_iwarp(rt, arena, Box::new(stream), params);
                let accepted = self.set_up.unless_cancelled(&self.account, accept).await;
                self.iser(accepted.map(|accepted| accepted.map(|qp| (qp, None)))).await;
            }
            Some(Ok(Some(byte))) if streams == Streams::Iscsi || LOGIN_REQUEST.contains(&byte) => {
                self.tcp(Box::new(stream), None).await;
            }
            Some(Ok(Some(byte))) => {
                stats.malformed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "connection closed: its first byte, {byte:#04x}, begins neither iSCSI nor iSER");
            }
            Some(Ok(None)) => tracing::debug!(%peer, "connection closed by the peer before its first byte"),
            Some(Err(e)) => tracing::debug!(%peer, "connection ended before its first byte: {e}"),
            None => {
                stats.stalled.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "connection closed: no byte within {:?}", self.set_up.limit);
            }
        }
    }

    /// Serves a connection that begins with TLS, whose client names the protocol within.
    async fn serve_tls(mut self, stream: Box<dyn ByteStream>, streams: Streams) {
        let protocols: &[_] = match streams {
            Streams::Iscsi => &[Protocol::Iscsi],
            Streams::IscsiOrIser => &[Protocol::Iscsi, Protocol::Iwarp],
        };
        let set_up = self.set_up.clone();
        let Some(accepted) = set_up.accept_tls(stream, protocols, &mut self.account).await else {
            return;
        };
        match accepted {
            Ok(Accepted { stream, session, protocol: Some(Protocol::Iwarp) }) => {
                let accept = set_up.accept_iwarp(stream, self.params.clone());
                let accepted = set_up.unless_cancelled(&self.account, accept).await;
                self.iser(accepted.map(|accepted| accepted.map(|qp| (qp, Some(session))))).await;
            }
            Ok(Accepted { stream, session, .. }) => self.tcp(stream, Some(session)).await,
            Err(e) => tracing::warn!(peer = %self.peer, "TLS handshake failed: {e}"),
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

    async fn tcp(self, stream: Box<dyn ByteStream>, session: Option<ServerSession>) {
        let Self { mut target, peer, connection, account, set_up, .. } = self;
        target.limits.login_timeout = set_up.left();
        let security = security(session.as_ref());
        tracing::info!(%peer, connection, %security, "iSCSI connection up");
        target.serve(stream, session, account, stop_requested(set_up.stopped)).await;
        tracing::info!(%peer, connection, "iSCSI connection down");
    }

    async fn iser(self, accepted: Option<AcceptedRdma>) {
        let Self { mut iser, peer, connection, account, set_up, .. } = self;
        iser.limits.login_timeout = set_up.left();
        let (qp, session) = match accepted {
            Some(Ok(accepted)) => accepted,
            Some(Err(e)) => return tracing::warn!(%peer, "iSER connection set-up failed: {e}"),
            None => return,
        };
        let ConnectionInfo { ird, ord, crc, .. } = *qp.info();
        let security = security(session.as_ref());
        tracing::info!(%peer, connection, ird, ord, crc, %security, "iSER connection up");
        iser.serve(qp, session, account, stop_requested(set_up.stopped)).await;
        tracing::info!(%peer, connection, "iSER connection down");
    }
}

fn security(session: Option<&ServerSession>) -> TransportSecurity {
    session.map_or(TransportSecurity::None, ServerSession::security)
}
