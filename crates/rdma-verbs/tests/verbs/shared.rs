//! Receives that connections share.

use super::*;

const BYTES: usize = 512;
const DEPTH: usize = 16;

/// An arena of one test, whose memory can be counted.
fn counted() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

/// A connection whose accepting end shares receives with others of `arena`, and has posted `receives` besides the first.
async fn sharing(lab: &Lab, arena: &Arena, receives: usize) -> (Qp, Qp) {
    let mut listener = lab.listen();
    let to = listener.local_addr();
    let params = ConnectParams { first_receive: BYTES, shared_receives: DEPTH, ..Default::default() };
    let (a, b) = tokio::join!(lab.connect(to, ConnectParams::default()), async {
        let incoming = listener.accept().await.expect("a request");
        incoming.accept(lab.rt.clone(), arena.clone(), params).await
    });
    let (a, mut b) = (a.expect("connected"), b.expect("accepted"));
    for _ in 0..receives {
        b.post_receive(arena.alloc(BYTES).expect("memory")).unwrap();
    }
    b.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    (a, b)
}

/// Runs `test` where receives can be shared.
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

/// Polls all until the `i`-th accepting end has `want[i]` messages. Each message is answered with another receive.
async fn gather(ends: &mut [(Qp, Qp)], arena: &Arena, want: &[usize]) -> Vec<Vec<Vec<u8>>> {
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
                    b.post_receive(arena.alloc(BYTES).expect("memory")).unwrap();
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

/// Lets `a` send `n` messages that say whose and which they are.
fn say(a: &mut Qp, whose: usize, n: usize) {
    for k in 0..n {
        a.post_send(send(&pattern(300, whose * 1000 + k))).unwrap();
    }
}

fn check(got: &[Vec<u8>], whose: usize, n: usize) {
    assert_eq!(got.len(), n);
    got.iter().enumerate().for_each(|(k, m)| assert_eq!(*m, pattern(300, whose * 1000 + k), "{whose}, {k}"));
}

#[test]
fn many_connections_on_few_receives_lose_no_message() {
    on_a_sharing_device(async |lab| {
        let arena = counted();
        let mut ends = Vec::new();
        for _ in 0..20 {
            ends.push(sharing(&lab, &arena, 50).await);
        }
        // A thousand receives of their own would be 500 KiB.
        assert_eq!(arena.stats().in_use, DEPTH * BYTES);
        ends.iter_mut().enumerate().for_each(|(i, (a, _))| say(a, i, 50));
        let got = gather(&mut ends, &arena, &[50; 20]).await;
        got.iter().enumerate().for_each(|(i, g)| check(g, i, 50));
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}

#[test]
fn a_flood_starves_nobody() {
    on_a_sharing_device(async |lab| {
        let arena = counted();
        let mut ends = vec![sharing(&lab, &arena, 2000).await, sharing(&lab, &arena, 20).await];
        say(&mut ends[0].0, 0, 2000);
        say(&mut ends[1].0, 1, 20);
        let got = gather(&mut ends, &arena, &[0, 20]).await;
        check(&got[1], 1, 20);
        let rest = gather(&mut ends, &arena, &[2000 - got[0].len(), 0]).await;
        check(&[got[0].clone(), rest[0].clone()].concat(), 0, 2000);
    });
}

#[test]
fn a_peer_that_sends_more_than_there_are_receives_for_loses_its_own_connection_only() {
    on_a_sharing_device(async |lab| {
        let arena = counted();
        let (mut a, mut b) = sharing(&lab, &arena, 4).await;
        let mut ends = vec![sharing(&lab, &arena, 20).await];
        say(&mut a, 0, 40);
        say(&mut ends[0].0, 1, 20);
        a.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        let error = poll_until_error(&mut b).await;
        assert!(matches!(error, ConnectionError::PeerMisbehaved(_)), "{error:?}");
        check(&gather(&mut ends, &arena, &[20]).await[0], 1, 20);
        poll_until_error(&mut a).await;
    });
}

/// More connections than one queue serves end with messages that nobody has read, and in the middle of one.
#[test]
fn connections_that_end_take_no_receives_along() {
    on_a_sharing_device(async |lab| {
        let arena = counted();
        let mut ends = vec![sharing(&lab, &arena, 200).await];
        for i in 0..300 {
            let (mut a, b) = sharing(&lab, &arena, 40).await;
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
        say(&mut ends[0].0, 1, 200);
        check(&gather(&mut ends, &arena, &[200]).await[0], 1, 200);
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}

#[test]
fn where_receives_cannot_be_shared_each_connection_has_its_own() {
    on_a_device(async |lab| {
        let arena = counted();
        let mut ends = vec![sharing(&lab, &arena, 20).await, sharing(&lab, &arena, 20).await];
        ends.iter_mut().enumerate().for_each(|(i, (a, _))| say(a, i, 20));
        let got = gather(&mut ends, &arena, &[20; 2]).await;
        got.iter().enumerate().for_each(|(i, g)| check(g, i, 20));
        drop(ends);
        assert_eq!(arena.stats().in_use, 0);
    });
}
