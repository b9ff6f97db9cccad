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
use millrace_admission::{Account, AdmissionError, Budget};
use millrace_rdma::{Listener, RejectReason};
use millrace_runtime::{
    ByteStream, RuntimeExt, RuntimeRef, StreamListener, canonical,
    tokio_rt::{TcpByteStream, prefer_loopback_congestion_control, probe_peer},
};
use tokio::sync::watch;

use crate::shard::{NewConnection, ShardHandle, StopSignal, stop_requested};

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

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// NFS and MOUNT.
    Nfs,
    /// iSCSI, over RDMA with iSER.
    Iscsi,
    /// iSCSI over TCP, and over iWARP with iSER.
    IscsiOrIser,
}

impl Protocol {
    /// The name in messages about streams. NFS has that of the transport.
    fn name(self) -> &'static str {
        match self {
            Self::Nfs => "TCP",
            Self::Iscsi | Self::IscsiOrIser => "iSCSI",
        }
    }

    /// The name in messages about RDMA connections.
    fn rdma_name(self) -> &'static str {
        match self {
            Self::Nfs => "RDMA",
            Self::Iscsi | Self::IscsiOrIser => "iSER",
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

    /// Passes the stream of `connection` to a shard, if the limits permit it.
    fn admit_stream(
        &self,
        protocol: Protocol,
        peer: SocketAddr,
        connection: impl FnOnce(Account) -> NewConnection,
    ) {
        match self.account(peer) {
            Ok(account) => self.dispatch(connection(account)),
            Err(full) => tracing::warn!(%peer, "{} connection refused: {full}", protocol.name()),
        }
    }

    fn dispatch(&self, connection: NewConnection) {
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        if let Some(shard) = self.shards.get(i) {
            shard.send(connection);
        }
    }
}

/// Creates a listening socket whose address can be reused immediately after a restart. That of all IPv6 addresses also
/// accepts IPv4, unless `only_v6`.
pub(crate) fn bind(addr: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    prefer_loopback_congestion_control(&socket, addr);
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
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
                accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, canonical(peer))))
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let local = stream.local_addr().map_or(peer, canonical);
                let open = move || {
                    probe_peer(&stream)?;
                    TcpByteStream::new(stream)
                };
                acceptor.admit_stream(protocol, peer, |account| match protocol {
                    Protocol::Nfs => {
                        let open = Box::new(move || Ok(Box::new(open()?) as Box<dyn ByteStream>));
                        NewConnection::Tcp { open, peer, local, account }
                    }
                    Protocol::Iscsi => NewConnection::Iscsi { open: Box::new(open), peer, account },
                    Protocol::IscsiOrIser => {
                        NewConnection::IscsiOrIser { open: Box::new(open), peer, account }
                    }
                });
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
                accepted.and_then(|stream| Ok((canonical(stream.peer_addr()?), stream)))
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok((peer, stream)) => {
                let open = Box::new(move || Ok(stream));
                acceptor.admit_stream(Protocol::Nfs, peer, |account| NewConnection::Tcp {
                    open,
                    peer,
                    local,
                    account,
                });
            }
            Err(e) => acceptor.pause(&e).await,
        }
    }
}

/// Accepts RDMA connection requests for `protocol` until `stopped`.
pub(crate) async fn accept_rdma(
    mut listener: Box<dyn Listener>,
    protocol: Protocol,
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
                Ok(account) => acceptor.dispatch(match protocol {
                    Protocol::Nfs => NewConnection::Rdma { incoming, account },
                    Protocol::Iscsi | Protocol::IscsiOrIser => NewConnection::Iser { incoming, account },
                }),
                Err(full) => {
                    let name = protocol.rdma_name();
                    tracing::warn!(peer = %incoming.peer(), "{name} connection refused: {full}");
                    incoming.reject(RejectReason::Busy);
                }
            },
            Err(e) => acceptor.pause(&e).await,
        }
    }
}
