//! Acceptance of connections, and their distribution among the shards.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::{Either, select};
use millrace_oncrpc::serving::{Account, AdmissionError, Budget};
use millrace_rdma::{Listener, RejectReason};
use millrace_runtime::{
    ByteStream, RuntimeExt, RuntimeRef, StreamListener,
    tokio_rt::{TcpByteStream, probe_peer},
};
use tokio::sync::watch;

use crate::shard::{NewConnection, OpenStream, ShardHandle, StopSignal, stop_requested};

/// Pause after an accept that failed for lack of descriptors or memory, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections within the budget, and distributes them round-robin among the shards.
pub(crate) struct Acceptor {
    shards: Vec<ShardHandle>,
    next: AtomicUsize,
    budget: Budget,
    turned_away: Arc<AtomicU64>,
    rt: RuntimeRef,
}

/// The protocol of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// RPC with record marking: NFS and MOUNT.
    Nfs,
    Iscsi,
}

impl Protocol {
    /// The name in messages. NFS has that of the transport.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nfs => "TCP",
            Self::Iscsi => "iSCSI",
        }
    }
}

/// The reason of a rejection, with the limit that applies.
fn rejection_text(full: AdmissionError) -> &'static str {
    match full {
        AdmissionError::Server => "too many connections (limits.max_connections)",
        AdmissionError::Client => "too many connections from its address (limits.max_connections_per_client)",
    }
}

impl Acceptor {
    pub(crate) fn new(
        shards: Vec<ShardHandle>,
        budget: Budget,
        turned_away: Arc<AtomicU64>,
        rt: RuntimeRef,
    ) -> Self {
        Self { shards, next: AtomicUsize::new(0), budget, turned_away, rt }
    }

    /// Opens the account of a new connection of `peer`, if the limits permit it.
    fn account(&self, peer: SocketAddr) -> Result<Account, &'static str> {
        self.budget.open(peer.ip().into()).map_err(|full| {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            rejection_text(full)
        })
    }

    async fn pause(&self, e: &io::Error) {
        tracing::warn!("cannot accept a connection: {e}");
        self.rt.sleep(ACCEPT_PAUSE).await;
    }

    /// Passes a stream to a shard, if the limits permit it.
    fn admit_stream(&self, protocol: Protocol, peer: SocketAddr, local: SocketAddr, open: OpenStream) {
        match (self.account(peer), protocol) {
            (Ok(account), Protocol::Nfs) => {
                self.dispatch(NewConnection::Tcp { open, peer, local, account });
            }
            (Ok(account), Protocol::Iscsi) => {
                self.dispatch(NewConnection::Iscsi { open, peer, local, account });
            }
            (Err(full), _) => tracing::warn!(%peer, "{} connection refused: {full}", protocol.name()),
        }
    }

    fn dispatch(&self, connection: NewConnection) {
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        if let Some(shard) = self.shards.get(i) {
            shard.send(connection);
        }
    }
}

/// Accepts TCP connections for `protocol` until `stopped`.
pub(crate) async fn accept_tcp(
    listener: TcpListener,
    protocol: Protocol,
    acceptor: Arc<Acceptor>,
    stopped: watch::Receiver<StopSignal>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(l) => l,
        Err(e) => return tracing::error!("cannot listen: {e}"),
    };
    let mut stop = Box::pin(stop_requested(stopped));
    loop {
        let accepted = match select(Box::pin(listener.accept()), stop).await {
            Either::Left((accepted, rest)) => {
                stop = rest;
                accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)))
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let local = stream.local_addr().unwrap_or(peer);
                let open = move || {
                    probe_peer(&stream)?;
                    Ok(Box::new(TcpByteStream::new(stream)?) as Box<dyn ByteStream>)
                };
                acceptor.admit_stream(protocol, peer, local, Box::new(open));
            }
            Err(e) => acceptor.pause(&e).await,
        }
    }
}

/// Accepts NFS connections of a listener of the caller until `stopped`.
pub(crate) async fn accept_streams(
    mut listener: Box<dyn StreamListener>,
    acceptor: Arc<Acceptor>,
    stopped: watch::Receiver<StopSignal>,
) {
    let local = listener.local_addr();
    let mut stop = Box::pin(stop_requested(stopped));
    loop {
        let accepted = match select(listener.accept(), stop).await {
            Either::Left((accepted, rest)) => {
                stop = rest;
                accepted.and_then(|stream| Ok((stream.peer_addr()?, stream)))
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok((peer, stream)) => {
                acceptor.admit_stream(Protocol::Nfs, peer, local, Box::new(move || Ok(stream)));
            }
            Err(e) => acceptor.pause(&e).await,
        }
    }
}

/// Accepts RDMA connection requests until `stopped`.
pub(crate) async fn accept_rdma(
    mut listener: Box<dyn Listener>,
    acceptor: Arc<Acceptor>,
    stopped: watch::Receiver<StopSignal>,
) {
    let mut stop = Box::pin(stop_requested(stopped));
    loop {
        let accepted = match select(listener.accept(), stop).await {
            Either::Left((accepted, rest)) => {
                stop = rest;
                accepted
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok(incoming) => match acceptor.account(incoming.peer()) {
                Ok(account) => acceptor.dispatch(NewConnection::Rdma { incoming, account }),
                Err(full) => {
                    tracing::warn!(peer = %incoming.peer(), "RDMA connection refused: {full}");
                    incoming.reject(RejectReason::Busy);
                }
            },
            Err(e) => acceptor.pause(&e).await,
        }
    }
}
