//! The sessions of a server together.

use std::{net::Ipv4Addr, sync::Arc, task::Poll};

use futures::{FutureExt, future::poll_fn};
use millrace_admission::Budget;
use millrace_runtime::{ByteStream, memory_stream};
use millrace_tls::{PeerName, Protocol, SESSION_BYTES, Session, TlsAcceptor, TlsError, TlsStats, TlsStream};

use crate::common::{Authority, cx};

#[test]
fn a_reload_counts_for_handshakes_in_progress_and_their_memory_is_released() {
    let (ca, other) = (Authority::new(), Authority::new());
    let budget = Budget::unlimited();
    let acceptor = Arc::new(TlsAcceptor::default());
    acceptor.set(Some(ca.server(&["nfs.test"], |_| {})));
    let own = ca.issue("client", &["client.test"], |_| {});
    let (with, without) = (ca.client(Some(own)), ca.client(None));
    let mut accounts: Vec<_> = (0..8u8)
        .map(|i| budget.open(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, i)).into()).unwrap())
        .collect();
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
    let mut account = Budget::unlimited().open(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap();
    let (mut a, b) = memory_stream(1 << 20, 1 << 20);
    let accepted = acceptor.accept(Box::new(b), &[Protocol::Iwarp], &mut account).now_or_never();
    assert!(accepted.unwrap().is_err());
    assert!(matches!(a.poll_read(&mut cx(), &mut [std::io::IoSliceMut::new(&mut [0])]), Poll::Ready(Ok(0))));
}
