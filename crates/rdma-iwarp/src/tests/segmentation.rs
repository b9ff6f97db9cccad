//! The effect of a sequence of messages is independent of framing and segmentation.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
};

use millrace_rdma::{Access, ExposedRegion, Memory, MemoryRegion, ReadRequest, WriteRequest};
use millrace_runtime::{ByteStream, MemoryStream};
use proptest::prelude::*;

use super::*;

/// A stream whose reads return a varying number of bytes, from 1 to `most`.
struct ShortReads {
    inner: MemoryStream,
    state: u64,
    most: usize,
}

impl ByteStream for ShortReads {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let want: usize = bufs.iter().map(|b| b.len()).sum();
        let n = (1 + (self.state >> 33) as usize % self.most).min(want);
        let mut left = n;
        let mut cut: Vec<IoSliceMut<'_>> = Vec::new();
        for b in bufs {
            let take = left.min(b.len());
            cut.push(IoSliceMut::new(&mut b[..take]));
            left -= take;
        }
        self.inner.poll_read(cx, &mut cut)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.inner.poll_write(cx, bufs)
    }

    fn abort(&mut self) {
        self.inner.abort();
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }
}

const REGION: usize = 20_000;

#[derive(Debug, Clone)]
enum Op {
    Write { region: usize, at: usize, len: usize },
    Send { len: usize },
    Read { at: usize, len: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..2usize, 0..REGION, 0..REGION).prop_map(|(region, at, len)| Op::Write {
            region,
            at,
            len: len.min(REGION - at)
        }),
        // Whole regions from their start, for which predictions are right.
        2 => (0..2usize, 0..REGION).prop_map(|(region, len)| Op::Write { region, at: 0, len }),
        3 => (0..400usize).prop_map(|len| Op::Send { len }),
        3 => (0..REGION, 0..REGION).prop_map(|(at, len)| Op::Read { at, len: len.min(REGION - at) }),
    ]
}

struct Parameters {
    crc: bool,
    frame: usize,
    most: usize,
    capacity: usize,
    seed: u64,
}

/// A connection over streams with varying read sizes; `a` is the initiator.
fn short_read_pair(s: &Parameters) -> (Qp, Qp) {
    let (a, b) = memory_stream(s.capacity, usize::MAX);
    let params =
        ConnectParams { crc: s.crc, max_frame: Some(s.frame), ord: 3, ird: 3, ..ConnectParams::default() };
    let a = ShortReads { inner: a, state: s.seed, most: s.most };
    let b = ShortReads { inner: b, state: !s.seed, most: s.most };
    let mut i = Box::pin(connect_over(runtime(), arena(), Box::new(a), params.clone()));
    let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params));
    let (mut x, mut y) = (None, None);
    while x.is_none() || y.is_none() {
        if x.is_none()
            && let Poll::Ready(q) = poll_once(&mut i)
        {
            x = Some(q.unwrap());
        }
        if y.is_none()
            && let Poll::Ready(q) = poll_once(&mut r)
        {
            y = Some(q.unwrap());
        }
    }
    (x.unwrap(), y.unwrap())
}

fn bytes_of(e: ExposedRegion) -> Vec<u8> {
    let Memory::Owned(m) = e.revoke().unwrap().into_memory() else { panic!() };
    m.to_vec()
}

fn check(ops: &[Op], s: &Parameters) {
    let (mut a, mut b) = short_read_pair(s);
    b.post_receive(buffer(&[0; 16])).unwrap();
    a.post_send(send(b"")).unwrap();
    run(&mut a, &mut b, (0, 1));
    let source = pattern(REGION, 99);
    let exposed = MemoryRegion::new(b.domain(), Memory::Shared(views(&source, 777)))
        .expose(Access::RemoteRead)
        .unwrap();
    let regions: Vec<ExposedRegion> = (0..2)
        .map(|_| {
            MemoryRegion::new(a.domain(), Memory::Owned(buffer(&[0; REGION])))
                .expose(Access::RemoteWrite)
                .unwrap()
        })
        .collect();
    let mut model = vec![vec![0u8; REGION]; 2];
    let (mut sends, mut reads) = (Vec::new(), Vec::new());
    for (i, op) in ops.iter().enumerate() {
        match *op {
            Op::Write { region, at, len } => {
                let data = pattern(len, i + 1);
                model[region][at..at + len].copy_from_slice(&data);
                let mut to = regions[region].segment();
                to.offset = at as u64;
                to.length -= at as u32;
                b.post_write(WriteRequest { data: views(&data, 1 + 61 * i), to }).unwrap();
            }
            Op::Send { len } => {
                a.post_receive(buffer(&[0; 400])).unwrap();
                b.post_send(send(&pattern(len, i))).unwrap();
                sends.push(pattern(len, i));
            }
            Op::Read { at, len } => {
                let mut from = exposed.segment();
                from.offset = at as u64;
                from.length = len as u32;
                let cut = len / 3;
                let sink = vec![buffer(&vec![1; cut]), buffer(&vec![2; len - cut])];
                a.post_read(ReadRequest { id: WorkId(i as u64), from, sink }).unwrap();
                reads.push((i as u64, source[at..at + len].to_vec()));
            }
        }
    }
    a.post_receive(buffer(&[0; 8])).unwrap();
    b.post_send(send(b"end")).unwrap();
    sends.push(b"end".to_vec());
    let (x, _) = run(&mut a, &mut b, (sends.len() + reads.len(), 0));
    let (mut got_sends, mut got_reads) = (Vec::new(), Vec::new());
    for c in &x {
        match c {
            Completion::Received { buffer, .. } => got_sends.push(buffer.to_vec()),
            Completion::Read { id, sink } => got_reads.push((id.0, [&sink[0][..], &sink[1][..]].concat())),
            Completion::Sent(_) => panic!("unexpected completion of a Send"),
        }
    }
    assert!(got_sends == sends, "Sends differ");
    assert!(got_reads == reads, "Reads differ");
    for (i, r) in regions.into_iter().enumerate() {
        assert!(bytes_of(r) == model[i], "region {i}");
    }
    let c = a.counters();
    assert!(c.placed_directly <= c.tagged_bytes_in);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_effect_is_independent_of_framing_and_segmentation(
        ops in prop::collection::vec(op(), 1..14),
        crc: bool,
        frame in prop_oneof![Just(1424usize), Just(4096), 100..3000usize, Just(61_440)],
        most in prop_oneof![Just(64usize), Just(1500), Just(9000), Just(200_000)],
        capacity in prop_oneof![Just(5000usize), Just(300_000)],
        seed: u64,
    ) {
        check(&ops, &Parameters { crc, frame, most, capacity, seed });
    }
}

#[test]
fn a_long_write_into_fresh_memory_is_placed_directly() {
    for frame in [1424, 4096, 61_440] {
        let s = Parameters { crc: false, frame, most: 1 << 20, capacity: 1 << 20, seed: 1 };
        let (mut a, mut b) = short_read_pair(&s);
        b.post_receive(buffer(&[0; 16])).unwrap();
        a.post_send(send(b"")).unwrap();
        run(&mut a, &mut b, (0, 1));
        const SIZE: usize = 1 << 20;
        let data = pattern(SIZE, 5);
        for round in 0..4 {
            let e = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&vec![0; SIZE])))
                .expose(Access::RemoteWrite)
                .unwrap();
            let before = a.counters();
            a.post_receive(buffer(&[0; 16])).unwrap();
            b.post_write(WriteRequest { data: views(&data, SIZE), to: e.segment() }).unwrap();
            b.post_send(send(b"")).unwrap();
            run(&mut a, &mut b, (1, 0));
            assert!(bytes_of(e) == data);
            let after = a.counters();
            let direct = after.placed_directly - before.placed_directly;
            assert!(direct as usize > SIZE - (10 << 10), "frame {frame} round {round}: {direct}");
        }
    }
}
