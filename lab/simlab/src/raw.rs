//! Plain RDMA operations between two simulated hosts, without RPC.

use std::{future::poll_fn, net::SocketAddr};

use millrace_bench::{BenchError, Figure};
use millrace_buffer::{Arena, ArenaConfig, Buffer, OutOfMemory, SPAN_BYTES, Views};
use millrace_program::units::mb_per_s;
use millrace_rdma::{
    Access, Completion, ConnectParams, Memory, MemoryRegion, QueuePair, ReadRequest, Segment, SendRequest,
    WorkId, WriteRequest,
};
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::{RuntimeRef, virtual_time::VirtualTime};

use crate::Hosts;

/// A kind of RDMA operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
}

/// A stream of RDMA Writes or Reads of one size on one connection, as perftest's `ib_write_bw` and
/// `ib_read_bw` produce it (WAN 2008, section 2.2). The programs poll, so that there are no interrupts, and
/// no RPC processing follows. The number in flight is limited by the adapters' send queue (Writes) or
/// outstanding reads (Reads).
#[derive(Debug, Clone)]
pub struct Raw {
    /// The machines.
    pub profile: Profile,
    /// The kind of operation.
    pub operation: Operation,
    /// Bytes of a message, 1 to 64 MiB. An RDMA Write of more than 4 MiB is posted as several work requests.
    pub message: usize,
    /// Number of messages.
    pub count: usize,
}

/// Bytes of memory for both ends.
const MEMORY: usize = 1 << 30;
/// Bytes of the largest message.
const LARGEST: usize = 64 << 20;

/// Lengths of the contiguous pieces of a message.
fn pieces(message: usize) -> impl Iterator<Item = usize> {
    (0..message).step_by(SPAN_BYTES).map(move |at| SPAN_BYTES.min(message - at))
}

fn failed(e: impl std::fmt::Display) -> BenchError {
    BenchError::Peer(format!("simulated RDMA connection: {e}"))
}

impl Raw {
    /// Runs the stream. The measured time ends when the last Read completes, or when a Send after the last
    /// Write is received.
    ///
    /// # Errors
    /// When there is no message, or it is too large.
    pub fn run(&self) -> Result<Figure, BenchError> {
        if !(1..=LARGEST).contains(&self.message) || self.count == 0 {
            return Err(BenchError::Parameter(format!(
                "{} messages of {} bytes; choose at least one message of 1 to {LARGEST} bytes",
                self.count, self.message
            )));
        }
        let mut profile = self.profile.clone();
        (profile.host.interrupt_ns, profile.host.message_ns, profile.adapter.segment_bytes) = (0, 0, 0);
        let time = VirtualTime::new(1);
        let hosts = Hosts::new(World::new(&time, profile), 1);
        let stuck = |e| BenchError::Client(format!("the simulation cannot continue: {e}"));
        time.block_on(self.stream(&hosts, time.runtime())).map_err(stuck)?
    }

    async fn stream(&self, hosts: &Hosts, rt: RuntimeRef) -> Result<Figure, BenchError> {
        let arena = Arena::new(ArenaConfig { limit: MEMORY, huge_pages: false });
        let (mut client, mut server) = connect(hosts, &rt, &arena).await?;
        let buffers =
            || pieces(self.message).map(|n| arena.alloc(n)).collect::<Result<Vec<_>, OutOfMemory>>();
        let (memory, access) = match self.operation {
            Operation::Read => {
                let views = buffers()?.into_iter().map(Buffer::freeze).collect();
                (Memory::Shared(views), Access::RemoteRead)
            }
            Operation::Write => {
                (Memory::Owned(arena.alloc(self.message.min(SPAN_BYTES))?), Access::RemoteWrite)
            }
        };
        let exposed =
            MemoryRegion::new(server.domain(), memory).expose(access).map_err(|e| failed(e.reason))?;
        let began = rt.now();
        match self.operation {
            Operation::Write => {
                let data = Views::from(arena.alloc(self.message.min(SPAN_BYTES))?.freeze());
                server.post_receive(arena.alloc(8)?).map_err(failed)?;
                for n in (0..self.count).flat_map(|_| pieces(self.message)) {
                    let to = Segment { length: n as u32, ..exposed.segment() };
                    let write = WriteRequest { data: data.slice(0, n), to };
                    client.post_write(write).map_err(failed)?;
                }
                let data = Views::from(arena.copy_from(&[0; 8])?);
                let end = SendRequest { data, invalidate: None, solicited: false, signaled: None };
                client.post_send(end).map_err(failed)?;
                completions(&mut *server).await?;
            }
            Operation::Read => {
                let window = usize::from(client.info().ord).saturating_mul(2).min(self.count);
                let read = |client: &mut Box<dyn QueuePair>, sink| {
                    let request = ReadRequest { id: WorkId(0), from: exposed.segment(), sink };
                    client.post_read(request).map_err(failed)
                };
                for _ in 0..window {
                    read(&mut client, buffers()?)?;
                }
                let (mut posted, mut done) = (window, 0);
                while done < self.count {
                    for c in completions(&mut *client).await? {
                        let Completion::Read { sink, .. } = c else { continue };
                        done += 1;
                        if posted < self.count {
                            posted += 1;
                            read(&mut client, sink)?;
                        }
                    }
                }
            }
        }
        Ok(self.figure(rt.now().duration_since(began)))
    }

    fn figure(&self, took: std::time::Duration) -> Figure {
        Figure {
            workload: format!("simulated raw RDMA on {}", self.profile.name),
            test: match self.operation {
                Operation::Write => "RDMA Write".into(),
                Operation::Read => "RDMA Read".into(),
            },
            proto: "rdma".into(),
            provider: Some("sim".into()),
            threads: 1,
            client_hosts: Some(1),
            record: self.message as u64,
            outstanding: match self.operation {
                Operation::Write => self.profile.adapter.send_queue as usize,
                Operation::Read => self.profile.adapter.outstanding_reads.into(),
            },
            mb_per_s: Some(mb_per_s((self.message * self.count) as u64, took)),
            ops_per_s: Some(self.count as f64 / took.as_secs_f64().max(1e-9)),
            ..Figure::default()
        }
    }
}

/// Waits for the next completions.
async fn completions(qp: &mut dyn QueuePair) -> Result<Vec<Completion>, BenchError> {
    let mut out = Vec::new();
    poll_fn(|cx| qp.poll(cx, &mut out)).await.map_err(failed)?;
    Ok(out)
}

type Ends = (Box<dyn QueuePair>, Box<dyn QueuePair>);

/// Connects the first client host to the server.
async fn connect(hosts: &Hosts, rt: &RuntimeRef, arena: &Arena) -> Result<Ends, BenchError> {
    let (server, params) =
        (hosts.server(), ConnectParams { ord: u16::MAX, ird: u16::MAX, ..ConnectParams::default() });
    let any_port = SocketAddr::new(Hosts::SERVER, 0);
    let mut listener = server.listen(RuntimeRef::clone(rt), any_port).map_err(failed)?;
    let to = listener.local_addr();
    let connect = hosts.client(0).connect(RuntimeRef::clone(rt), arena.clone(), to, params.clone());
    let accept = async {
        let incoming = listener.accept().await.map_err(failed)?;
        incoming.accept(RuntimeRef::clone(rt), arena.clone(), params).await.map_err(failed)
    };
    futures::try_join!(async { connect.await.map_err(failed) }, accept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_slows_small_messages_most_and_reads_more_than_writes() {
        let infinihost = Profile::named("wan-infinihost").unwrap();
        let run = |miles, operation, message, count| {
            let profile = infinihost.clone().at_distance(miles).unwrap();
            Raw { profile, operation, message, count }.run().unwrap().mb_per_s.unwrap()
        };
        // Measurements without NFS, from which the profile was set (WAN 2008, section 2.2).
        for (miles, operation, message, count, measured) in [
            (0.2, Operation::Write, 4096, 10_000, 925.0),
            (0.2, Operation::Read, 4096, 2000, 223.0),
            (1400.0, Operation::Read, 4096, 200, 0.59),
            (0.2, Operation::Read, 1 << 20, 50, 934.0),
            (0.2, Operation::Write, 16 << 20, 10, 934.0),
            (1400.0, Operation::Write, 16 << 20, 40, 934.0),
            (1400.0, Operation::Read, 16 << 20, 40, 934.0),
        ] {
            let ours = run(miles, operation, message, count);
            assert!((ours / measured - 1.0).abs() < 0.04, "{operation:?} of {message} at {miles}: {ours}");
        }
    }

    #[test]
    fn invalid_messages_are_refused() {
        let profile = Profile::named("wan-infinihost").unwrap();
        for (message, count) in [(0, 1), (LARGEST + 1, 1), (4096, 0)] {
            let raw = Raw { profile: profile.clone(), operation: Operation::Read, message, count };
            assert!(matches!(raw.run(), Err(BenchError::Parameter(_))));
        }
    }
}
