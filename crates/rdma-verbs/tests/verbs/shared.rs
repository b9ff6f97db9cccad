//! Tests of shared receive queues.

use super::*;

const BYTES: usize = 512;
const DEPTH: usize = 16;

/// An arena for one test, so that its memory use can be measured.
fn test_arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

/// A connection whose passive end shares receives with others of `arena`, and has posted `receives` besides
/// the first.
async fn sharing_pair(lab: &Lab, arena: &Arena, receives: usize) -> (Qp, Qp) {
    let mut listener = lab.listen();
    let to = listener.local_addr();
    let params = ConnectParams { first_receive: BYTES, shared_receives: DEPTH, ..Default::default() };
    let (a, b) = tokio::join!(lab.connect(to, ConnectParams::default()), async {
        let incoming = listener.accept().await.expect("no connection request");
        incoming.accept(lab.rt.clone(), arena.clone(), params).await
    });
    let (a, mut b) = (a.expect("cannot connect"), b.expect("cannot accept"));
    for _ in 0..receives {
        b.post_receive(arena.alloc(BYTES).expect("out of memory")).unwrap();
    }
    b.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    (a, b)
}

/// Runs `test` on a device with shared receive queues.
fn on_a_sharing_device(test: impl AsyncFnOnce(Lab)) {
    on_a_device(async |lab| {
        if std::env::var_os("MILLRACE_TEST_RXE_WINDOWS").is_none()
            || is_iwarp(&lab.pair(&ConnectParams::default()).await.0)
        {
            return eprintln!("skipped: needs a device with windows, and MILLRACE_TEST_RXE_WINDOWS");
        }
        test(lab).await;
    });
}

/// Polls all connections until passive end `i` has `want[i]` messages. Each message is answered with another
/// receive.
async fn receive_all(ends: &mut [(Qp, Qp)], arena: &Arena, want: &[usize]) -> Vec<Vec<Vec<u8>>> {
    let mut got = vec![Vec::new(); ends.len()];
    poll_fn(|cx| {
        loop {
            let mut idle = true;
            for (i, (a, b)) in ends.iter_mut().enumerate() {
                let (mut x, mut y) = (Vec::new(), Vec::new());
                for end in [a.poll(cx, &mut x), b.poll(cx, &mut y)] {
                    assert!(!matches!(end, Poll::Ready(Err(_))), "{end:?} of {i} after {}", got[i].len());
                    idle &= end.is_pending();
                }
                for c in y {
                    got[i].push(received(&c).to_vec());
                    drop(c);
                    b.post_receive(arena.alloc(BYTES).expect("out of memory")).unwrap();
                }
            }
            if got.iter().zip(want).all(|(g, w)| g.len() >= *w) {
                return Poll::Ready(());
            }
            if idle {
                return Poll::Pending;
            }
        }
    })
    .await;
    got
}

/// Sends `n` messages from `a` that contain `whose` and their number.
fn send_numbered(a: &mut Qp, whose: usize, n: usize) {
    for k in 0..n {
        a.post_send(send(&pattern(300, whose * 1000 + k))).unwrap();
    }
}

fn check(got: &[Vec<u8>], whose: usize, n: usize) {
    assert_eq!(got.len(), n);
    got.iter().enumerate().for_each(|(k, m)| assert_eq!(*m, pattern(300, whose * 1000 + k), "{whose}, {k}"));
}

#[test]
fn many_connections_with_few_receives_lose_no_message() {
    on_a_sharing_device(async |lab| {
        let arena = test_arena();
        let mut ends = Vec::new();
        for _ in 0..20 {
            ends.push(sharing_pair(&lab, &arena, 50).await);
        }
        // Separate receives would need 500 KiB.
        assert_eq!(arena.stats().in_use, DEPTH * BYTES);
        ends.iter_mut().enumerate().for_each(|(i, (a, _))| send_numbered(a, i, 50));
        let got = receive_all(&mut ends, &arena, &[50; 20]).await;
        got.iter().enumerate().for_each(|(i, g)| check(g, i, 50));
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}

#[test]
fn a_flood_does_not_starve_other_connections() {
    on_a_sharing_device(async |lab| {
        let arena = test_arena();
        let mut ends = vec![sharing_pair(&lab, &arena, 2000).await, sharing_pair(&lab, &arena, 20).await];
        send_numbered(&mut ends[0].0, 0, 2000);
        send_numbered(&mut ends[1].0, 1, 20);
        let got = receive_all(&mut ends, &arena, &[0, 20]).await;
        check(&got[1], 1, 20);
        let rest = receive_all(&mut ends, &arena, &[2000 - got[0].len(), 0]).await;
        check(&[got[0].clone(), rest[0].clone()].concat(), 0, 2000);
    });
}

#[test]
fn a_peer_that_exceeds_its_receives_loses_only_its_own_connection() {
    on_a_sharing_device(async |lab| {
        let arena = test_arena();
        let (mut a, mut b) = sharing_pair(&lab, &arena, 4).await;
        let mut ends = vec![sharing_pair(&lab, &arena, 20).await];
        send_numbered(&mut a, 0, 40);
        send_numbered(&mut ends[0].0, 1, 20);
        a.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        let error = poll_until_error(&mut b).await;
        assert!(matches!(error, ConnectionError::PeerMisbehaved(_)), "{error:?}");
        check(&receive_all(&mut ends, &arena, &[20]).await[0], 1, 20);
        poll_until_error(&mut a).await;
    });
}

/// More connections than one queue serves end, with unprocessed messages and in the middle of a message.
#[test]
fn connections_that_end_consume_no_receives() {
    on_a_sharing_device(async |lab| {
        let arena = test_arena();
        let mut ends = vec![sharing_pair(&lab, &arena, 200).await];
        for i in 0..300 {
            let (mut a, b) = sharing_pair(&lab, &arena, 40).await;
            for _ in 0..3 {
                a.post_send(send(&pattern(400, i))).unwrap();
            }
            a.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            if i % 3 == 0 {
                tokio::task::yield_now().await;
            }
            if i % 2 == 0 { drop((a, b)) } else { drop((b, a)) }
        }
        let held = arena.stats().in_use / BYTES;
        assert!((DEPTH..=DEPTH + 256).contains(&held), "{held} receives");
        send_numbered(&mut ends[0].0, 1, 200);
        check(&receive_all(&mut ends, &arena, &[200]).await[0], 1, 200);
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}

#[test]
fn connections_use_their_own_receives_if_sharing_is_unsupported() {
    on_a_device(async |lab| {
        let arena = test_arena();
        let mut ends = vec![sharing_pair(&lab, &arena, 20).await, sharing_pair(&lab, &arena, 20).await];
        ends.iter_mut().enumerate().for_each(|(i, (a, _))| send_numbered(a, i, 20));
        let got = receive_all(&mut ends, &arena, &[20; 2]).await;
        got.iter().enumerate().for_each(|(i, g)| check(g, i, 20));
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}
