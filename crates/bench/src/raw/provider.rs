//! Round trips of bare Sends over an RDMA provider: the latency without RPC.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    task::Poll,
    time::{Duration, Instant},
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, View};
use millrace_program::cpu;
use millrace_rdma::{Completion, ConnectParams, Incoming, QueuePair, SendRequest};
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};

use super::{PingPong, RawPeer, pingpong::Cost};
use crate::{At, BenchError, Figure, stats::Latencies};

/// Number of receives posted at each end.
const RECEIVES: usize = 4;
/// Size of the first Send: three numbers, as in the request over TCP.
const REQUEST_BYTES: usize = 24;

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: true })
}

fn failed(e: impl std::fmt::Display) -> BenchError {
    BenchError::Peer(format!("RDMA connection: {e}"))
}

/// A queue pair whose messages are received one at a time.
struct End {
    qp: Box<dyn QueuePair>,
    completions: Vec<Completion>,
    messages: VecDeque<Buffer>,
}

impl End {
    fn new(mut qp: Box<dyn QueuePair>, arena: &Arena, largest: usize) -> Result<Self, BenchError> {
        for _ in 0..RECEIVES {
            qp.post_receive(arena.alloc(largest)?).map_err(failed)?;
        }
        Ok(Self { qp, completions: Vec::new(), messages: VecDeque::new() })
    }

    fn send(&mut self, data: View) -> Result<(), BenchError> {
        let request = SendRequest { data: data.into(), invalidate: None, solicited: false, signaled: None };
        self.qp.post_send(request).map_err(failed)
    }

    async fn receive(&mut self) -> Result<Buffer, BenchError> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(message);
            }
            std::future::poll_fn(|cx| self.qp.poll(cx, &mut self.completions)).await.map_err(failed)?;
            self.messages.extend(self.completions.drain(..).filter_map(|c| match c {
                Completion::Received { buffer, .. } => Some(buffer),
                _ => None,
            }));
        }
    }

    /// Posts the memory of a message as a receive again.
    fn recycle(&mut self, mut buffer: Buffer, largest: usize) -> Result<(), BenchError> {
        buffer.set_len(largest);
        self.qp.post_receive(buffer).map_err(failed)
    }

    /// Closes the connection after posted work is sent.
    async fn finish(mut self) {
        self.qp.disconnect();
        while std::future::poll_fn(|cx| match self.qp.poll(cx, &mut self.completions) {
            Poll::Ready(Ok(())) => Poll::Ready(true),
            Poll::Ready(Err(_)) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        })
        .await
        {
            self.completions.clear();
        }
    }
}

/// Maximum message size of a measurement.
fn largest(ping: u64, pong: u64) -> usize {
    (ping.max(pong) as usize).max(REQUEST_BYTES)
}

impl PingPong {
    /// Runs once over an RDMA connection.
    ///
    /// # Errors
    /// The connection or the peer fails.
    pub fn run_rdma(&self, peer: &RawPeer) -> Result<Figure, BenchError> {
        self.check()?;
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(BenchError::io("create a runtime"))?;
        rt.block_on(self.run_to(peer.rdma, peer.at))
    }

    async fn run_to(&self, addr: SocketAddr, at: At) -> Result<Figure, BenchError> {
        let (arena, largest) = (arena(), largest(self.ping, self.pong));
        let rt = TokioRuntime::current();
        let provider = at.provider.to_connect(addr).map_err(failed)?.provider;
        let connect = provider.connect(rt, arena.clone(), addr, ConnectParams::default());
        let qp = connect.await.map_err(failed)?;
        let mut end = End::new(qp, &arena, 1 << 20)?;
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        for word in [self.count, self.ping, self.pong] {
            request.extend_from_slice(&word.to_be_bytes());
        }
        end.send(arena.copy_from(&request)?)?;
        let ready = end.receive().await?;
        end.recycle(ready, 1 << 20)?;

        let mut memory = arena.alloc(self.ping as usize)?;
        memory.fill(7);
        let ping = memory.freeze();
        let mut latencies = Latencies::new();
        let (start, before) = (Instant::now(), cpu::own());
        for _ in 0..self.count {
            let sent = Instant::now();
            end.send(ping.clone())?;
            let pong = end.receive().await?;
            latencies.record(sent.elapsed());
            if pong.len() as u64 != self.pong {
                return Err(BenchError::Peer(format!("unexpected reply of {} bytes", pong.len())));
            }
            end.recycle(pong, largest)?;
        }
        let (took, client) = (start.elapsed(), cpu::own() - before);
        let used = end.receive().await?;
        let nanos = used.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
        end.finish().await;
        let cost = Cost { took, client, server: Duration::from_nanos(nanos) };
        Ok(self.figure("rdma", Some(provider.name()), &latencies, cost))
    }
}

/// Serves measurements on a free port until the runtime ends. Returns the address.
pub(super) fn listen(rt: &RuntimeRef, at: &At) -> Result<SocketAddr, BenchError> {
    let any_port = SocketAddr::new(at.address, 0);
    let mut listener =
        at.choose()?.provider.listen(rt.clone(), any_port).map_err(BenchError::io("listen for RDMA"))?;
    let addr = listener.local_addr();
    let shared = rt.clone();
    rt.spawn(
        "raw-rdma",
        Box::pin(async move {
            while let Ok(incoming) = listener.accept().await {
                let rt = shared.clone();
                shared.spawn(
                    "raw-rdma-measurement",
                    Box::pin(async move {
                        if let Err(e) = answer(incoming, rt).await {
                            tracing::debug!("raw RDMA connection ended: {e}");
                        }
                    }),
                );
            }
        }),
    );
    Ok(addr)
}

async fn answer(incoming: Box<dyn Incoming>, rt: RuntimeRef) -> Result<(), BenchError> {
    let arena = arena();
    let qp = incoming.accept(rt, arena.clone(), ConnectParams::default()).await.map_err(failed)?;
    let mut end = End::new(qp, &arena, 1 << 20)?;
    let request = end.receive().await?;
    let word = |n: usize| request.get(n * 8..n * 8 + 8)?.first_chunk().map(|b| u64::from_be_bytes(*b));
    let (Some(count), Some(ping), Some(pong)) = (word(0), word(1), word(2)) else {
        return Err(BenchError::Peer("unknown request".into()));
    };
    let largest = largest(ping, pong).min(1 << 20);
    let mut memory = arena.alloc((pong as usize).clamp(1, 1 << 20))?;
    memory.fill(1);
    let pong = memory.freeze();
    end.recycle(request, largest)?;
    end.send(arena.copy_from(&[0; 8])?)?;
    let before = cpu::own();
    for _ in 0..count {
        let ping = end.receive().await?;
        end.send(pong.clone())?;
        end.recycle(ping, largest)?;
    }
    let used = (cpu::own() - before).as_nanos() as u64;
    end.send(arena.copy_from(&used.to_be_bytes())?)?;
    // The peer closes the connection after this message.
    while end.receive().await.is_ok() {}
    Ok(())
}
