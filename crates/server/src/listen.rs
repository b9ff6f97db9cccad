//! Accepting connections and spreading them over the shards.

use std::{
    collections::HashMap,
    fmt, io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::{Either, select};
use parking_lot::Mutex;
use rdma::{Listener, RejectReason};
use runtime::{
    ByteStream, RuntimeExt, RuntimeRef, StreamListener,
    tokio_rt::{TcpByteStream, probe_peer},
};
use tokio::sync::watch;

use crate::{
    limits::Limits,
    shard::{Arrival, OpenStream, ShardHandle, StopSignal, stop_requested},
};

/// Pause after an accept that failed for want of descriptors or memory, so as not to spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come in: their number is limited, in all and for each address, and each shard gets its turn.
pub(crate) struct Door {
    shards: Vec<ShardHandle>,
    next: AtomicUsize,
    open: Arc<Mutex<Open>>,
    limit: usize,
    limit_per_client: usize,
    turned_away: Arc<AtomicU64>,
    rt: RuntimeRef,
}

/// The connections that are open.
#[derive(Default)]
struct Open {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// Counts as one open connection until it is dropped.
pub(crate) struct Place {
    open: Arc<Mutex<Open>>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(n) = open.by_client.get_mut(&self.client) {
            *n -= 1;
            if *n == 0 {
                open.by_client.remove(&self.client);
            }
        }
    }
}

/// Why there is no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Server,
    Client,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "too many connections (limits.max_connections)",
            Self::Client => "too many connections from its address (limits.max_connections_per_client)",
        })
    }
}

impl Door {
    pub(crate) fn new(
        shards: Vec<ShardHandle>,
        limits: &Limits,
        turned_away: Arc<AtomicU64>,
        rt: RuntimeRef,
    ) -> Self {
        Self {
            shards,
            next: AtomicUsize::new(0),
            open: Arc::default(),
            limit: limits.max_connections,
            limit_per_client: limits.max_connections_per_client,
            turned_away,
            rt,
        }
    }

    /// A place for one more connection of `peer`, if there is one.
    fn place(&self, peer: SocketAddr) -> Result<Place, Full> {
        let client = peer.ip().to_canonical();
        let mut open = self.open.lock();
        let his = open.by_client.get(&client).copied().unwrap_or_default();
        let full = (open.all >= self.limit)
            .then_some(Full::Server)
            .or((his >= self.limit_per_client).then_some(Full::Client));
        if let Some(full) = full {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return Err(full);
        }
        open.all += 1;
        open.by_client.insert(client, his + 1);
        Ok(Place { open: Arc::clone(&self.open), client })
    }

    async fn pause(&self, e: &io::Error) {
        tracing::warn!("cannot accept a connection: {e}");
        self.rt.sleep(ACCEPT_PAUSE).await;
    }

    /// Gives a shard a TCP connection, if there is a place for it.
    fn admit_tcp(&self, peer: SocketAddr, local: SocketAddr, open: OpenStream) {
        match self.place(peer) {
            Ok(place) => self.hand_over(Arrival::Tcp { open, peer, local, place }),
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
            Ok(incoming) => match door.place(incoming.peer()) {
                Ok(place) => door.hand_over(Arrival::Rdma { incoming, place }),
                Err(full) => {
                    tracing::warn!(peer = %incoming.peer(), "RDMA connection refused: {full}");
                    incoming.reject(RejectReason::Busy);
                }
            },
            Err(e) => door.pause(&e).await,
        }
    }
}
