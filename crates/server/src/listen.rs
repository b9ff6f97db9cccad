//! Accepting connections and spreading them over the shards.

use std::{
    io,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures::future::{Either, select};
use rdma::{Listener, RejectReason};
use tokio::sync::watch;

use crate::shard::{Arrival, ShardHandle, StopSignal, stop_requested};

/// Pause after an accept that failed for want of descriptors or memory, so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come in: their number is limited, and each shard gets its turn.
pub(crate) struct Door {
    shards: Vec<ShardHandle>,
    next: AtomicUsize,
    open: Arc<AtomicUsize>,
    limit: usize,
    turned_away: Arc<AtomicU64>,
}

/// Counts as one open connection until it is dropped.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Door {
    pub(crate) fn new(shards: Vec<ShardHandle>, limit: usize, turned_away: Arc<AtomicU64>) -> Self {
        Self { shards, next: AtomicUsize::new(0), open: Arc::default(), limit, turned_away }
    }

    /// A place for one more connection, if there is one.
    fn place(&self) -> Option<Place> {
        let taken =
            self.open.try_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < self.limit).then_some(n + 1));
        if taken.is_err() {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Place(Arc::clone(&self.open)))
    }

    fn hand_over(&self, arrival: Arrival) {
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        if let Some(shard) = self.shards.get(i) {
            shard.send(arrival);
        }
    }
}

async fn pause(e: &io::Error) {
    tracing::warn!("cannot accept a connection: {e}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Accepts TCP connections until `stopped`.
pub(crate) async fn accept_tcp(
    listener: TcpListener,
    door: Arc<Door>,
    stopped: watch::Receiver<StopSignal>,
    _alive: mpsc::SyncSender<()>,
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
            Ok((stream, peer)) => match door.place() {
                Some(place) => door.hand_over(Arrival::Tcp { stream, peer, place }),
                None => tracing::warn!(%peer, "TCP connection refused: too many connections"),
            },
            Err(e) => pause(&e).await,
        }
    }
}

/// Accepts RDMA connection requests until `stopped`.
pub(crate) async fn accept_rdma(
    mut listener: Box<dyn Listener>,
    door: Arc<Door>,
    stopped: watch::Receiver<StopSignal>,
    _alive: mpsc::SyncSender<()>,
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
            Ok(incoming) => match door.place() {
                Some(place) => door.hand_over(Arrival::Rdma { incoming, place }),
                None => {
                    tracing::warn!(peer = %incoming.peer(), "RDMA connection refused: too many connections");
                    incoming.reject(RejectReason::Busy);
                }
            },
            Err(e) => pause(&e).await,
        }
    }
}
