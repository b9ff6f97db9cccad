//! Allocations and memory.

use std::{io::IoSlice, task::Poll};

use millrace_counting_allocator::{allocations, held_bytes};
use millrace_runtime::{ByteStream, memory_stream};
use millrace_tls::{HANDSHAKE_BYTES, Session, TlsStream};

use crate::common::{Authority, cx, ends, open, pattern, read, shake, write};

#[test]
fn the_steady_state_allocates_nothing() {
    let (mut a, mut b) = open(1 << 20);
    let (bulk, mut got) = (pattern(200_000), vec![0; 300_000]);
    let mut round = |sizes: &[usize]| {
        for size in sizes {
            for turn in [true, false] {
                let (from, to) = if turn { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let (mut sent, mut received) = (0, 0);
                while received < *size {
                    if let Poll::Ready(n) = from.poll_write(&mut cx(), &[IoSlice::new(&bulk[sent..*size])]) {
                        sent += n.unwrap();
                    }
                    while let Poll::Ready(n) = read(to, &mut got) {
                        received += n.unwrap();
                    }
                }
            }
        }
    };
    let sizes = [1, 100, 16_384, 200_000, 100, 16_385, 4096, 65_536];
    round(&sizes);
    round(&sizes);
    let before = allocations();
    for _ in 0..20 {
        round(&sizes);
    }
    assert_eq!(allocations() - before, 0);
}

#[test]
fn an_idle_session_has_its_keys_only() {
    let ca = Authority::new();
    let (client, server) = (ca.client(None), ca.server(&["nfs.test"], |_| {}));
    let run = |pairs: usize| {
        let mut ends_: Vec<_> = (0..pairs).map(|_| ends(&client, &server, "nfs.test", 1 << 20)).collect();
        for (a, b) in &mut ends_ {
            let (ra, rb) = shake(a, b);
            ra.and(rb).unwrap();
            for turn in [true, false] {
                let (from, to) = if turn { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
                assert!(write(from, &pattern(20_000)).is_ready());
                while read(to, &mut [0; 4096]).is_ready() {}
                assert!(from.poll_flush(&mut cx()).is_ready());
            }
        }
        // The pipes below keep what they needed; so do tests without TLS.
        ends_
    };
    let plain = |pairs: usize| {
        let mut ends_: Vec<_> = (0..pairs).map(|_| memory_stream(1 << 20, 1 << 20)).collect();
        for (a, b) in &mut ends_ {
            for turn in [true, false] {
                let (from, to) = if turn { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
                assert!(write(from, &pattern(20_044)).is_ready());
                while read(to, &mut [0; 4096]).is_ready() {}
            }
        }
        ends_
    };
    drop(run(2)); // Memory of the thread.
    let start = held_bytes();
    let sessions = run(50);
    let with = held_bytes() - start;
    drop(sessions);
    let start = held_bytes();
    let streams = plain(50);
    let without = held_bytes() - start;
    drop(streams);
    let each = (with - without) / 100;
    assert!(each < 3072, "{each} bytes for an idle end");
}

#[test]
fn a_handshake_has_bounded_memory() {
    let ca = Authority::new();
    let server = ca.server(&["nfs.test"], |_| {});
    // The most memory of a handshake with fragments of `len` bytes of a ClientHello that announces 65,535 bytes.
    let attack = |len: usize| {
        let (mut a, b) = memory_stream(1 << 16, 1 << 20);
        let mut body = [&[1, 0, 0xff, 0xff, 3, 3][..], &vec![7; 1 << 20]].concat().into_iter();
        let start = held_bytes();
        let mut b = TlsStream::new(b, Session::server(&server).unwrap());
        let mut most = 0;
        loop {
            let fragment: Vec<u8> = body.by_ref().take(len).collect();
            assert!(
                write(&mut a, &[&[22, 3, 1, (len >> 8) as u8, len as u8], &fragment[..]].concat()).is_ready()
            );
            if let Poll::Ready(done) = b.poll_handshake(&mut cx()) {
                assert!(done.is_err());
                return most;
            }
            most = most.max(held_bytes() - start - 2 * (len as i64 + 5));
        }
    };
    for len in [1, 255, 256, 4096, 16_384] {
        (0..8).for_each(|_| _ = attack(len)); // Memory of the thread.
        let most = attack(len);
        assert!((most as usize) < HANDSHAKE_BYTES, "{most} bytes for fragments of {len}");
    }
}
