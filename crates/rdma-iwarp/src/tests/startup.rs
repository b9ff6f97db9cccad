//! MPA startup with a peer that sends given bytes, in both roles.

use super::{raw::*, *};

const KEY: &str = "4d504120494420526571204672616d65";
const REPLY_KEY: &str = "4d504120494420526570204672616d65";

fn params(ird: u16, ord: u16) -> ConnectParams {
    ConnectParams { ird, ord, private_data: vec![9, 8, 7], ..ConnectParams::default() }
}

/// The result of a responder for `request`, and its reply.
fn answered(request: &str, p: ConnectParams) -> (Result<Qp, ConnectionError>, Vec<u8>) {
    let (qp, mut raw) = accept(&hex(request), usize::MAX, p);
    (qp.expect("the responder did not finish"), raw.read())
}

#[test]
fn depths_crc_and_private_data_are_negotiated_by_the_responder() {
    // The request of Linux's NFS client: IRD 128, ORD 0.
    let (qp, reply) = answered(&format!("{KEY} 1002 000c 0080 0000 f6ab0e18 01010303"), params(0, 16));
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 1002 0007 0000 0010 090807")));
    let qp = qp.unwrap();
    let i = qp.info();
    assert_eq!((i.ird, i.ord, i.crc), (0, 16, false));
    assert_eq!(i.private_data, [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3]);
    // ORD reduced to the peer's IRD, IRD raised to the peer's ORD, both within limits; CRC because the peer
    // requests it.
    let (qp, reply) = answered(&format!("{KEY} 5002 0004 0002 0fff"), params(4, 16));
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 5002 0007 0080 0002 090807")));
    assert!(qp.unwrap().info().crc);
    // No negotiation.
    let (qp, reply) = answered(&format!("{KEY} 1002 0004 3fff 3fff"), params(4, 16));
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 1002 0007 3fff 3fff 090807")));
    assert_eq!((qp.as_ref().unwrap().info().ird, qp.unwrap().info().ord), (4, 16));
    // Revision 1, and revision 2 without control words.
    let (qp, reply) = answered(&format!("{KEY} 4001 0000"), params(4, 16));
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 4001 0003 090807")));
    assert!(qp.unwrap().info().crc);
    let (_, reply) = answered(&format!("{KEY} 0002 0001 55"), params(4, 16));
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 0002 0003 090807")));
    // CRC because this end requests it; reserved bits (siw's GSO hint) are ignored.
    let (_, reply) =
        answered(&format!("{KEY} 1802 0004 0001 0001"), ConnectParams { crc: true, ..params(1, 1) });
    assert_eq!(reply[16..18], [0x50, 2]);
}

#[test]
fn a_request_may_arrive_byte_by_byte_with_maximum_private_data() {
    let request = [&hex(&format!("{KEY} 1002 0200 0001 0001"))[..], &[5; 508]].concat();
    let (qp, _) = accept(&request, 1, params(1, 1));
    assert_eq!(qp.unwrap().unwrap().info().private_data, [5; 508]);
}

#[test]
fn the_rtr_message_is_negotiated_and_not_delivered() {
    // (offer, choice, the message)
    let cases: [(&str, &str, Vec<u8>); 5] = [
        ("8001 c000", "8001 8000", tagged(0xc140, 0, 0, b"")),
        ("c001 8000", "8001 8000", tagged(0xc140, 0, 0, b"")),
        ("8001 4000", "8001 4001", untagged(0x4141, 0, [1, 1, 0], &read_body((7, 8), 0, (0, 0)))),
        ("c001 0000", "c001 0000", raw_send(1, b"")),
        ("8001 0000", "8001 8000", tagged(0xc140, 0, 0, b"")),
    ];
    for (offer, chosen, rtr) in cases {
        let p = ConnectParams { private_data: vec![], ..params(1, 1) };
        let p = ConnectParams { ord: if offer == "8001 4000" { 1 } else { 0 }, ..p };
        let (qp, mut raw) = accept(&hex(&format!("{KEY} 1002 0004 {offer}")), usize::MAX, p);
        let mut qp = qp.unwrap().unwrap();
        assert_eq!(raw.read(), hex(&format!("{REPLY_KEY} 1002 0004 {chosen}")), "{offer}");
        qp.post_send(send(b"first")).unwrap();
        let mut out = Vec::new();
        poll_qp(&mut qp, &mut out).unwrap();
        assert_eq!(raw.read(), b"", "data before the initiator's first message");
        raw.write(&framed(&rtr));
        for _ in 0..5 {
            poll_qp(&mut qp, &mut out).unwrap();
        }
        assert!(out.is_empty(), "{offer}: {out:?}");
        let sent = raw.ulpdus();
        assert!(sent.contains(&raw_send(1, b"first")), "{offer}");
        assert_eq!(sent.len(), if rtr[1] == 0x41 { 2 } else { 1 });
        // Later empty messages are delivered.
        qp.post_receive(buffer(&[0; 8])).unwrap();
        raw.write(&framed(&raw_send(if rtr[1] == 0x43 { 2 } else { 1 }, b"")));
        poll_qp(&mut qp, &mut out).unwrap();
        assert_eq!(received(&out[0]), b"");
    }
}

#[test]
fn invalid_requests_end_the_connection() {
    for (name, request) in [
        ("the reply's key", format!("{REPLY_KEY} 1002 0004 0001 0001")),
        ("another protocol", "47 45 54 20 2f 20 48 54 54 50 2f 31 2e 31 0d 0a 0d 0a 0d 0a".into()),
        ("513 bytes of private data", format!("{KEY} 1002 0201 0001 0001")),
        ("65535 bytes of private data", format!("{KEY} 1002 ffff 0001 0001")),
        ("revision 0", format!("{KEY} 0000 0000")),
        ("revision 3", format!("{KEY} 1003 0004 0001 0001")),
        ("no control words", format!("{KEY} 1002 0000")),
        ("one byte of control words", format!("{KEY} 1002 0001 00")),
        ("two bytes of control words", format!("{KEY} 1002 0002 0001")),
        ("three bytes of control words", format!("{KEY} 1002 0003 000100")),
        ("the reject bit", format!("{KEY} 3002 0004 0001 0001")),
        ("data before the reply", format!("{KEY} 1002 0004 0001 0001 00")),
    ] {
        let (a, b) = memory_stream(1000, usize::MAX);
        let (mut raw, time) = (Raw { stream: a }, Arc::default());
        let rt = Arc::new(ManualClock(Arc::clone(&time)));
        let mut r = Box::pin(accept_over(rt, arena(), Box::new(b), params(1, 1)));
        raw.write(&hex(&request));
        let mut end = poll_once(&mut r);
        if !name.starts_with("revision") {
            // A delay limits the load of a peer that reconnects immediately.
            assert!(end.is_pending(), "{name}: closed without delay");
            time.fetch_add(5_000_000_000, std::sync::atomic::Ordering::Relaxed);
            end = poll_once(&mut r);
        }
        assert!(matches!(end, Poll::Ready(Err(_))), "{name}");
        drop(r);
        assert_eq!(raw.read(), b"", "{name}");
    }
    let (qp, reply) = answered(&format!("{KEY} 9002 0004 0001 0001"), params(1, 1));
    assert!(matches!(qp, Err(ConnectionError::Incompatible(_))), "markers");
    assert_eq!(reply, hex(&format!("{REPLY_KEY} 3002 0004 0000 0000")));
}

#[test]
fn an_incomplete_request_waits_and_an_early_close_fails() {
    let request = hex(&format!("{KEY} 1002 0004 0001 0001"));
    for n in 0..request.len() {
        let (qp, _raw) = accept(&request[..n], usize::MAX, params(1, 1));
        assert!(qp.is_none(), "finished after {n} bytes");
        let (a, b) = memory_stream(1000, 1000);
        let mut raw = Raw { stream: a };
        raw.write(&request[..n]);
        drop(raw);
        let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params(1, 1)));
        assert!(matches!(poll_once(&mut r), Poll::Ready(Err(ConnectionError::Io(_)))), "{n}");
    }
}

/// Runs an initiator with the parameters `p`, and answers its request with `reply`. Returns the request, the
/// result, and the bytes that the initiator sent after the reply.
fn initiated(p: ConnectParams, reply: &str) -> (Vec<u8>, Result<Qp, ConnectionError>, Vec<u8>) {
    let (a, b) = memory_stream(1000, 3);
    let mut raw = Raw { stream: b };
    let mut i = Box::pin(connect_over(runtime(), arena(), Box::new(a), p));
    assert!(poll_once(&mut i).is_pending());
    let request = raw.read();
    raw.write(&hex(reply));
    for _ in 0..100 {
        if let Poll::Ready(end) = poll_once(&mut i) {
            return (request, end, raw.read());
        }
    }
    panic!("the initiator did not finish");
}

#[test]
fn the_initiator_uses_the_parameters_of_the_reply() {
    let (request, qp, _) = initiated(params(8, 16), &format!("{REPLY_KEY} 5002 0005 0004 0020 aa"));
    assert_eq!(request, hex(&format!("{KEY} 1002 0007 0008 0010 090807")));
    let qp = qp.unwrap();
    let i = qp.info();
    assert_eq!((i.ird, i.ord, i.crc, &i.private_data[..]), (32, 4, true, &[0xaa][..]));
    let (_, qp, _) = initiated(params(8, 16), &format!("{REPLY_KEY} 1002 0004 3fff 3fff"));
    assert_eq!((qp.as_ref().unwrap().info().ird, qp.unwrap().info().ord), (8, 16));
}

#[test]
fn the_initiator_rejects_unsupported_replies() {
    let (_, end, sent) = initiated(params(8, 16), &format!("{REPLY_KEY} 1002 0004 0004 0081"));
    assert!(matches!(end, Err(ConnectionError::Incompatible(_))));
    assert_eq!(sent[20..24], [0x20, 0x06, 0, 0], "insufficient IRD");
    let (_, end, _) = initiated(params(1, 1), &format!("{REPLY_KEY} 3002 0005 0000 0000 77"));
    assert!(matches!(end, Err(ConnectionError::Rejected(p)) if p == [0x77]));
    let (_, end, _) = initiated(params(1, 1), &format!("{REPLY_KEY} 9002 0004 0001 0001"));
    assert!(matches!(end, Err(ConnectionError::Incompatible(_))), "markers");
    let (_, end, _) = initiated(params(1, 1), &format!("{REPLY_KEY} 0001 0000"));
    assert!(matches!(end, Err(ConnectionError::Incompatible(_))), "revision 1");
    let (_, end, _) = initiated(params(1, 1), &format!("{KEY} 1002 0004 0001 0001"));
    assert!(matches!(end, Err(ConnectionError::PeerMisbehaved(_))), "two initiators");
}

/// A runtime whose time the test sets. The end of a sleep wakes no task; it must be polled.
struct ManualClock(Arc<std::sync::atomic::AtomicU64>);

impl Runtime for ManualClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn wall_clock(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        let now = Self(Arc::clone(&self.0));
        let over = move |_: &mut Context<'_>| if now.now() >= at { Poll::Ready(()) } else { Poll::Pending };
        Box::pin(std::future::poll_fn(over))
    }

    fn spawn(&self, _name: &'static str, _task: BoxFuture<'static, ()>) {}

    fn spawn_blocking(&self, _work: Box<dyn FnOnce() + Send>) {}

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// An initiator after startup, its peer, and its time in nanoseconds.
fn initiator_with_clock() -> (Qp, Raw, Arc<std::sync::atomic::AtomicU64>) {
    let (a, b) = memory_stream(1000, usize::MAX);
    let (mut raw, time) = (Raw { stream: b }, Arc::default());
    let rt = Arc::new(ManualClock(Arc::clone(&time)));
    let mut i = Box::pin(connect_over(rt, arena(), Box::new(a), params(8, 16)));
    assert!(poll_once(&mut i).is_pending());
    raw.read();
    raw.write(&hex(&format!("{REPLY_KEY} 1002 0004 0008 0010")));
    let Poll::Ready(Ok(qp)) = poll_once(&mut i) else { panic!("no connection") };
    (qp, raw, time)
}

#[test]
fn empty_writes_are_sent_to_a_responder_that_does_not_answer() {
    let (mut qp, mut raw, time) = initiator_with_clock();
    let mut pass = |qp: &mut Qp, milliseconds: u64| {
        time.fetch_add(milliseconds * 1_000_000, std::sync::atomic::Ordering::Relaxed);
        poll_qp(qp, &mut Vec::new()).unwrap();
        raw.read()
    };
    assert_eq!(pass(&mut qp, 1000), b"", "empty Write before the first message");
    qp.post_send(send(b"")).unwrap();
    assert_eq!(pass(&mut qp, 0).len(), 24);
    assert_eq!(pass(&mut qp, 49), b"");
    for wait in [1, 100, 200, 400] {
        let empty_write = hex("000e c140 00000000 00000000 00000000 00000000");
        assert_eq!(pass(&mut qp, wait), empty_write, "after {wait} ms more");
    }
    assert_eq!(pass(&mut qp, 10_000), b"", "more than four empty Writes");
    assert_eq!(pass(&mut qp, 10_000), b"");
}

#[test]
fn no_empty_writes_are_sent_to_a_responder_that_answers() {
    let (mut qp, mut raw, time) = initiator_with_clock();
    let mut out = Vec::new();
    qp.post_receive(buffer(&[0; 8])).unwrap();
    qp.post_send(send(b"call")).unwrap();
    poll_qp(&mut qp, &mut out).unwrap();
    raw.read();
    raw.write(&framed(&raw_send(1, b"reply")));
    poll_qp(&mut qp, &mut out).unwrap();
    time.store(10_000_000_000, std::sync::atomic::Ordering::Relaxed);
    poll_qp(&mut qp, &mut out).unwrap();
    assert_eq!((received(&out[0]), raw.read()), (&b"reply"[..], vec![]));
}

#[test]
fn reads_need_an_ord_and_private_data_has_a_limit() {
    let (qp, _) = answered(&format!("{KEY} 1002 0004 0000 0000"), params(1, 1));
    let from = millrace_rdma::Segment { handle: millrace_rdma::SteeringTag(1), length: 0, offset: 0 };
    let read = millrace_rdma::ReadRequest { id: WorkId(1), from, sink: vec![] };
    assert!(matches!(qp.unwrap().post_read(read), Err(millrace_rdma::PostError::Invalid(_))));
    let (a, _b) = memory_stream(10, 10);
    let p = ConnectParams { private_data: vec![0; 197], ..ConnectParams::default() };
    let mut i = Box::pin(connect_over(runtime(), arena(), Box::new(a), p));
    assert!(matches!(poll_once(&mut i), Poll::Ready(Err(ConnectionError::Local(_)))));
}
