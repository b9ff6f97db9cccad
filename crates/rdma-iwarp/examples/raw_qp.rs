//! Compares the throughput of one iWARP connection with that of a TCP stream.
//!
//! One end writes records of 1 MiB into the exposed regions of the other, each followed by a small Send, with
//! 8 credits (as for NFS READ); then the same amount is sent over a TCP stream. Both use loopback, memory
//! that is not in the processor cache, and one thread for each end.
//!
//! ```text
//! cargo run --release -p millrace-rdma-iwarp --example raw_qp [GIB] [crc] [frame=BYTES]
//! ```

#![allow(unsafe_code)] // Reads the processor time of a thread.

use std::{
    future::poll_fn,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Instant,
};

use millrace_buffer::{Arena, ArenaConfig, View, Views};
use millrace_rdma::{
    Access, Completion, ConnectParams, Counters, ExposedRegion, Memory, MemoryRegion, Provider, QueuePair,
    Segment, SendRequest, SteeringTag, WorkId, WriteRequest,
};
use millrace_rdma_iwarp::Iwarp;
use millrace_runtime::tokio_rt::{TokioRuntime, prefer_loopback_congestion_control, run_shard};

type Error = Box<dyn std::error::Error + Send + Sync>;

const RECORD: usize = 1 << 20;
const CREDITS: usize = 8;
/// Number of distinct records that the sender sends in rotation; more than fit into the processor caches.
const COLD_RECORDS: usize = 256;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let gib: f64 = args.iter().find_map(|a| a.parse().ok()).unwrap_or(4.0);
    let records = (gib * 1024.0) as usize;
    let params = ConnectParams {
        crc: args.iter().any(|a| a == "crc"),
        max_frame: args.iter().find_map(|a| a.strip_prefix("frame=")?.parse().ok()),
        ..ConnectParams::default()
    };
    println!("{:>10} {:>8} {:>12} {:>12} {:>10}", "", "GB/s", "sender s/GB", "receiver", "direct");
    for _ in 0..3 {
        let tcp = tcp(records)?;
        let qp = iwarp(records, &params)?;
        report("tcp", &tcp, records);
        report("iwarp", &qp, records);
        println!("     ratio {:8.2}", tcp.seconds / qp.seconds);
    }
    Ok(())
}

/// Result of one run.
struct Run {
    seconds: f64,
    sender_cpu: f64,
    receiver_cpu: f64,
    receiver: Counters,
}

fn report(name: &str, run: &Run, records: usize) {
    let gb = (records * RECORD) as f64 / 1e9;
    let c = run.receiver;
    let direct = c.placed_directly as f64 / c.tagged_bytes_in.max(1) as f64;
    println!(
        "{name:>10} {:8.2} {:12.3} {:12.3} {:9.1}% {:6.2} reads and writes per record",
        gb / run.seconds,
        run.sender_cpu / gb,
        run.receiver_cpu / gb,
        100.0 * direct,
        c.syscalls as f64 / records as f64,
    );
}

/// CPU time of this thread in seconds.
fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes to `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 1 << 30, huge_pages: true })
}

fn cold_records(arena: &Arena) -> Result<Vec<View>, Error> {
    (0..COLD_RECORDS)
        .map(|i| {
            let mut b = arena.alloc(RECORD)?;
            b.fill(i as u8);
            Ok(b.freeze())
        })
        .collect()
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// A TCP stream: blocking sockets, one write and the minimum number of reads per record.
fn tcp(records: usize) -> Result<Run, Error> {
    let listener = TcpListener::bind(loopback())?;
    let addr = listener.local_addr()?;
    prefer_loopback_congestion_control(&listener, addr);
    let sender = thread::spawn(move || -> Result<f64, Error> {
        let source = cold_records(&arena())?;
        let mut s = TcpStream::connect(addr)?;
        prefer_loopback_congestion_control(&s, addr);
        let before = cpu();
        for i in 0..records {
            s.write_all(&source[i % COLD_RECORDS])?;
        }
        Ok(cpu() - before)
    });
    let (mut s, _) = listener.accept()?;
    let arena = arena();
    let mut sinks = (0..CREDITS).map(|_| arena.alloc(RECORD)).collect::<Result<Vec<_>, _>>()?;
    sinks.iter_mut().for_each(|s| s.fill(1));
    s.read_exact(&mut sinks[0])?; // The sender is ready after the first record.
    let (began, before) = (Instant::now(), cpu());
    for i in 1..records {
        s.read_exact(&mut sinks[i % CREDITS])?;
    }
    let (seconds, receiver_cpu) = (began.elapsed().as_secs_f64(), cpu() - before);
    let sender_cpu = sender.join().map_err(|_| "sender failed")??;
    Ok(Run { seconds, sender_cpu, receiver_cpu, receiver: Counters::default() })
}

fn iwarp(records: usize, params: &ConnectParams) -> Result<Run, Error> {
    let (address, addr) = mpsc::channel();
    let p = params.clone();
    let sender = thread::spawn(move || -> Result<f64, Error> {
        run_shard(async {
            let rt = TokioRuntime::current();
            let mut listener = Iwarp::new().listen(rt.clone(), loopback())?;
            address.send(listener.local_addr())?;
            let arena = arena();
            let qp = listener.accept().await?.accept(rt, arena.clone(), p).await?;
            write_records(qp, arena).await
        })?
    });
    let addr = addr.recv()?;
    let run = run_shard(async {
        let rt = TokioRuntime::current();
        let arena = arena();
        let qp = Iwarp::new().connect(rt, arena.clone(), addr, params.clone()).await?;
        ask_for_records(qp, arena, records).await
    })??;
    let sender_cpu = sender.join().map_err(|_| "sender failed")??;
    Ok(Run { sender_cpu, ..run })
}

/// Answers each Send, which names a segment, with a Write to it and a Send.
async fn write_records(mut qp: Box<dyn QueuePair>, arena: Arena) -> Result<f64, Error> {
    let source = cold_records(&arena)?;
    for _ in 0..2 * CREDITS {
        qp.post_receive(arena.alloc(512)?)?;
    }
    let reply = arena.copy_from(&[0; 100])?;
    let (mut out, mut next, before) = (Vec::new(), 0, cpu());
    while poll_fn(|cx| qp.poll(cx, &mut out)).await.is_ok() {
        for c in out.drain(..) {
            let Completion::Received { mut buffer, .. } = c else { continue };
            let handle = SteeringTag(u32::from_be_bytes(buffer[..4].try_into()?));
            buffer.set_len(512);
            qp.post_receive(buffer)?;
            let to = Segment { handle, length: RECORD as u32, offset: 0 };
            qp.post_write(WriteRequest { data: source[next % COLD_RECORDS].clone().into(), to })?;
            qp.post_send(plain(reply.clone().into()))?;
            next += 1;
        }
    }
    Ok(cpu() - before)
}

fn plain(data: Views) -> SendRequest {
    SendRequest { data, invalidate: None, solicited: false, signaled: None::<WorkId> }
}

/// Requests records, with `CREDITS` requests in flight.
async fn ask_for_records(mut qp: Box<dyn QueuePair>, arena: Arena, records: usize) -> Result<Run, Error> {
    let mut exposed: std::collections::VecDeque<ExposedRegion> = Default::default();
    let mut idle = (0..CREDITS).map(|_| arena.alloc(RECORD)).collect::<Result<Vec<_>, _>>()?;
    idle.iter_mut().for_each(|b| b.fill(1));
    for _ in 0..CREDITS {
        qp.post_receive(arena.alloc(512)?)?;
    }
    let (mut asked, mut done, mut out) = (0, 0, Vec::new());
    let (mut began, mut before) = (Instant::now(), cpu());
    while done < records {
        while asked < records
            && let Some(memory) = idle.pop()
        {
            let region = MemoryRegion::new(qp.domain(), Memory::Owned(memory)).expose(Access::RemoteWrite)?;
            let mut call = arena.alloc(100)?;
            call[..4].copy_from_slice(&region.segment().handle.0.to_be_bytes());
            exposed.push_back(region);
            qp.post_send(plain(call.freeze().into()))?;
            asked += 1;
        }
        poll_fn(|cx| qp.poll(cx, &mut out)).await?;
        for c in out.drain(..) {
            let Completion::Received { mut buffer, .. } = c else { continue };
            let region = exposed.pop_front().and_then(ExposedRegion::revoke);
            let Some(Memory::Owned(memory)) = region.map(MemoryRegion::into_memory) else { continue };
            idle.push(memory);
            buffer.set_len(512);
            qp.post_receive(buffer)?;
            done += 1;
            if done == 1 {
                (began, before) = (Instant::now(), cpu()); // The sender is ready after the first record.
            }
        }
    }
    let (seconds, receiver_cpu) = (began.elapsed().as_secs_f64(), cpu() - before);
    Ok(Run { seconds, sender_cpu: 0.0, receiver_cpu, receiver: qp.counters() })
}
