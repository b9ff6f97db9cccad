//! How connections end, and the return of their buffers.

use millrace_rdma::{Access, Memory, MemoryRegion, ReadRequest};

use super::*;

#[test]
fn an_orderly_close_delivers_messages_sent_before_it() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        deliver(&mut a, &mut b, b"first").await;
        for _ in 0..100 {
            b.post_receive(buffer(&[0; 512])).unwrap();
        }
        let _ = run(&mut a, &mut b, (0, 0)).await;
        for i in 0..100_u8 {
            a.post_send(send(&[i; 300])).unwrap();
        }
        a.disconnect();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let ends = poll_fn(|cx| {
            let one = loop {
                match a.poll(cx, &mut x) {
                    Poll::Ready(Ok(())) => {}
                    other => break other,
                }
            };
            let two = loop {
                match b.poll(cx, &mut y) {
                    Poll::Ready(Ok(())) => {}
                    other => break other,
                }
            };
            match (one, two) {
                (Poll::Ready(Err(e)), Poll::Ready(Err(f))) => Poll::Ready((e, f)),
                _ => Poll::Pending,
            }
        });
        let (e, f) = ends.await;
        assert!(matches!((&e, &f), (ConnectionError::Closed, ConnectionError::Closed)), "{e:?} {f:?}");
        assert_eq!(y.len(), 100);
        (0..100_u8).zip(&y).for_each(|(i, c)| assert_eq!(received(c), [i; 300]));
        assert!(a.post_send(send(b"late")).is_err());
    });
}

#[test]
fn dropping_the_peer_ends_the_connection() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        deliver(&mut a, &mut b, b"first").await;
        drop(b);
        let error = poll_until_error(&mut a).await;
        assert!(matches!(error, ConnectionError::Closed), "{error:?}");
    });
}

/// The buffers of posted, queued and exposed memory return to their arena with the end of the connection.
#[test]
fn every_buffer_returns_with_the_end_of_the_connection() {
    on_a_device(async |lab| {
        for ending in ["dropped", "peer dropped", "disconnected"] {
            let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
            let mine = |n: usize| arena.alloc(n).expect("memory");
            let (mut a, mut b) = lab.pair(&ConnectParams { ord: 2, ird: 2, ..Default::default() }).await;
            deliver(&mut a, &mut b, b"first").await;
            let region = MemoryRegion::new(b.domain(), Memory::Owned(buffer(&[1; 4096])));
            let region = region.expose(Access::RemoteRead).unwrap();
            deliver(&mut b, &mut a, b"bound").await;
            for i in 0..600 {
                a.post_receive(mine(512)).unwrap();
                let (from, sink) = (region.segment(), vec![mine(4096)]);
                a.post_read(ReadRequest { id: WorkId(i), from, sink }).unwrap();
            }
            for _ in 0..300 {
                // Most of them have no receive.
                if ending == "dropped" && !is_iwarp(&a) {
                    a.post_send(SendRequest { data: mine(8192).freeze().into(), ..send(b"") }).unwrap();
                }
            }
            let exposed = MemoryRegion::new(a.domain(), Memory::Owned(mine(4096)));
            let exposed = exposed.expose(Access::RemoteWrite).unwrap();
            a.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            assert!(arena.stats().in_use > 600 * 4096);
            // Software providers keep exposed memory until its owner revokes it.
            let kept = if lab.is_software() { 4096 } else { 0 };
            match ending {
                "peer dropped" => {
                    drop((region, b));
                    poll_until_error(&mut a).await;
                    assert_eq!(arena.stats().in_use, kept, "{ending}");
                }
                "disconnected" => {
                    a.disconnect();
                    tokio::join!(poll_until_error(&mut a), poll_until_error(&mut b));
                    assert_eq!(arena.stats().in_use, kept, "{ending}");
                }
                _ => {
                    drop(a);
                    assert_eq!(arena.stats().in_use, kept, "{ending}");
                }
            }
            drop(exposed);
            assert_eq!(arena.stats().in_use, 0, "{ending}");
        }
    });
}

#[test]
fn a_message_that_is_too_long_ends_the_connection() {
    on_a_device(async |lab| {
        let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
        deliver(&mut a, &mut b, b"first").await;
        b.post_receive(buffer(&[0; 512])).unwrap();
        let _ = run(&mut a, &mut b, (0, 0)).await;
        a.post_send(send(&[1; 2000])).unwrap();
        let error = poll_both_until_error(&mut b, &mut a).await;
        assert!(!matches!(error, ConnectionError::Local(_)), "{error:?}");
    });
}
