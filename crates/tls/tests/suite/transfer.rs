//! Data in both directions.

use std::{
    io::{self, IoSlice, IoSliceMut},
    task::Poll,
};

use millrace_runtime::{ByteStream, memory_stream};
use millrace_tls::{PeerName, Session, TlsError, TlsStream};

use crate::common::{Authority, cx, ends, open, pattern, read, send, shake, write};

#[test]
fn every_segmentation_of_handshake_and_data_has_the_same_result() {
    let ca = Authority::new();
    let (client, server) = (ca.client(None), ca.server(&["nfs.test"], |_| {}));
    let data = pattern(700);
    for segment in 1..=1500 {
        let (mut a, mut b) = ends(&client, &server, "nfs.test", segment);
        let (ra, rb) = shake(&mut a, &mut b);
        ra.unwrap();
        rb.unwrap();
        assert_eq!(send(&mut a, &mut b, &data, 129), data, "segments of {segment}");
        assert_eq!(send(&mut b, &mut a, &data, 1000), data, "segments of {segment}");
    }
}

#[test]
fn every_segmentation_of_full_records_has_the_same_result() {
    let data = pattern(70_000);
    let step = |s: &usize| s + 1 + s / 3;
    for segment in std::iter::successors(Some(1), |s| Some(step(s))).take_while(|s| *s < 70_000) {
        let (mut a, mut b) = open(segment);
        assert!(send(&mut a, &mut b, &data, 16_384) == data, "segments of {segment}");
    }
}

#[test]
fn data_moves_in_both_directions_at_once() {
    let ca = Authority::new();
    let (a, b) = memory_stream(3000, 777); // Less than a record.
    let client = Session::client(&ca.client(None), &PeerName::parse("nfs.test").unwrap()).unwrap();
    let mut a = TlsStream::new(a, client);
    let mut b = TlsStream::new(b, Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap());
    let data = pattern(300_000);
    let (mut sent, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
    while got.iter().any(|g| g.len() < data.len()) {
        for (i, end) in [&mut a, &mut b].into_iter().enumerate() {
            if let Poll::Ready(n) = write(end, &data[sent[i]..]) {
                sent[i] += n.unwrap();
            }
            let _ = end.poll_flush(&mut cx());
            let mut buf = [0; 5000];
            if let Poll::Ready(n) = read(end, &mut buf) {
                got[i].extend_from_slice(&buf[..n.unwrap()]);
            }
        }
    }
    assert!(got[0] == data && got[1] == data);
}

#[test]
fn a_read_fills_all_pieces_from_several_records_without_reading_the_stream_again() {
    let (mut a, mut b) = open(1 << 20);
    let data = pattern(60_000);
    let pieces = [&data[..1], &data[1..20_000], &[], &data[20_000..]].map(IoSlice::new);
    assert!(matches!(a.poll_write(&mut cx(), &pieces), Poll::Ready(Ok(60_000))));
    let mut got = vec![0; 60_000];
    let (first, rest) = got.split_at_mut(17_000);
    let (second, third) = rest.split_at_mut(3);
    let mut bufs = [first, second, third].map(IoSliceMut::new);
    assert!(matches!(b.poll_read(&mut cx(), &mut bufs), Poll::Ready(Ok(60_000))));
    assert!(got == data);
    assert!(read(&mut b, &mut [0]).is_pending());
}

#[test]
fn received_data_is_returned_before_an_error_of_the_stream() {
    let (mut a, mut b) = open(1 << 20);
    assert!(write(&mut a, b"last words").is_ready());
    drop(a);
    let mut buf = [0; 4];
    assert!(matches!(read(&mut b, &mut buf), Poll::Ready(Ok(4))));
    assert!(matches!(read(&mut b, &mut [0; 9]), Poll::Ready(Ok(6))));
    assert!(matches!(read(&mut b, &mut buf), Poll::Ready(Err(_))));
}

#[test]
fn an_end_without_a_closure_alert_is_an_error() {
    let (mut a, mut b) = open(1 << 20);
    assert_eq!(send(&mut a, &mut b, b"data", 4), b"data");
    drop(a);
    let Poll::Ready(Err(e)) = read(&mut b, &mut [0; 4]) else { panic!("no error") };
    assert_eq!((e.kind(), TlsError::of(&e)), (io::ErrorKind::UnexpectedEof, Some(&TlsError::Truncated)));
}

#[test]
fn a_closure_alert_ends_one_direction() {
    let (mut a, mut b) = open(1 << 20);
    assert!(write(&mut a, b"all").is_ready());
    a.shutdown();
    assert!(matches!(read(&mut b, &mut [0; 9]), Poll::Ready(Ok(3))));
    assert!(matches!(read(&mut b, &mut [0; 9]), Poll::Ready(Ok(0))));
    assert!(matches!(read(&mut b, &mut [0; 9]), Poll::Ready(Ok(0))), "the end remains");
    assert_eq!(send(&mut b, &mut a, b"answer", 9), b"answer");
}

#[test]
fn the_closure_alert_follows_data_that_the_transport_has_not_taken() {
    let ca = Authority::new();
    let (a, b) = memory_stream(2000, 2000);
    let client = Session::client(&ca.client(None), &PeerName::parse("nfs.test").unwrap()).unwrap();
    let mut a = TlsStream::new(a, client);
    let mut b = TlsStream::new(b, Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap());
    let (ra, rb) = shake(&mut a, &mut b);
    ra.and(rb).unwrap();
    let data = pattern(10_000);
    assert!(matches!(write(&mut a, &data), Poll::Ready(Ok(10_000))));
    assert!(a.poll_flush(&mut cx()).is_pending());
    a.shutdown();
    let mut got = Vec::new();
    loop {
        let mut buf = [0; 3000];
        match read(&mut b, &mut buf) {
            Poll::Ready(Ok(0)) => break,
            Poll::Ready(n) => got.extend_from_slice(&buf[..n.unwrap()]),
            // Reading flushes, as a connection that lingers does.
            Poll::Pending => assert!(read(&mut a, &mut [0]).is_pending()),
        }
    }
    assert!(got == data);
}

#[test]
fn updates_of_keys_lose_no_data() {
    let ca = Authority::new();
    let mut client = Session::client(&ca.client(None), &PeerName::parse("nfs.test").unwrap()).unwrap();
    let mut server = Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap();
    let pump = |from: &mut Session, to: &mut Session| {
        while !from.outgoing().is_empty() {
            let bytes = from.outgoing();
            let n = bytes.len().min(1000);
            to.space()[..n].copy_from_slice(&bytes[..n]);
            to.received(n);
            from.sent(n);
        }
    };
    while !(client.is_open() && server.is_open()) {
        client.handshake().unwrap();
        pump(&mut client, &mut server);
        server.handshake().unwrap();
        pump(&mut server, &mut client);
    }
    for round in 0..100u8 {
        for turn in [true, false] {
            let (from, to) = if turn { (&mut client, &mut server) } else { (&mut server, &mut client) };
            from.refresh_key().unwrap();
            let data = [round; 100];
            assert_eq!(from.write(&[IoSlice::new(&data)]).unwrap(), 100);
            pump(from, to);
            let mut got = [0; 200];
            assert_eq!(to.read(&mut [IoSliceMut::new(&mut got)]).unwrap(), Some(100));
            assert_eq!(got[..100], data);
        }
    }
}
