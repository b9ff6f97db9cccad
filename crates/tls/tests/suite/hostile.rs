//! A peer that violates the protocol is refused, and has no more memory or time than others.

use std::{io::IoSlice, task::Poll};

use millrace_runtime::{ByteStream, memory_stream};
use millrace_tls::{Session, TlsError, TlsStream};

use crate::common::{Authority, cx, ends, open, pattern, read, shake, write};

/// The server's error after these bytes instead of a handshake.
fn instead_of_hello(bytes: &[u8]) -> TlsError {
    let ca = Authority::new();
    let (mut a, b) = memory_stream(1 << 20, 1 << 20);
    let mut b = TlsStream::new(b, Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap());
    let _ = write(&mut a, bytes);
    a.shutdown();
    let Poll::Ready(Err(e)) = b.poll_handshake(&mut cx()) else { panic!("no error") };
    let Poll::Ready(Err(again)) = b.poll_handshake(&mut cx()) else { panic!("no error") };
    assert!(TlsError::of(&again).is_some());
    TlsError::of(&e).unwrap().clone()
}

#[test]
fn what_is_no_handshake_is_refused() {
    let clear_rpc = [0x80, 0, 0, 40, 1, 2, 3, 4, 0, 0, 0, 0];
    assert!(matches!(instead_of_hello(&clear_rpc), TlsError::Misbehaved(_)));
    assert!(matches!(instead_of_hello(b"GET / HTTP/1.1\r\n\r\n"), TlsError::Misbehaved(_)));
    // Oversized, and of an unknown type.
    assert!(matches!(instead_of_hello(&[22, 3, 1, 0xff, 0xff, 1]), TlsError::Misbehaved(_)));
    assert!(matches!(instead_of_hello(&[24, 3, 1, 0, 1, 1]), TlsError::Misbehaved(_)));
    // Application data before the handshake.
    assert!(matches!(
        instead_of_hello(&[&[23, 3, 3, 0, 20][..], &[7; 20]].concat()),
        TlsError::Misbehaved(_)
    ));
    // Empty handshake records without end.
    assert!(matches!(instead_of_hello(&[22, 3, 1, 0, 0].repeat(50_000)), TlsError::Misbehaved(_)));
    // Changes of the cipher without end.
    assert!(matches!(instead_of_hello(&[20, 3, 3, 0, 1, 1].repeat(50_000)), TlsError::Misbehaved(_)));
    assert_eq!(instead_of_hello(&[]), TlsError::Closed);
    assert_eq!(instead_of_hello(&[22, 3, 1]), TlsError::Closed);
    assert_eq!(instead_of_hello(&[21, 3, 1, 0, 2, 2, 70]), TlsError::Alert(70));
}

#[test]
fn a_hello_of_tls_1_2_is_refused_by_its_version() {
    // version, random, no session, one cipher suite (ECDHE-RSA-AES128-GCM), no compression, and the extension
    // signature_algorithms.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2f, 1, 0, 0, 8, 0, 13, 0, 4, 0, 2, 4, 3]);
    let mut message = vec![1, 0, 0, hello.len() as u8];
    message.extend(&hello);
    let mut record = vec![22, 3, 1, 0, message.len() as u8];
    record.extend(&message);
    assert_eq!(instead_of_hello(&record), TlsError::Version);
}

/// The reader's error after `change` has changed the ciphertext of one record with 100 bytes.
fn after_change(change: impl FnOnce(&mut Vec<u8>)) -> TlsError {
    let ca = Authority::new();
    let (client, server) = (ca.client(None), ca.server(&["nfs.test"], |_| {}));
    // The server's end is driven by hand.
    let (mut raw, a) = memory_stream(1 << 20, 1 << 20);
    let name = millrace_tls::PeerName::parse("nfs.test").unwrap();
    let mut a = TlsStream::new(a, Session::client(&client, &name).unwrap());
    let mut b = Session::server(&server).unwrap();
    while !(b.is_open() && a.poll_handshake(&mut cx()).is_ready()) {
        let _ = a.poll_handshake(&mut cx()).map(Result::unwrap);
        if let Poll::Ready(n) = raw.poll_read(&mut cx(), &mut [std::io::IoSliceMut::new(b.space())]) {
            b.received(n.unwrap());
        }
        b.handshake().unwrap();
        let bytes = b.outgoing().to_vec();
        b.sent(bytes.len());
        if !bytes.is_empty() {
            assert!(matches!(write(&mut raw, &bytes), Poll::Ready(Ok(n)) if n == bytes.len()));
        }
    }
    assert_eq!(b.write(&[IoSlice::new(&pattern(100))]).unwrap(), 100);
    let mut bytes = b.outgoing().to_vec();
    change(&mut bytes);
    assert!(write(&mut raw, &bytes).is_ready());
    let mut got = Vec::new();
    loop {
        let mut buf = [0; 50];
        match read(&mut a, &mut buf) {
            Poll::Ready(Ok(n)) => got.extend_from_slice(&buf[..n]),
            Poll::Ready(Err(e)) => return TlsError::of(&e).unwrap().clone(),
            Poll::Pending => panic!("accepted: {} bytes", got.len()),
        }
    }
}

#[test]
fn changed_records_are_refused() {
    for at in [0, 1, 4, 5, 60, 121] {
        let e = after_change(|bytes| bytes[at] ^= 0x40);
        assert!(matches!(e, TlsError::Misbehaved(_)), "byte {at}: {e}");
    }
    // Repeated, oversized, clear.
    let repeated = after_change(|bytes| bytes.extend_from_within(..));
    assert!(repeated.to_string().contains("does not decrypt"), "{repeated}");
    let oversized = after_change(|bytes| *bytes = [&[23, 3, 3, 0x41, 1][..], &[0; 0x4101]].concat());
    assert!(oversized.to_string().contains("oversized"), "{oversized}");
    let clear = after_change(|bytes| *bytes = vec![22, 3, 3, 0, 4, 24, 0, 0, 1]);
    assert!(clear.to_string().contains("in the clear"), "{clear}");
    let clear = after_change(|bytes| *bytes = vec![20, 3, 3, 0, 1, 1]);
    assert!(clear.to_string().contains("in the clear"), "{clear}");
    let empty = after_change(|bytes| *bytes = vec![23, 3, 3, 0, 0]);
    assert!(empty.to_string().contains("does not decrypt"), "{empty}");
}

#[test]
fn updates_of_keys_without_data_are_limited() {
    let (mut a, b) = open(1 << 20);
    drop(b);
    drop(read(&mut a, &mut [0]));
    let ca = Authority::new();
    let name = millrace_tls::PeerName::parse("nfs.test").unwrap();
    let mut client = Session::client(&ca.client(None), &name).unwrap();
    let mut server = Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap();
    let pump = |from: &mut Session, to: &mut Session| {
        let bytes = from.outgoing().to_vec();
        to.space()[..bytes.len()].copy_from_slice(&bytes);
        to.received(bytes.len());
        from.sent(bytes.len());
    };
    while !(client.is_open() && server.is_open()) {
        client.handshake().unwrap();
        pump(&mut client, &mut server);
        server.handshake().unwrap();
        pump(&mut server, &mut client);
    }
    let mut accepted = 0;
    let e = loop {
        client.refresh_key().unwrap();
        pump(&mut client, &mut server);
        match server.read(&mut [std::io::IoSliceMut::new(&mut [0])]) {
            Ok(None) => accepted += 1,
            other => break other.unwrap_err(),
        }
    };
    assert_eq!(
        (accepted, e.to_string()),
        (32, "the peer violates TLS: too many records without data".into())
    );
    assert!(server.outgoing().len() < 100, "one alert");
    assert!(server.write(&[IoSlice::new(&[1])]).is_err());
}

#[test]
fn a_session_that_failed_sends_an_alert() {
    let ca = Authority::new();
    let (mut a, mut b) = ends(&ca.client(None), &ca.server(&["a.test"], |_| {}), "b.test", 3);
    let (ra, rb) = shake(&mut a, &mut b);
    assert!(ra.is_err());
    assert!(rb.unwrap_err().to_string().starts_with("the peer refused: "));
}

/// A record with a ClientHello of TLS 1.3 with these extensions, after those that it needs.
fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
    let needed: [(u16, &[u8]); 2] = [(43, &[2, 3, 4]), (13, &[0, 2, 4, 3])];
    let mut all = Vec::new();
    for (kind, body) in needed.iter().chain(extensions) {
        all.extend(kind.to_be_bytes());
        all.extend((body.len() as u16).to_be_bytes());
        all.extend(*body);
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend((all.len() as u16).to_be_bytes());
    body.extend(all);
    let message = [&[1, 0, (body.len() >> 8) as u8, body.len() as u8][..], &body].concat();
    [&[22, 3, 1, (message.len() >> 8) as u8, message.len() as u8][..], &message].concat()
}

const GROUPS: u16 = 10;
const EARLY_DATA: u16 = 42;
const KEY_SHARE: u16 = 51;
const X25519: [u8; 2] = [0, 29];

/// The base point of x25519 as a share.
fn share() -> Vec<u8> {
    let mut share = vec![0, 36, 0, 29, 0, 32, 9];
    share.extend([0; 31]);
    share
}

/// A server, and the other end of its stream.
fn server() -> (impl ByteStream, TlsStream<impl ByteStream>) {
    let ca = Authority::new();
    let (a, b) = memory_stream(1 << 20, 1 << 20);
    (a, TlsStream::new(b, Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap()))
}

#[test]
fn unknown_groups_are_refused() {
    let e =
        instead_of_hello(&hello(&[(GROUPS, &[0, 2, 0x12, 0x34]), (KEY_SHARE, &[0, 5, 0x12, 0x34, 0, 1, 1])]));
    assert!(matches!(e, TlsError::Misbehaved(_)), "{e}");
}

#[test]
fn a_second_hello_without_the_requested_share_is_refused() {
    let (mut a, mut b) = server();
    let without = hello(&[(GROUPS, &[&[0, 2][..], &X25519].concat()), (KEY_SHARE, &[0, 0])]);
    assert!(write(&mut a, &without).is_ready());
    assert!(b.poll_handshake(&mut cx()).is_pending());
    let mut request = [0; 4096];
    let Poll::Ready(Ok(n)) = read(&mut a, &mut request) else { panic!("no HelloRetryRequest") };
    // A ServerHello, whose random value makes it a HelloRetryRequest (RFC 8446 section 4.1.3).
    assert!(n > 50 && request[0] == 22 && request[11..15] == [0xcf, 0x21, 0xad, 0x74], "{:?}", &request[..n]);
    assert!(write(&mut a, &without.repeat(100)).is_ready());
    let Poll::Ready(Err(e)) = b.poll_handshake(&mut cx()) else { panic!("no error") };
    assert!(matches!(TlsError::of(&e), Some(TlsError::Misbehaved(_))), "{e}");
    // An alert, and no other request.
    let Poll::Ready(Ok(n)) = read(&mut a, &mut request) else { panic!("no alert") };
    assert!(n < 20, "{:?}", &request[..n]);
}

#[test]
fn early_data_is_never_delivered_and_bounded() {
    let (mut a, mut b) = server();
    let hello =
        hello(&[(GROUPS, &[&[0, 2][..], &X25519].concat()), (KEY_SHARE, &share()), (EARLY_DATA, &[])]);
    assert!(write(&mut a, &hello).is_ready());
    let record = [&[23, 3, 3, 0, 100][..], &[7; 100]].concat();
    for _ in 0..1000 {
        let _ = write(&mut a, &record);
        match read(&mut b, &mut [0; 1000]) {
            Poll::Pending => {}
            Poll::Ready(Ok(n)) => panic!("{n} bytes"),
            Poll::Ready(Err(e)) => {
                assert!(matches!(TlsError::of(&e), Some(TlsError::Misbehaved(_))), "{e}");
                return;
            }
        }
    }
    panic!("no error");
}
