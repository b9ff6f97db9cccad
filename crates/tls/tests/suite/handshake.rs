//! Which certificates are accepted, and the reasons of refusals.

use std::task::Poll;

use millrace_tls::{ClientConfig, ClientFiles, PeerName, ServerConfig, ServerFiles, TlsError};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};

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
        assert!(a.client_certificate().is_none() && b.client_certificate().is_none());
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
    assert!(b.client_certificate().is_some());
    let (_, b, _, rb) = with(expired);
    assert!(matches!(rb, Err(TlsError::Expired { .. })), "{rb:?}");
    assert!(b.client_certificate().is_none());
    let (_, b, _, rb) = attempt(&ca.client(None), &server, "nfs.test");
    assert_eq!((rb, b.client_certificate()), (Ok(()), None));
}

#[test]
fn a_revoked_certificate_is_refused_also_later() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("server", &["nfs.test"], |_| {});
    let with = |client_ca, client_crl| {
        let files = ServerFiles { certificate: certificate.clone(), key: key.clone(), client_ca, client_crl };
        ServerConfig::load(&files).unwrap()
    };
    let listed = |serials: &[u64]| with(Some(ca.ca()), Some(ca.revoke(serials)));
    let client = ca.client(Some(ca.issue("client", &[], |p| p.serial_number = Some(77.into()))));
    let (_, b, _, rb) = attempt(&client, &listed(&[76, 78]), "nfs.test");
    assert_eq!(rb, Ok(()));
    let (mut a, _b, _, rb) = attempt(&client, &listed(&[76, 77]), "nfs.test");
    assert_eq!(rb, Err(TlsError::Revoked));
    let Poll::Ready(Err(e)) = read(&mut a, &mut [0]) else { panic!("no error") };
    assert!(e.to_string().contains("the certificate of this end is revoked"), "{e}");

    // An open session, with the files of later.
    let other = Authority::new();
    let proved = b.client_certificate().unwrap();
    assert_eq!(with(Some(ca.ca()), None).verify(proved), Ok(()));
    assert_eq!(listed(&[1]).verify(proved), Ok(()));
    assert_eq!(listed(&[77]).verify(proved), Err(TlsError::Revoked));
    assert_eq!(with(Some(other.ca()), None).verify(proved), Err(TlsError::UnknownIssuer));
    assert_eq!(with(None, None).verify(proved), Err(TlsError::UnknownIssuer));
    let e = with(Some(ca.ca()), Some(other.revoke(&[1]))).verify(proved).unwrap_err();
    assert!(e.to_string().contains("no revocation list (client_crl)"), "{e}");
}

#[test]
fn the_fields_of_a_client_certificate_are_those_that_rules_state() {
    let ca = Authority::new();
    let certificate = ca.issue("client", &["Web.Test", "192.0.2.9"], |p| {
        p.distinguished_name = DistinguishedName::new();
        p.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        p.distinguished_name.push(DnType::CommonName, "web");
        p.subject_alt_names.push(SanType::URI("spiffe://example/ns/web".try_into().unwrap()));
        p.subject_alt_names.push(SanType::Rfc822Name("a@web.test".try_into().unwrap()));
        p.serial_number = Some(0x80_00ff.into());
    });
    let (_, b, _, rb) = attempt(&ca.client(Some(certificate)), &ca.server(&["nfs.test"], |_| {}), "nfs.test");
    rb.unwrap();
    let proved = b.client_certificate().unwrap();
    assert_eq!(&*proved.subject, "CN=web,O=Example\\, Inc.");
    assert!(proved.issuer.starts_with("CN=Authority 04"), "{}", proved.issuer);
    assert_eq!(&proved.serial[..], [0x80, 0, 0xff]);
    let names: Vec<_> = proved.names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["DNS:web.test", "IP:192.0.2.9", "URI:spiffe://example/ns/web", "email:a@web.test"]);
    assert!(proved.to_string().contains("serial 8000ff, san \"DNS:web.test\""), "{proved}");
}

#[test]
fn rules_judge_a_certificate_once() {
    let ca = Authority::new();
    let client = ca.client(Some(ca.issue("client", &["client.test"], |_| {})));
    let (_, b, _, _) = attempt(&client, &ca.server(&["nfs.test"], |_| {}), "nfs.test");
    let (proved, mut judged) = (b.client_certificate().unwrap(), 0);
    for _ in 0..3 {
        for rules in 1..=8 {
            let verdict = proved.verdict(rules, || {
                judged += 1;
                rules as u16
            });
            assert_eq!(verdict, rules as u16);
        }
    }
    assert_eq!(judged, 8);
    assert_eq!(proved.verdict(9, || 5), 5); // Later rules, in the place of the first ones.
    assert_eq!(proved.verdict(1, || 6), 6);
}

#[test]
fn a_name_is_a_dns_name_or_an_address() {
    for bad in ["", "a b", "nfs\0.test", "-", "a..b", "*"] {
        assert!(PeerName::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn what_only_looks_like_the_name_is_refused() {
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let common_name = |p: &mut CertificateParams| p.distinguished_name.push(DnType::CommonName, "nfs.test");
    let (e, _) = refused(common_name, &[], "nfs.test");
    assert!(matches!(e, TlsError::Name { .. }), "{e}");
    let (e, _) =
        refused(|p| p.subject_alt_names.push(dns("nfs.test\0.other.test")), &["other.test"], "nfs.test");
    assert!(e.is_certificate(), "{e}");
    let (e, _) = refused(|p| p.subject_alt_names.push(dns("192.0.2.7")), &[], "192.0.2.7");
    assert!(e.is_certificate(), "{e}");
}

#[test]
fn a_certificate_that_is_its_own_authority_is_refused_unless_it_is_trusted() {
    let ca = Authority::new();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["nfs.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (certificate, secret) = (ca.file("own.pem"), ca.file("own.key"));
    std::fs::write(&certificate, own.pem()).unwrap();
    std::fs::write(&secret, key.serialize_pem()).unwrap();
    let files =
        ServerFiles { certificate: certificate.clone(), key: secret, client_ca: None, client_crl: None };
    let server = ServerConfig::load(&files).unwrap();
    let (_, _, ra, _) = attempt(&ca.client(None), &server, "nfs.test");
    assert_eq!(ra, Err(TlsError::UnknownIssuer));
    let trusting = ClientConfig::load(&ClientFiles { ca: Some(certificate), certificate: None }).unwrap();
    let (_, _, ra, rb) = attempt(&trusting, &server, "nfs.test");
    assert_eq!((ra, rb), (Ok(()), Ok(())));
}

/// Certificates for `nfs.test` with one key, of trusted authorities: one has an RSA key of 512 bits, the other signs with
/// SHA-1.
#[test]
fn weak_signatures_of_a_trusted_authority_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let key = write("key", include_str!("weak/leaf.key"));
    for (authority, certificate) in [
        (include_str!("weak/rsa512-ca.pem"), include_str!("weak/rsa512.pem")),
        (include_str!("weak/sha1-ca.pem"), include_str!("weak/sha1.pem")),
    ] {
        let (ca, certificate) = (write("ca", authority), write("certificate", certificate));
        let files = ServerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: Some(ca.clone()),
            client_crl: None,
        };
        let server = ServerConfig::load(&files).unwrap();
        let client = ClientConfig::load(&ClientFiles { ca: Some(ca), certificate: None }).unwrap();
        let (_, _, ra, rb) = attempt(&client, &server, "nfs.test");
        assert!(ra.as_ref().is_err_and(TlsError::is_certificate), "{ra:?}");
        assert!(rb.is_err());
    }
}
