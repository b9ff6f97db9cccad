//! Resources that the connections of a server or shard share.

use std::{
    fmt::Display,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use millrace_buffer::Arena;
use millrace_rdma::ConnectionError;
use millrace_runtime::RuntimeRef;
use millrace_tls::{ServerSession, TransportSecurity};

use crate::{
    config::ConnectionLimits,
    end::End,
    stats::{TargetStats, add, count},
    table::TargetTable,
};

/// Resources that the connections of a server or shard share, over each transport, and the session of TLS of one of them.
pub(crate) struct Service {
    pub(crate) table: Arc<TargetTable>,
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) limits: ConnectionLimits,
    pub(crate) stats: Arc<TargetStats>,
    pub(crate) tls: Option<ServerSession>,
}

impl Service {
    /// The protection of the connection.
    pub(crate) fn security(&self) -> TransportSecurity {
        self.tls.as_ref().map_or(TransportSecurity::None, ServerSession::security)
    }

    /// Ready when the client's certificate is not trusted any more.
    pub(crate) fn poll_untrusted(&self, cx: &mut Context<'_>) -> Poll<End> {
        match &self.tls {
            Some(tls) => tls.poll_refused(cx).map(|why| End::Untrusted(why.clone())),
            None => Poll::Pending,
        }
    }

    /// Counts a connection that begins.
    pub(crate) fn opened(&self) {
        count(&self.stats.connections);
        count(&self.stats.open);
    }

    /// Counts and logs the end of a connection that received and sent these numbers of bytes.
    pub(crate) fn ended(&self, end: &End, peer: Option<SocketAddr>, received: u64, sent: u64) {
        add(&self.stats.received, received);
        add(&self.stats.sent, sent);
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
        match end {
            End::Closed => tracing::debug!(?peer, "connection closed"),
            End::Stalled => {
                count(&self.stats.stalled);
                tracing::warn!(?peer, "connection closed: the initiator does not answer, or is too slow");
            }
            End::Untrusted(why) => tracing::info!(?peer, "connection closed: {why}"),
            End::Stream(e) => tracing::debug!(?peer, "connection ended: {e}"),
            End::Invalid(e) => self.malformed(peer, e),
            End::QueuePair(e @ ConnectionError::PeerMisbehaved(_)) => self.malformed(peer, e),
            End::QueuePair(e) => tracing::debug!(?peer, "connection ended: {e}"),
            End::Message(e) => self.malformed(peer, e),
            End::Violation(e) => self.malformed(peer, e),
            End::Refused(e) => {
                count(&self.stats.logins_refused);
                tracing::warn!(?peer, "login refused: {e}");
            }
        }
    }

    fn malformed(&self, peer: Option<SocketAddr>, why: &dyn Display) {
        count(&self.stats.malformed);
        tracing::warn!(?peer, "connection closed: {why}");
    }
}
