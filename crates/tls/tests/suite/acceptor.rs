//! The sessions of a server together.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    task::Poll,
};

use futures::{FutureExt, future::poll_fn};
use millrace_admission::{Account, Budget};
use millrace_runtime::{ByteStream, memory_stream};
use millrace_tls::{
    Accepted, ClientConfig, PeerName, Protocol, SESSION_BYTES, ServerConfig, ServerFiles, Session,
    TlsAcceptor, TlsError, TlsStats, TlsStream,
};

use crate::common::{Authority, cx};

#[test]
fn a_reload_counts_for_handshakes_in_progress_and_their_memory_is_released() {
    let (ca, other) = (Authority::new(), Authority::new());
    let budget = Budget::unlimited();
    let acceptor = Arc::new(TlsAcceptor::default());
    acceptor.set(Some(ca.server(&["nfs.test"], |_| {})));
    let own = ca.issue("client", &["client.test"], |_| {});
    let (with, without) = (ca.client(Some(own)), ca.client(None));
    let mut accounts: Vec<_> =
        (0..8u8).map(|i| budget.open(IpAddr::V4(Ipv4Addr::new(10, 0, 0, i)).into()).unwrap()).collect();
    let mut handshakes: Vec<_> = accounts
        .iter_mut()
        .enumerate()
        .map(|(i, account)| {
            let (a, b) = memory_stream(1 << 20, 1 << 20);
            let config = if i % 2 == 0 { &with } else { &without };
            let client = Session::client(config, &PeerName::parse("nfs.test").unwrap()).unwrap();
            let acceptor = Arc::clone(&acceptor);
            let accept = async move { acceptor.accept(Box::new(b), &[Protocol::Rpc], account).await };
            (TlsStream::new(a, client), Box::pin(accept))
        })
        .collect();
    // Each client has sent its certificate, and the server has not read it.
    for (client, accept) in &mut handshakes {
        assert!(client.poll_handshake(&mut cx()).is_pending());
        assert!(accept.as_mut().now_or_never().is_none());
        assert!(client.poll_handshake(&mut cx()).is_ready());
    }
    acceptor.set(Some(other.server(&["nfs.test"], |_| {})));
    let mut open = Vec::new();
    for (client, accept) in handshakes {
        let accepted = accept.now_or_never().unwrap().unwrap();
        let refused = poll_fn(|cx| accepted.session.poll_refused(cx).map(Clone::clone)).now_or_never();
        let expected = accepted.session.certificate().map(|_| TlsError::UnknownIssuer);
        assert_eq!(refused, expected);
        open.push((client, accepted));
    }
    assert_eq!(acceptor.stats(), TlsStats { open_tls: 4, open_mtls: 4, failed: 0 });
    assert!(budget.stats().in_use >= 8 * SESSION_BYTES);
    drop((open, accounts));
    assert_eq!(acceptor.stats(), TlsStats::default());
    assert_eq!(budget.stats().in_use, 0);
}

#[test]
fn a_handshake_without_a_configuration_is_refused() {
    let acceptor = Arc::new(TlsAcceptor::default());
    let mut account = Budget::unlimited().open(IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap();
    let (mut a, b) = memory_stream(1 << 20, 1 << 20);
    let accepted = acceptor.accept(Box::new(b), &[Protocol::Iwarp], &mut account).now_or_never();
    assert!(accepted.unwrap().is_err());
    assert!(matches!(a.poll_read(&mut cx(), &mut [io::IoSliceMut::new(&mut [0])]), Poll::Ready(Ok(0))));
}

/// Connects to `name`: how the handshake ends at the client and at the server.
fn connect(
    acceptor: &Arc<TlsAcceptor>,
    client: &ClientConfig,
    name: &str,
    account: &mut Account,
) -> (Result<(), String>, io::Result<Accepted>) {
    let (a, b) = memory_stream(1 << 20, 1 << 20);
    let mut client = TlsStream::new(a, Session::client(client, &PeerName::parse(name).unwrap()).unwrap());
    let mut accept = Box::pin(acceptor.accept(Box::new(b), &[Protocol::Rpc], account));
    loop {
        let sent = client.poll_handshake(&mut cx());
        let accepted = accept.as_mut().now_or_never();
        if let (Poll::Ready(sent), Some(accepted)) = (sent, accepted) {
            return (sent.map_err(|e| e.to_string()), accepted);
        }
    }
}

#[test]
fn replaced_files_count_after_a_renewal() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("server", &["old.test"], |_| {});
    let client_crl = Some(ca.revoke(&[1]));
    let files = ServerFiles { certificate, key: key.clone(), client_ca: Some(ca.ca()), client_crl };
    let acceptor = Arc::new(TlsAcceptor::default());
    assert!(!acceptor.renew().unwrap(), "nothing to renew");
    acceptor.set(Some(ServerConfig::load(&files).unwrap()));
    let client = ca.client(Some(ca.issue("client", &[], |p| p.serial_number = Some(77.into()))));
    let budget = Budget::unlimited();
    let mut accounts = [(); 3].map(|()| budget.open(IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap());
    let [first, second, third] = &mut accounts;
    let (client_end, open) = connect(&acceptor, &client, "old.test", first);
    assert_eq!(client_end, Ok(()));
    let open = open.unwrap();
    let refused = || poll_fn(|cx| open.session.poll_refused(cx).map(Clone::clone)).now_or_never();
    assert!(!acceptor.renew().unwrap());

    // The certificate is replaced, and its key is not there yet.
    std::fs::rename(&key, ca.file("old.key")).unwrap();
    assert!(acceptor.renew().is_err());
    std::fs::write(&key, "").unwrap();
    assert!(acceptor.renew().is_err());
    assert_eq!(connect(&acceptor, &client, "old.test", second).0, Ok(()));
    ca.issue("server", &["new.test"], |_| {});
    assert!(acceptor.renew().unwrap());
    assert!(!acceptor.renew().unwrap());
    assert_eq!(connect(&acceptor, &client, "new.test", third).0, Ok(()));
    assert_eq!(refused(), None, "its certificate is trusted");

    ca.revoke(&[77]);
    assert!(acceptor.renew().unwrap());
    assert_eq!(refused(), Some(TlsError::Revoked));

    // The same content in other files: those are read from now on.
    let moved = ServerFiles { certificate: ca.file("moved.pem"), key: ca.file("moved.key"), ..files.clone() };
    std::fs::copy(&files.certificate, &moved.certificate).unwrap();
    std::fs::copy(&files.key, &moved.key).unwrap();
    assert!(!acceptor.set(Some(ServerConfig::load(&moved).unwrap())));
    ca.issue("server", &["unused.test"], |_| {});
    assert!(!acceptor.renew().unwrap());
    ca.issue("moved", &["moved.test"], |_| {});
    assert!(acceptor.renew().unwrap());
}
