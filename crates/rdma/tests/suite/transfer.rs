//! Sends, RDMA Writes and RDMA Reads.

use millrace_rdma::{Access, LocalUse, Memory, MemoryRegion, ReadRequest, RegistrationKind, WriteRequest};

use super::*;

fn exposed(qp: &Qp, bytes: &[u8], access: Access) -> millrace_rdma::ExposedRegion {
    MemoryRegion::new(qp.domain(), Memory::Owned(buffer(bytes))).expose(access).expect("cannot expose")
}

fn memory(exposed: millrace_rdma::ExposedRegion) -> Buffer {
    match exposed.revoke().expect("the connection has ended").into_memory() {
        Memory::Owned(b) => b,
        Memory::Shared(_) => panic!("shared memory"),
    }
}

#[test]
fn messages_of_all_sizes_arrive_in_order_in_both_directions() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        for turned in [false, true] {
            let (from, to) = if turned { (&mut b, &mut a) } else { (&mut a, &mut b) };
            deliver(from, to, b"first").await;
            let sizes = [0, 1, 64, 65, 255, 256, 257, 4096, 70_000];
            let messages: Vec<_> = sizes.iter().map(|n| pattern(*n, *n)).collect();
            for m in &messages {
                to.post_receive(buffer(&vec![0; m.len().max(600)])).unwrap();
            }
            let _ = run(to, from, (0, 0)).await;
            messages.iter().for_each(|m| from.post_send(send(m)).unwrap());
            let (_, y) = run(from, to, (0, messages.len())).await;
            messages.iter().zip(&y).for_each(|(m, c)| assert_eq!(received(c), m));
        }
        assert_eq!((a.counters().sends, a.counters().receives), (10, 10));
    });
}

/// Between them are receives with memory, which a provider may use first.
#[test]
fn receives_that_are_posted_without_memory_take_messages() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        let own = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        deliver(&mut a, &mut b, b"first").await;
        for turn in 0..10 {
            for n in 0..10 {
                match n % 4 {
                    0 => b.post_receive(buffer(&[0; 600])).unwrap(),
                    1 => b.post_empty_receive(&own, 700).unwrap(),
                    _ => b.post_empty_receive(&own, 600).unwrap(),
                }
            }
            let _ = run(&mut a, &mut b, (0, 0)).await;
            let messages: Vec<_> = (0..10).map(|n| pattern(500 + n, n * turn)).collect();
            messages.iter().for_each(|m| a.post_send(send(m)).unwrap());
            let (_, y) = run(&mut a, &mut b, (0, messages.len())).await;
            messages.iter().zip(&y).for_each(|(m, c)| assert_eq!(received(c), m));
        }
        drop((a, b));
        assert_eq!(own.stats().in_use, 0);
    });
}

#[test]
fn work_beyond_the_queue_depth_waits() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        let n = 1500_u64;
        for _ in 0..n {
            b.post_receive(buffer(&[0; 512])).unwrap();
        }
        let _ = run(&mut a, &mut b, (0, 0)).await;
        for i in 0..n {
            a.post_send(signaled(&i.to_le_bytes(), i)).unwrap();
        }
        let (x, y) = run(&mut a, &mut b, (n as usize, n as usize)).await;
        for i in 0..n {
            assert!(matches!(x[i as usize], Completion::Sent(WorkId(j)) if j == i));
            assert_eq!(received(&y[i as usize]), i.to_le_bytes());
        }
    });
}

#[test]
fn a_send_of_many_pieces_is_one_message() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        deliver(&mut a, &mut b, b"first").await;
        let data = pattern(9000, 3);
        b.post_receive(buffer(&[0; 10_000])).unwrap();
        let _ = run(&mut a, &mut b, (0, 0)).await;
        a.post_send(SendRequest { data: views(&data, 100), ..send(b"") }).unwrap();
        let (_, y) = run(&mut a, &mut b, (0, 1)).await;
        assert_eq!(received(&y[0]), data);
    });
}

#[test]
fn writes_are_placed_before_the_next_send_is_delivered() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        deliver(&mut a, &mut b, b"first").await;
        for (size, piece) in [(1, 1), (300_000, 1 << 20), (300_000, 65_536), (50_000, 999), (200, 10)] {
            let region = exposed(&a, &vec![0; size + 10], Access::RemoteWrite);
            let data = pattern(size, piece);
            let mut to = region.segment();
            (to.offset, to.length) = (to.offset + 3, to.length - 3);
            a.post_receive(buffer(&[0; 512])).unwrap();
            deliver(&mut a, &mut b, b"bound").await; // The bind completes before this Send.
            b.post_write(WriteRequest { data: views(&data, piece), to }).unwrap();
            b.post_send(send(b"done")).unwrap();
            let (x, _) = run(&mut a, &mut b, (1, 0)).await;
            assert_eq!(received(&x[0]), b"done");
            let memory = memory(region);
            assert!(memory[3..size + 3] == data[..], "{size} bytes in pieces of {piece}");
            assert_eq!((memory[..3].to_vec(), memory[size + 3..].to_vec()), (vec![0; 3], vec![0; 7]));
        }
    });
}

#[test]
fn reads_fill_scattered_sinks_and_are_limited_to_the_ord() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams { ird: 2, ord: 2, ..Default::default() }).await;
        deliver(&mut a, &mut b, b"first").await;
        assert_eq!(b.info().ord, 2);
        let data = pattern(100_000, 1);
        let region = exposed(&a, &data, Access::RemoteRead);
        // The window is bound when a later Send is delivered.
        deliver(&mut a, &mut b, b"look").await;
        let sinks: &[&[usize]] = &[&[1000], &[512, 4096, 65_536, 1], &[0, 5, 0], &[100; 60], &[0]];
        let mut offset = 0;
        for (i, sink) in (0..20_u64).flat_map(|_| sinks).zip(0_u64..).map(|(s, i)| (i, s)) {
            let length: usize = sink.iter().sum();
            let mut from = region.segment();
            offset = if offset + length > data.len() { 0 } else { offset };
            (from.offset, from.length) = (from.offset + offset as u64, length as u32);
            let sink = sink.iter().map(|n| buffer(&vec![0; *n])).collect();
            b.post_read(ReadRequest { id: WorkId(i << 32 | offset as u64), from, sink }).unwrap();
            offset += length;
        }
        let (_, y) = run(&mut a, &mut b, (0, 100)).await;
        let mut seen: Vec<u64> = Vec::new();
        for c in y {
            let Completion::Read { id, sink } = c else { panic!("{c:?}") };
            let mut at = (id.0 & 0xffff_ffff) as usize;
            for s in &sink {
                assert!(s[..] == data[at..at + s.len()], "read {}", id.0 >> 32);
                at += s.len();
            }
            seen.push(id.0 >> 32);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(memory(region)[..], data[..]);
    });
}

#[test]
fn concurrent_operations_in_both_directions_transfer_the_right_data() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams { ird: 4, ord: 4, ..Default::default() }).await;
        deliver(&mut a, &mut b, b"one").await;
        deliver(&mut b, &mut a, b"two").await;
        let (source, target) = (pattern(1 << 20, 5), vec![0; 1 << 20]);
        for round in 0..5_usize {
            let regions = [(&a, &b), (&b, &a)].map(|(qp, _)| {
                (exposed(qp, &source, Access::RemoteRead), exposed(qp, &target, Access::RemoteWrite))
            });
            for qp in [&mut a, &mut b] {
                qp.post_receive(buffer(&[0; 512])).unwrap();
                qp.post_receive(buffer(&[0; 512])).unwrap();
            }
            let _ = run(&mut a, &mut b, (0, 0)).await;
            a.post_send(send(b"look")).unwrap();
            b.post_send(send(b"look")).unwrap();
            let _ = run(&mut a, &mut b, (1, 1)).await;
            let data = pattern(1 << 20, round);
            for (qp, (read, write)) in [&mut a, &mut b].into_iter().zip([&regions[1], &regions[0]]) {
                let sink = (0..16).map(|_| buffer(&vec![0; 65_536])).collect();
                qp.post_read(ReadRequest { id: WorkId(1), from: read.segment(), sink }).unwrap();
                qp.post_write(WriteRequest { data: views(&data, 65_536), to: write.segment() }).unwrap();
                qp.post_send(signaled(b"done", 2)).unwrap();
            }
            let (x, y) = run(&mut a, &mut b, (3, 3)).await;
            for c in x.iter().chain(&y) {
                if let Completion::Read { sink, .. } = c {
                    assert!(sink.iter().flat_map(|b| b.iter()).eq(&source), "round {round}");
                }
            }
            for (_, write) in regions {
                assert!(memory(write)[..] == data[..], "round {round}");
            }
        }
        assert_eq!((a.domain().exposed(), b.domain().exposed()), ((0, 0), (0, 0)));
    });
}

/// The uses of local registration by a responder's strategies: for each operation, also with several
/// operations on one source; of whole spans; and none.
#[test]
fn writes_and_reads_work_with_every_local_registration() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams { ird: 4, ord: 4, ..Default::default() }).await;
        deliver(&mut a, &mut b, b"first").await;
        let domain = b.domain();
        assert_ne!(domain.registers_local(RegistrationKind::Region), lab.is_software());
        if lab.is_software() {
            return eprintln!("skipped: the provider needs no registration for local use");
        }
        let (data, source) = (pattern(150_000, 8), views(&pattern(150_000, 8), 65_536));
        let spans: Vec<_> = source.iter().map(|v| v.span().clone()).collect();
        for round in 0..4 {
            let targets = [0, 1].map(|_| exposed(&a, &vec![0; data.len()], Access::RemoteWrite));
            let readable = exposed(&a, &data, Access::RemoteRead);
            deliver(&mut a, &mut b, b"look").await;
            let sink: Vec<Buffer> = [100_000, 50_000].map(|n| buffer(&vec![0; n])).into();
            let mut keys = Vec::new();
            match round {
                0 => {
                    let pieces: Vec<&[u8]> = source.iter().map(|v| &**v).collect();
                    let sinks: Vec<&[u8]> = sink.iter().map(|b| &**b).collect();
                    for _ in 0..2 {
                        keys.push(domain.register_local(RegistrationKind::Region, &pieces, LocalUse::Source));
                    }
                    keys.push(domain.register_local(RegistrationKind::Region, &sinks, LocalUse::Sink));
                }
                1 | 2 => keys.extend(spans.iter().map(|s| domain.keep_local(s))),
                _ => {}
            }
            let keys: Vec<_> = keys.into_iter().map(|k| k.expect("cannot register")).collect();
            b.post_read(ReadRequest { id: WorkId(1), from: readable.segment(), sink }).unwrap();
            for (i, to) in targets.iter().map(|t| t.segment()).enumerate() {
                b.post_write(WriteRequest { data: source.clone(), to }).unwrap();
                b.post_send(signaled(b"written", 2)).unwrap();
                a.post_receive(buffer(&[0; 512])).unwrap();
                let (_, mut y) = run(&mut a, &mut b, (1, if i == 0 { 2 } else { 1 })).await;
                if let Some(Completion::Read { sink, .. }) =
                    y.iter_mut().find(|c| matches!(c, Completion::Read { .. }))
                {
                    assert!(sink.iter().flat_map(|b| b.iter()).eq(&data), "round {round}");
                }
                // The first Write has completed; the second one uses its own registration.
                if round == 0 {
                    domain.deregister_local(keys[i]);
                }
            }
            keys.iter().skip(if round == 0 { 2 } else { 0 }).for_each(|k| domain.deregister_local(*k));
            for target in targets {
                assert!(memory(target)[..] == data[..], "round {round}");
            }
            drop(readable);
        }
    });
}

#[test]
fn requests_with_inconsistent_lengths_are_rejected() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        let region = exposed(&b, &[0; 100], Access::RemoteWrite);
        let to = region.segment();
        assert!(a.post_write(WriteRequest { data: views(&[0; 101], 101), to }).is_err());
        let sink = vec![buffer(&[0; 99])];
        assert!(a.post_read(ReadRequest { id: WorkId(0), from: to, sink }).is_err());
        deliver(&mut a, &mut b, b"still up").await;
    });
}
