//! Accepting connections and spreading them over the shards.

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

use crate::shard::{Arrival, OpenStream, ShardHandle, StopSignal, stop_requested};

/// Pause after an accept that failed for lack of descriptors or memory, so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come in: their number is limited by the budget, and each shard gets its turn.
pub(crate) struct Door {
    shards: Vec<ShardHandle>,
    next: AtomicUsize,
    budget: Budget,
    turned_away: Arc<AtomicU64>,
    rt: RuntimeRef,
}

/// Why a connection is refused, and what to change.
fn refusal(full: AdmissionError) -> &'static str {
    match full {
        AdmissionError::Server => "too many connections (limits.max_connections)",
        AdmissionError::Client => "too many connections from its address (limits.max_connections_per_client)",
    }
}

impl Door {
    pub(crate) fn new(
        shards: Vec<ShardHandle>,
        budget: Budget,
        turned_away: Arc<AtomicU64>,
        rt: RuntimeRef,
    ) -> Self {
        Self { shards, next: AtomicUsize::new(0), budget, turned_away, rt }
    }

    /// The account of one more connection of `peer`, if there may be one.
    fn account(&self, peer: SocketAddr) -> Result<Account, &'static str> {
        self.budget.open(peer.ip().into()).map_err(|full| {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            refusal(full)
        })
    }

    async fn pause(&self, e: &io::Error) {
        tracing::warn!("cannot accept a connection: {e}");
        self.rt.sleep(ACCEPT_PAUSE).await;
    }

    /// Gives a shard a TCP connection, if there may be one more.
    fn admit_tcp(&self, peer: SocketAddr, local: SocketAddr, open: OpenStream) {
        match self.account(peer) {
            Ok(account) => self.hand_over(Arrival::Tcp { open, peer, local, account }),
            Err(full) => tracing::warn!(%peer, "TCP connection refused: {full}"),
        }
    }

    fn hand_over(&self, arrival: Arrival) {
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        if let Some(shard) = self.shards.get(i) {
            shard.send(arrival);
        }
    }
}

/// Accepts TCP connections until `stopped`.
pub(crate) async fn accept_tcp(listener: TcpListener, door: Arc<Door>, stopped: watch::Receiver<StopSignal>) {
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
                door.admit_tcp(peer, local, Box::new(open));
            }
            Err(e) => door.pause(&e).await,
        }
    }
}

/// Accepts what comes to a listener of the caller's until `stopped`.
pub(crate) async fn accept_streams(
    mut listener: Box<dyn StreamListener>,
    door: Arc<Door>,
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
            Ok((peer, stream)) => door.admit_tcp(peer, local, Box::new(move || Ok(stream))),
            Err(e) => door.pause(&e).await,
        }
    }
}

/// Accepts RDMA connection requests until `stopped`.
pub(crate) async fn accept_rdma(
    mut listener: Box<dyn Listener>,
    door: Arc<Door>,
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
            Ok(incoming) => match door.account(incoming.peer()) {
                Ok(account) => door.hand_over(Arrival::Rdma { incoming, account }),
                Err(full) => {
                    tracing::warn!(peer = %incoming.peer(), "RDMA connection refused: {full}");
                    incoming.reject(RejectReason::Busy);
                }
            },
            Err(e) => door.pause(&e).await,
        }
    }
}
