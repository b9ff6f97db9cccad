//! Tests of the provider over TCP sockets.

use std::{future::poll_fn, net::SocketAddr};

use millrace_rdma::{
    Access, Memory, MemoryRegion, Provider, ReadRequest, RejectReason, Segment, SteeringTag, WriteRequest,
};
use millrace_runtime::tokio_rt::TokioRuntime;

use super::*;
use crate::Iwarp;

const RECORD: usize = 1 << 20;

fn block_on<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

fn any_port(v6: bool) -> SocketAddr {
    if v6 { SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0)) } else { SocketAddr::from(([127, 0, 0, 1], 0)) }
}

async fn connected(v6: bool, params: &ConnectParams) -> (Qp, Qp) {
    let rt = TokioRuntime::current();
    let mut listener = Iwarp::new().listen(Arc::clone(&rt), any_port(v6)).unwrap();
    let connect = Iwarp::new().connect(Arc::clone(&rt), arena(), listener.local_addr(), params.clone());
    let accept = async { listener.accept().await.unwrap().accept(rt, arena(), params.clone()).await };
    let (a, b) = futures::join!(connect, accept);
    (a.unwrap(), b.unwrap())
}

async fn next(qp: &mut Qp) -> Result<Vec<Completion>, ConnectionError> {
    let mut out = Vec::new();
    poll_fn(|cx| qp.poll(cx, &mut out)).await.map(|()| out)
}

async fn next_message(qp: &mut Qp) -> Vec<u8> {
    loop {
        for c in next(qp).await.unwrap() {
            if let Completion::Received { buffer, .. } = c {
                return buffer.to_vec();
            }
        }
    }
}

fn encode(s: Segment) -> Vec<u8> {
    [&s.handle.0.to_be_bytes()[..], &s.length.to_be_bytes(), &s.offset.to_be_bytes()].concat()
}

fn decode(b: &[u8]) -> Segment {
    Segment {
        handle: SteeringTag(u32::from_be_bytes(b[..4].try_into().unwrap())),
        length: u32::from_be_bytes(b[4..8].try_into().unwrap()),
        offset: u64::from_be_bytes(b[8..16].try_into().unwrap()),
    }
}

/// Exposes new regions of 1 MiB for each record; the server writes one and reads the other.
async fn client(mut qp: Qp, records: usize) {
    let shared = arena();
    for i in 0..records {
        let target = MemoryRegion::new(qp.domain(), Memory::Owned(shared.alloc(RECORD).unwrap()))
            .expose(Access::RemoteWrite)
            .unwrap();
        let mut source = shared.alloc(RECORD).unwrap();
        source.copy_from_slice(&pattern(RECORD, i + 1000));
        let source = MemoryRegion::new(qp.domain(), Memory::Shared(source.freeze().into()))
            .expose(Access::RemoteRead)
            .unwrap();
        qp.post_receive(buffer(&[0; 64])).unwrap();
        qp.post_send(send(&[encode(target.segment()), encode(source.segment())].concat())).unwrap();
        assert_eq!(next_message(&mut qp).await, b"done");
        let Memory::Owned(m) = target.revoke().unwrap().into_memory() else { panic!() };
        assert!(m[..] == pattern(RECORD, i)[..], "record {i}");
    }
    let c = qp.counters();
    assert_eq!(c.tagged_bytes_in, (records * RECORD) as u64);
    assert!(c.placed_directly > c.tagged_bytes_in * 9 / 10, "{c:?}");
    qp.disconnect();
    assert!(matches!(next(&mut qp).await, Err(ConnectionError::Closed)));
}

async fn server(mut qp: Qp, records: usize) {
    let shared = arena();
    for i in 0..records {
        qp.post_receive(buffer(&[0; 64])).unwrap();
        let call = next_message(&mut qp).await;
        let (target, source) = (decode(&call[..16]), decode(&call[16..]));
        let mut data = shared.alloc(RECORD).unwrap();
        data.copy_from_slice(&pattern(RECORD, i));
        qp.post_write(WriteRequest { data: data.freeze().into(), to: target }).unwrap();
        let sink = vec![shared.alloc(RECORD / 2).unwrap(), shared.alloc(RECORD / 2).unwrap()];
        qp.post_read(ReadRequest { id: WorkId(i as u64), from: source, sink }).unwrap();
        let sink = loop {
            if let Some(Completion::Read { sink, .. }) = next(&mut qp).await.unwrap().pop() {
                break sink;
            }
        };
        let want = pattern(RECORD, i + 1000);
        assert!(sink[0][..] == want[..RECORD / 2] && sink[1][..] == want[RECORD / 2..], "record {i}");
        qp.post_send(send(b"done")).unwrap();
    }
    assert!(matches!(next(&mut qp).await, Err(ConnectionError::Closed)));
}

#[test]
fn megabytes_are_transferred_in_both_directions_with_and_without_crc() {
    for (crc, v6, frame, records) in
        [(false, false, None, 64), (true, false, None, 16), (false, true, Some(1424), 8)]
    {
        let params = ConnectParams { crc, max_frame: frame, ..ConnectParams::default() };
        block_on(async {
            let (a, b) = connected(v6, &params).await;
            assert_eq!((a.info().crc, a.info().peer), (crc, b.info().local));
            futures::join!(client(a, records), server(b, records));
        });
    }
}

#[test]
fn a_rejected_initiator_gets_an_error() {
    block_on(async {
        let rt = TokioRuntime::current();
        let mut listener = Iwarp::new().listen(Arc::clone(&rt), any_port(false)).unwrap();
        let addr = listener.local_addr();
        let connect = Iwarp::new().connect(rt, arena(), addr, ConnectParams::default());
        let refuse = async { listener.accept().await.unwrap().reject(RejectReason::Busy) };
        let (a, ()) = futures::join!(connect, refuse);
        assert!(matches!(a, Err(ConnectionError::Rejected(p)) if p.is_empty()));
    });
}

#[test]
fn a_silent_responder_times_out_and_a_closed_port_is_an_error() {
    block_on(async {
        let params =
            ConnectParams { timeout: std::time::Duration::from_millis(20), ..ConnectParams::default() };
        let rt = TokioRuntime::current();
        let silent = std::net::TcpListener::bind(any_port(false)).unwrap();
        let addr = silent.local_addr().unwrap();
        let end = Iwarp::new().connect(Arc::clone(&rt), arena(), addr, params.clone()).await;
        assert!(matches!(end, Err(ConnectionError::TimedOut(_))));
        drop(silent);
        let end = Iwarp::new().connect(rt, arena(), addr, params).await;
        assert!(matches!(end, Err(ConnectionError::Io(_))));
    });
}

/// In the kernel's table, `02` indicates that a socket's keepalive timer runs.
#[cfg(target_os = "linux")]
#[test]
fn keepalive_is_enabled_on_both_ends() {
    block_on(async {
        let (client, server) = connected(false, &ConnectParams::default()).await;
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        for end in [&client, &server] {
            let hex = |a: SocketAddr| format!("0100007F:{:04X}", a.port());
            let (local, remote) = (hex(end.info().local), hex(end.info().peer));
            let row = table.lines().find(|l| l.contains(&format!(" {local} {remote} "))).unwrap();
            let timer = row.split_whitespace().nth(5).unwrap();
            assert!(timer.starts_with("02:"), "no keepalive timer: {row}");
        }
    });
}
