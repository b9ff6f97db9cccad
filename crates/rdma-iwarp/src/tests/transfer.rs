//! Transfers between two queue pairs: all operations of upper layers.

use millrace_rdma::{Access, GLOBAL_PAGE, Memory, MemoryRegion, ReadRequest, RegistrationKind, WriteRequest};

use super::*;

const SEGMENTS: [usize; 4] = [1, 7, 1000, 1 << 20];

fn params() -> ConnectParams {
    ConnectParams::default()
}

/// Sends a message from the initiator; the responder may send only after it.
fn send_first_message(a: &mut Qp, b: &mut Qp) {
    b.post_receive(buffer(&[0; 16])).unwrap();
    a.post_send(send(b"hi")).unwrap();
    let (_, y) = run(a, b, (0, 1));
    assert_eq!(received(&y[0]), b"hi");
}

#[test]
fn an_aborted_queue_pair_discards_undelivered_work() {
    for aborted in [false, true] {
        let (mut a, mut b) = pair(1 << 16, 1000, &params());
        b.post_receive(buffer(&[0; 100])).unwrap();
        a.post_send(send(b"late")).unwrap();
        a.flush(&mut Context::from_waker(Waker::noop()));
        if aborted {
            a.abort();
        }
        drop(a);
        let mut out = Vec::new();
        while poll_qp(&mut b, &mut out).is_ok() {}
        assert_eq!(out.iter().any(|c| matches!(c, Completion::Received { .. })), !aborted);
    }
}

#[test]
fn sends_arrive_in_order_with_any_segmentation() {
    for segment in SEGMENTS {
        for crc in [false, true] {
            let (mut a, mut b) = pair(1 << 16, segment, &ConnectParams { crc, ..params() });
            let messages: Vec<Vec<u8>> =
                [0, 1, 5, 192, 193, 1000, 70_000].iter().map(|n| pattern(*n, *n)).collect();
            for m in &messages {
                b.post_receive(buffer(&vec![0; m.len().max(600)])).unwrap();
                a.post_send(send(m)).unwrap();
            }
            a.post_send(signaled(b"", 9)).unwrap();
            b.post_receive(buffer(&[0])).unwrap();
            let (x, y) = run(&mut a, &mut b, (1, messages.len() + 1));
            assert!(matches!(x[0], Completion::Sent(WorkId(9))));
            for (m, c) in messages.iter().zip(&y) {
                assert_eq!(received(c), m);
            }
        }
    }
}

/// All memory of an arena.
fn all_memory(arena: &Arena) -> Vec<Buffer> {
    let sizes = (0..=20).rev().map(|n| 1 << n);
    sizes.flat_map(|size| std::iter::from_fn(move || arena.alloc(size).ok())).collect()
}

#[test]
fn a_receive_that_is_posted_without_memory_takes_it_from_its_arena_when_its_message_arrives() {
    let own = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
    for segment in SEGMENTS {
        let params = ConnectParams { max_frame: Some(50), ..params() };
        let (mut a, mut b) = pair(1 << 16, segment, &params);
        (0..4).for_each(|_| b.post_empty_receive(&own, 600).unwrap());
        assert_eq!(own.stats().in_use, 0);
        (0..2).for_each(|n| a.post_send(send(&pattern(600, n))).unwrap());
        let (_, first) = run(&mut a, &mut b, (0, 2));
        first.iter().enumerate().for_each(|(n, c)| assert_eq!(received(c), pattern(600, n)));
        drop(first);
        assert_eq!(own.stats().in_use, 0);

        let rest = all_memory(&own);
        (2..5).for_each(|n| a.post_send(send(&pattern(600, n))).unwrap());
        let mut got = Vec::new();
        for _ in 0..5000 {
            poll_qp(&mut a, &mut Vec::new()).unwrap();
            poll_qp(&mut b, &mut got).unwrap();
        }
        assert_eq!(got.len(), 0, "the messages wait for memory");
        drop(rest);
        let (_, rest) = run(&mut a, &mut b, (0, 2));
        rest.iter().enumerate().for_each(|(n, c)| assert_eq!(received(c), pattern(600, n + 2)));
        let mut more = Vec::new();
        let error = (0..5000).find_map(|_| poll_qp(&mut b, &mut more).err());
        assert!(error.is_some() && more.is_empty(), "a message without a receive: {error:?}");
    }
}

#[test]
fn writes_are_placed_before_the_next_send_is_delivered() {
    for segment in SEGMENTS {
        for (crc, frame, piece) in
            [(false, None, 1 << 20), (true, None, 4096), (true, Some(1424), 999), (false, Some(5), 3)]
        {
            let size = if frame == Some(5) { 2000 } else { 300_000 };
            let (mut a, mut b) = pair(1 << 18, segment, &ConnectParams { crc, max_frame: frame, ..params() });
            send_first_message(&mut a, &mut b);
            let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&vec![0; size + 10])));
            let exposed = region.expose(Access::RemoteWrite).unwrap();
            let data = pattern(size, segment);
            let mut to = exposed.segment();
            to.offset = 3;
            to.length -= 3;
            a.post_receive(buffer(&[0; 100])).unwrap();
            b.post_write(WriteRequest { data: views(&data, piece), to }).unwrap();
            b.post_send(send(b"done")).unwrap();
            let (x, _) = run(&mut a, &mut b, (1, 0));
            assert_eq!(received(&x[0]), b"done");
            let Memory::Owned(memory) = exposed.revoke().unwrap().into_memory() else { panic!() };
            assert!(memory[3..size + 3] == data[..], "segment {segment} frame {frame:?}");
            assert_eq!((memory[..3].to_vec(), memory[size + 3..].to_vec()), (vec![0; 3], vec![0; 7]));
            let c = a.counters();
            assert_eq!((c.tagged_bytes_in, c.peer_writes), (size as u64, 1));
        }
    }
}

#[test]
fn adjacent_page_writes_need_few_reads_of_the_stream() {
    const PAGES: usize = 64;
    for (crc, frame) in [(false, None), (true, None), (false, Some(1000))] {
        let (mut a, mut b) = pair(1 << 20, 1 << 20, &ConnectParams { crc, max_frame: frame, ..params() });
        send_first_message(&mut a, &mut b);
        assert!(a.domain().enable_global());
        let data = pattern(PAGES * GLOBAL_PAGE, 5);
        let mut syscalls = Vec::new();
        for round in 0..8 {
            let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&vec![0; data.len()])));
            let exposed = region.expose_by(RegistrationKind::Global, Access::RemoteWrite).unwrap();
            a.post_receive(buffer(&[0; 100])).unwrap();
            // Every other round leaves the last page unwritten, so the last prediction is wrong.
            let pages = PAGES - round % 2;
            for (to, page) in exposed.segments().iter().zip(data.chunks(GLOBAL_PAGE)).take(pages) {
                b.post_write(WriteRequest { data: views(page, GLOBAL_PAGE), to: *to }).unwrap();
            }
            b.post_send(send(b"done")).unwrap();
            let before = a.counters().syscalls;
            let (x, _) = run(&mut a, &mut b, (1, 0));
            syscalls.push(a.counters().syscalls - before);
            assert_eq!(received(&x[0]), b"done");
            let Memory::Owned(memory) = exposed.revoke().unwrap().into_memory() else { panic!() };
            let end = pages * GLOBAL_PAGE;
            assert!(memory[..end] == data[..end] && memory[end..].iter().all(|b| *b == 0), "round {round}");
        }
        assert!(
            syscalls[2..].iter().all(|n| *n < PAGES as u64 / 2),
            "frame {frame:?} crc {crc}: {syscalls:?}"
        );
    }
}

#[test]
fn later_writes_to_exposed_memory_are_placed_directly() {
    const SIZE: usize = 1 << 20;
    let (mut a, mut b) = pair(1 << 20, 1 << 20, &params());
    send_first_message(&mut a, &mut b);
    let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&vec![0; SIZE])));
    let exposed = region.expose(Access::RemoteWrite).unwrap();
    for round in 0..4 {
        let data = pattern(SIZE, round);
        let before = a.counters().placed_directly;
        a.post_receive(buffer(&[0; 16])).unwrap();
        b.post_write(WriteRequest { data: views(&data, SIZE), to: exposed.segment() }).unwrap();
        b.post_send(send(b"")).unwrap();
        run(&mut a, &mut b, (1, 0));
        let mut out = vec![0; SIZE];
        assert!(exposed.copy_out(&mut out) && out == data, "round {round}");
        let direct = (a.counters().placed_directly - before) as usize;
        assert!(direct > SIZE - (10 << 10), "round {round}: {direct}");
    }
}

#[test]
fn reads_fill_scattered_sinks_and_are_limited_to_the_ord() {
    for segment in SEGMENTS {
        for (crc, frame) in [(false, None), (true, Some(1424)), (false, Some(1424))] {
            let (mut a, mut b) =
                pair(1 << 18, segment, &ConnectParams { crc, max_frame: frame, ird: 2, ord: 2, ..params() });
            send_first_message(&mut a, &mut b);
            let size = if segment < 100 { 40_000 } else { 90_000 };
            let data = pattern(100_000, 1);
            let mut exposed = Vec::new();
            for i in 0..5 {
                let memory = if i % 2 == 0 {
                    Memory::Owned(buffer(&data))
                } else {
                    Memory::Shared(views(&data, 3000 + i))
                };
                let region = MemoryRegion::new(a.domain(), memory).expose(Access::RemoteRead).unwrap();
                let mut from = region.segment();
                from.offset = i as u64 * 10;
                from.length = (size - i) as u32;
                let sink = [4096, 30_000, 10, 0, from.length as usize - 34_106].map(|n| buffer(&vec![0; n]));
                b.post_read(ReadRequest { id: WorkId(i as u64), from, sink: sink.into() }).unwrap();
                exposed.push(region);
            }
            let (_, y) = run(&mut a, &mut b, (0, 5));
            for (i, c) in y.iter().enumerate() {
                let Completion::Read { id, sink } = c else { panic!("{c:?}") };
                assert_eq!(*id, WorkId(i as u64));
                let got: Vec<u8> = sink.iter().flat_map(|b| b.iter().copied()).collect();
                assert!(got == data[i * 10..i * 10 + size - i], "read {i} segment {segment}");
            }
            assert_eq!(b.domain().exposed(), (0, 0));
            assert_eq!(a.counters().peer_reads, 5);
        }
    }
}

#[test]
fn a_send_with_invalidate_invalidates_the_tag_and_reports_it() {
    let (mut a, mut b) = pair(1 << 16, 1 << 16, &params());
    send_first_message(&mut a, &mut b);
    let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&[7; 64])));
    let exposed = region.expose(Access::RemoteWrite).unwrap();
    let tag = exposed.segment().handle;
    a.post_receive(buffer(&[0; 64])).unwrap();
    b.post_send(SendRequest { invalidate: Some(tag), solicited: true, ..send(b"bye") }).unwrap();
    let (x, _) = run(&mut a, &mut b, (1, 0));
    assert!(matches!(&x[0], Completion::Received { invalidated: Some(t), .. } if *t == tag));
    assert!(!exposed.is_valid());
    assert_eq!(exposed.revoke().unwrap().memory().len(), 64);
}

#[test]
fn a_disconnect_sends_posted_work_and_both_ends_close() {
    let (mut a, mut b) = pair(1 << 10, 100, &params());
    let data = pattern(50_000, 3);
    b.post_receive(buffer(&vec![0; data.len()])).unwrap();
    a.post_send(send(&data)).unwrap();
    a.disconnect();
    assert!(a.post_send(send(b"late")).is_err());
    let (mut x, mut y, mut end) = (Vec::new(), Vec::new(), None);
    for _ in 0..100_000 {
        let _ = poll_qp(&mut a, &mut x);
        if let Err(e) = poll_qp(&mut b, &mut y) {
            end = Some(e);
            break;
        }
    }
    assert_eq!(received(&y[0]), data);
    assert!(matches!(end, Some(ConnectionError::Closed)), "{end:?}");
    drop(b);
    assert!(matches!(poll_qp(&mut a, &mut x), Err(ConnectionError::Closed)));
}

#[test]
fn responses_alternating_with_sends_are_placed_directly() {
    const READS: u64 = 60;
    const SIZE: usize = 200_000;
    let (mut a, mut b) = pair(1 << 20, 1 << 20, &params());
    send_first_message(&mut a, &mut b);
    let data = pattern(SIZE, 1);
    let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&data)));
    let region = region.expose(Access::RemoteRead).unwrap();
    let from = region.segment();
    let read = |id| ReadRequest { id: WorkId(id), from, sink: vec![buffer(&vec![0; SIZE])] };
    // The pattern of a requester that sends a new call after each reply: several Reads are in flight, and
    // each response is followed by a Send.
    let ask = |a: &mut Qp, b: &mut Qp, id| {
        b.post_receive(buffer(&[0; 100])).unwrap();
        b.post_read(read(id)).unwrap();
        b.flush(&mut Context::from_waker(Waker::noop()));
        poll_qp(a, &mut Vec::new()).unwrap();
        a.post_send(send(&[1; 100])).unwrap();
    };
    (0..4).for_each(|id| ask(&mut a, &mut b, id));
    let (mut next, mut done, mut out) = (4, 0, Vec::new());
    while done < READS {
        poll_qp(&mut a, &mut Vec::new()).unwrap();
        poll_qp(&mut b, &mut out).unwrap();
        for c in out.drain(..) {
            let Completion::Read { sink, .. } = c else { continue };
            assert!(sink[0][..] == data[..]);
            done += 1;
            if next < READS {
                ask(&mut a, &mut b, next);
                next += 1;
            }
        }
    }
    let c = b.counters();
    let bounced = c.tagged_bytes_in - c.placed_directly;
    println!("{bounced} of {} bytes were bounced", c.tagged_bytes_in);
    assert!(20 * bounced < c.tagged_bytes_in, "{bounced} bytes bounced of {}", c.tagged_bytes_in);
}

#[test]
fn a_late_write_succeeds_through_a_released_window_and_fails_after_invalidation() {
    for size in [100, 300_000] {
        let (mut a, mut b) = pair(1 << 18, 5000, &params());
        send_first_message(&mut a, &mut b);
        assert_eq!(a.domain().reserve_windows(1, size), 1);
        let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&vec![1; size])));
        let exposed = region.expose_by(RegistrationKind::Window, Access::RemoteWrite).unwrap();
        let to = exposed.segment();
        let memory = exposed.release().unwrap().into_memory();
        let mut late = |a: &mut Qp, fill: u8| {
            b.post_write(WriteRequest { data: views(&vec![fill; size], 4096), to }).unwrap();
            b.post_send(send(b"done")).unwrap();
            a.post_receive(buffer(&[0; 100])).unwrap();
            let (mut x, mut y) = (Vec::new(), Vec::new());
            for _ in 0..10_000 {
                poll_qp(a, &mut x)?;
                let _ = poll_qp(&mut b, &mut y);
                if !x.is_empty() {
                    break;
                }
            }
            Ok::<_, ConnectionError>(x.len())
        };
        assert_eq!(late(&mut a, 2).unwrap(), 1);
        let Memory::Owned(b) = std::hint::black_box(&memory) else { panic!("not owned") };
        assert!(b.iter().all(|v| *v == 2), "the late Write was not placed");
        assert_eq!(a.domain().invalidate_released(), 1);
        assert!(matches!(late(&mut a, 3), Err(ConnectionError::PeerMisbehaved(_))));
        let Memory::Owned(b) = std::hint::black_box(&memory) else { panic!("not owned") };
        assert!(b.iter().all(|v| *v == 2), "the Write after invalidation was placed");
    }
}
