//! Connection setup: connecting, accepting, rejecting.

use millrace_rdma::RejectReason;

use super::*;

#[test]
fn both_ends_see_addresses_private_data_and_read_depths() {
    on_a_device(async |lab| {
        let mut listener = lab.listen();
        let to = listener.local_addr();
        assert_ne!(to.port(), 0);
        let active = ConnectParams { ird: 4, ord: 9, private_data: vec![1, 2, 3], ..Default::default() };
        let passive = ConnectParams { ird: 6, ord: 7, private_data: vec![9; 100], ..Default::default() };
        let (a, b) = tokio::join!(lab.connect(to, active), async {
            let incoming = listener.accept().await.unwrap();
            assert_eq!(incoming.peer().ip(), lab.ip);
            lab.accept(incoming, passive).await
        });
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.info().peer, to);
        assert_eq!(b.info().local, to);
        assert_eq!(b.info().peer, a.info().local);
        // InfiniBand pads private data with zeros.
        assert_eq!(a.info().private_data[..100], [9; 100]);
        assert_eq!(b.info().private_data[..3], [1, 2, 3]);
        assert_eq!((a.info().ird, b.info().ord), (4, 4));
        // A software responder raises its IRD to the peer's ORD (RFC 6581 section 4).
        let depth = if lab.is_software() { 9 } else { 6 };
        assert_eq!(b.info().ird, depth);
        // An iWARP driver may report a smaller ORD to the active end than was negotiated.
        assert!(if is_iwarp(&a) { (4..=depth).contains(&a.info().ord) } else { a.info().ord == depth });
        assert_eq!(a.capabilities().provider, lab.provider.name());
    });
}

#[test]
fn a_rejected_peer_gets_an_error() {
    on_a_device(async |lab| {
        let mut listener = lab.listen();
        let to = listener.local_addr();
        let (a, ()) = tokio::join!(lab.connect(to, ConnectParams::default()), async {
            listener.accept().await.unwrap().reject(RejectReason::NotAllowed);
        });
        assert!(matches!(a.err().unwrap(), ConnectionError::Rejected(_)));
        // A dropped request is rejected too.
        let (a, ()) = tokio::join!(lab.connect(to, ConnectParams::default()), async {
            drop(listener.accept().await.unwrap());
        });
        assert!(matches!(a.err().unwrap(), ConnectionError::Rejected(_) | ConnectionError::Io(_)));
    });
}

#[test]
fn connecting_to_a_closed_port_names_the_reason() {
    on_a_device(async |lab| {
        let to = SocketAddr::new(lab.ip, 4);
        let error = lab.connect(to, ConnectParams::default()).await.err().unwrap().to_string();
        assert!(error.contains("listener on") || error.contains("refused"), "{error}");
    });
}

#[test]
fn an_address_without_a_device_is_an_error() {
    on_a_device(async |lab| {
        if lab.is_software() {
            return eprintln!("skipped: the provider supports every address");
        }
        let error =
            lab.provider.listen(lab.rt.clone(), "127.0.0.1:0".parse().unwrap()).err().unwrap().to_string();
        assert!(error.contains("no RDMA device has the address"), "{error}");
        let params = ConnectParams { timeout: Duration::from_secs(3), ..Default::default() };
        let error = lab.connect("192.0.2.1:20049".parse().unwrap(), params).await.err().unwrap();
        assert!(
            matches!(
                error,
                ConnectionError::Io(_) | ConnectionError::Local(_) | ConnectionError::TimedOut(_)
            ),
            "{error:?}"
        );
    });
}

#[test]
fn private_data_over_the_limit_is_a_local_error() {
    on_a_device(async |lab| {
        let listener = lab.listen();
        let to = listener.local_addr();
        let params = ConnectParams { private_data: vec![0; 197], ..Default::default() };
        let error = lab.connect(to, params).await.err().unwrap();
        assert!(matches!(&error, ConnectionError::Local(t) if t.contains("197 bytes")), "{error:?}");
    });
}

#[test]
fn connecting_to_a_listener_that_does_not_accept_times_out() {
    on_a_device(async |lab| {
        let listener = lab.listen();
        let params = ConnectParams { timeout: Duration::from_millis(300), ..Default::default() };
        let error = lab.connect(listener.local_addr(), params).await.err().unwrap();
        assert!(matches!(error, ConnectionError::TimedOut(_)), "{error:?}");
    });
}

#[test]
fn many_connections_are_made_and_dropped() {
    on_a_device(async |lab| {
        for _ in 0..5 {
            let mut held = Vec::new();
            for _ in 0..8 {
                let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
                deliver(&mut a, &mut b, b"hello").await;
                held.push((a, b));
            }
        }
    });
}

#[test]
fn the_first_receive_takes_an_early_message() {
    on_a_device(async |lab| {
        if lab.is_software() {
            return eprintln!("skipped: messages wait in the socket until the owner has posted receives");
        }
        let params = ConnectParams { first_receive: 256, ..Default::default() };
        let (mut a, mut b) = lab.pair(&params).await;
        a.post_send(send(b"no receive was posted for this")).unwrap();
        let (_, y) = run(&mut a, &mut b, (0, 1)).await;
        assert_eq!(received(&y[0]), b"no receive was posted for this");
    });
}
