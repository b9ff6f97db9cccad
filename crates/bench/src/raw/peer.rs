//! The peer process.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use millrace_program::cpu;
use millrace_runtime::tokio_rt::{TokioRuntime, prefer_loopback_congestion_control};

use super::{Request, provider, socket_settings, stream::records};
use crate::{At, BenchError};

/// Listens on free ports of an address, prints `raw-peer rdma=ADDRESS tcp=ADDRESS` on standard output, and
/// executes requests of all connections until its standard input ends (with the parent process).
///
/// # Errors
/// A port cannot be bound.
pub fn serve_peer(at: &At) -> Result<(), BenchError> {
    let listener = TcpListener::bind((at.address, 0)).map_err(BenchError::io("listen for TCP"))?;
    let addr = listener.local_addr().map_err(BenchError::io("get the listening address"))?;
    prefer_loopback_congestion_control(&listener, addr);
    let executor = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(BenchError::io("create a runtime"))?;
    let _guard = executor.enter();
    let rdma = provider::listen(&TokioRuntime::from_handle(executor.handle().clone()), at)?;
    println!("raw-peer rdma={rdma} tcp={addr}");
    std::thread::spawn(move || {
        for s in listener.incoming().flatten() {
            std::thread::spawn(move || {
                if let Err(e) = serve_requests(s) {
                    tracing::debug!("raw connection ended: {e}");
                }
            });
        }
    });
    let mut rest = Vec::new();
    drop(std::io::stdin().read_to_end(&mut rest));
    Ok(())
}

fn serve_requests(mut s: TcpStream) -> Result<(), BenchError> {
    socket_settings(&s)?;
    let io = || BenchError::io("serve a raw connection");
    let mut request = [0; Request::BYTES];
    while s.read_exact(&mut request).is_ok() {
        match Request::decode(&request) {
            Some(Request::Stream { total, working_set }) => {
                let used = receive(&mut s, total, working_set)?;
                s.write_all(&used.to_be_bytes()).map_err(io())?;
            }
            Some(Request::PingPong { count, ping, pong }) => {
                let (mut request, answer) = (vec![0; ping as usize], vec![1; pong as usize]);
                let before = cpu::own();
                for _ in 0..count {
                    s.read_exact(&mut request).map_err(io())?;
                    s.write_all(&answer).map_err(io())?;
                }
                let used = (cpu::own() - before).as_nanos() as u64;
                s.write_all(&used.to_be_bytes()).map_err(io())?;
            }
            Some(Request::Exchange(exchange)) => {
                let used = exchange.respond(&mut s)?;
                s.write_all(&used.to_be_bytes()).map_err(io())?;
            }
            None => return Err(BenchError::Peer("unknown request".into())),
        }
    }
    Ok(())
}

/// Receives `total` bytes, and returns the processor time in nanoseconds. One byte requests the sender to
/// start after the memory is allocated.
fn receive(s: &mut TcpStream, total: u64, working_set: u64) -> Result<u64, BenchError> {
    let io = || BenchError::io("receive the stream");
    let (_arena, mut records) = records(working_set)?;
    s.write_all(&[1]).map_err(io())?;
    let before = cpu::own();
    let mut left = total;
    'all: loop {
        for r in &mut records {
            let mut at = 0;
            while at < r.len() {
                if left == 0 {
                    break 'all;
                }
                let n = s.read(&mut r[at..]).map_err(io())?;
                if n == 0 {
                    return Err(BenchError::Peer("the stream ended early".into()));
                }
                at += n;
                left -= n as u64;
            }
        }
    }
    Ok((cpu::own() - before).as_nanos() as u64)
}
