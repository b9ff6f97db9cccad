//! Which certificates are accepted, and the reasons of refusals.

use std::task::Poll;

use millrace_tls::{ClientConfig, PeerName, ServerConfig, TlsError};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};

use crate::common::{Authority, End, ends, expired, future, read, shake};

fn attempt(
    client: &ClientConfig,
    server: &ServerConfig,
    name: &str,
) -> (End, End, Result<(), TlsError>, Result<(), TlsError>) {
    let (mut a, mut b) = ends(client, server, name, 1 << 20);
    let (ra, rb) = shake(&mut a, &mut b);
    let error = |e: std::io::Error| TlsError::of(&e).unwrap().clone();
    (a, b, ra.map_err(error), rb.map_err(error))
}

/// The client's error, and the server's.
fn refused(change: impl FnOnce(&mut CertificateParams), names: &[&str], name: &str) -> (TlsError, TlsError) {
    let ca = Authority::new();
    let (_, _, ra, rb) = attempt(&ca.client(None), &ca.server(names, change), name);
    (ra.unwrap_err(), rb.unwrap_err())
}

#[test]
fn a_certificate_for_the_name_or_the_address_is_accepted() {
    let ca = Authority::new();
    let server = ca.server(&["nfs.test", "192.0.2.7", "2001:db8::7"], |_| {});
    for name in ["nfs.test", "NFS.Test", "nfs.test.", "192.0.2.7", "2001:db8::7"] {
        let (a, b, ra, rb) = attempt(&ca.client(None), &server, name);
        assert_eq!((ra, rb), (Ok(()), Ok(())), "{name}");
        assert!(a.has_peer_certificate() && !b.has_peer_certificate());
    }
}

#[test]
fn another_name_is_refused_with_those_of_the_certificate() {
    for (names, name) in [
        (&["a.test", "b.test"][..], "nfs.test"),
        (&["a.test"], "192.0.2.7"),
        (&["192.0.2.8"], "192.0.2.7"),
        (&["*.test"], "nfs.test"), // RFC 9289 section 5.2.1: no wildcards.
        (&[], "nfs.test"),
    ] {
        let (e, at_server) = refused(|_| {}, names, name);
        let TlsError::Name { expected, presented } = &e else { panic!("{names:?} {name}: {e}") };
        assert_eq!(expected, name);
        assert!(names.iter().all(|n| presented.iter().any(|p| p.contains(n))), "{presented:?}");
        assert!(matches!(at_server, TlsError::Alert(_)), "{at_server}");
        assert!(e.is_certificate());
    }
    let (e, _) = refused(|_| {}, &["a.test"], "nfs.test");
    assert_eq!(e.to_string(), "the certificate of the server is not for nfs.test, but for a.test");
}

#[test]
fn the_dates_of_a_certificate_count() {
    let (e, at_server) = refused(expired, &["nfs.test"], "nfs.test");
    assert!(matches!(e, TlsError::Expired { days: Some(days) } if days > 8000), "{e}");
    assert_eq!(at_server.to_string(), "the peer refused: the certificate of this end has expired");
    let (e, _) = refused(future, &["nfs.test"], "nfs.test");
    assert!(matches!(e, TlsError::NotYetValid { days: Some(_) }), "{e}");
}

#[test]
fn the_extended_key_usage_counts() {
    let client_only =
        |p: &mut CertificateParams| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let (e, _) = refused(client_only, &["nfs.test"], "nfs.test");
    assert!(matches!(e, TlsError::Certificate(_)) && e.to_string().contains("extended key usage"), "{e}");
}

#[test]
fn another_authority_is_refused_at_both_ends() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (_, _, ra, rb) = attempt(&ours.client(None), &theirs.server(&["nfs.test"], |_| {}), "nfs.test");
    assert_eq!(ra, Err(TlsError::UnknownIssuer));
    assert_eq!(
        rb.unwrap_err().to_string(),
        "the peer refused: it does not trust the authority that issued the certificate of this end"
    );
    // The client receives the alert after its own handshake.
    let certificate = theirs.issue("client", &["client.test"], |_| {});
    let (mut a, _b, ra, rb) =
        attempt(&ours.client(Some(certificate)), &ours.server(&["nfs.test"], |_| {}), "nfs.test");
    assert_eq!((ra, rb), (Ok(()), Err(TlsError::UnknownIssuer)));
    let Poll::Ready(Err(e)) = read(&mut a, &mut [0]) else { panic!("no error") };
    assert!(e.to_string().contains("does not trust the authority"), "{e}");
}

#[test]
fn a_client_certificate_is_verified_and_may_be_absent() {
    let ca = Authority::new();
    let server = ca.server(&["nfs.test"], |_| {});
    let with = |change: fn(&mut CertificateParams)| {
        let certificate = ca.issue("client", &["client.test"], change);
        attempt(&ca.client(Some(certificate)), &server, "nfs.test")
    };
    let (_, b, ra, rb) = with(|_| {});
    assert_eq!((ra, rb), (Ok(()), Ok(())));
    assert!(b.has_peer_certificate());
    let (_, b, _, rb) = with(expired);
    assert!(matches!(rb, Err(TlsError::Expired { .. })), "{rb:?}");
    assert!(!b.has_peer_certificate());
    let (_, b, _, rb) = attempt(&ca.client(None), &server, "nfs.test");
    assert_eq!((rb, b.has_peer_certificate()), (Ok(()), false));
}

#[test]
fn a_name_is_a_dns_name_or_an_address() {
    for bad in ["", "a b", "nfs\0.test", "-", "a..b", "*"] {
        assert!(PeerName::parse(bad).is_err(), "{bad:?}");
    }
}
