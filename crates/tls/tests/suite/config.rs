//! Errors of files name the file and the reason.

use std::path::PathBuf;

use millrace_tls::{ClientConfig, ClientFiles, ServerConfig, ServerFiles};

use crate::common::Authority;

#[test]
fn errors_of_files_name_the_file_and_the_reason() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("a", &["nfs.test"], |_| {});
    let (_, other_key) = ca.issue("b", &["nfs.test"], |_| {});
    let (empty, damaged) = (ca.file("empty"), ca.file("damaged"));
    std::fs::write(&empty, "no PEM").unwrap();
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n").unwrap();
    let absent = PathBuf::from("/nonexistent/x.pem");
    let load_with = |certificate: &PathBuf, key: &PathBuf, ca: Option<&PathBuf>, crl: Option<&PathBuf>| {
        let (certificate, key) = (certificate.clone(), key.clone());
        let files = ServerFiles { certificate, key, client_ca: ca.cloned(), client_crl: crl.cloned() };
        ServerConfig::load(&files).map_or_else(|e| e.to_string(), |_| String::new())
    };
    let load = |certificate, key, ca| load_with(certificate, key, ca, None);
    let bad_list = ca.file("bad.crl");
    std::fs::write(&bad_list, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").unwrap();
    let load_list = |list: &PathBuf| load_with(&certificate, &key, Some(&ca.ca()), Some(list));
    assert_eq!(load_list(&ca.revoke(&[1])), "");
    assert_eq!(load(&certificate, &key, None), "");
    for (error, parts) in [
        (load(&absent, &key, None), ["/nonexistent/x.pem", "No such file"]),
        (load(&certificate, &absent, None), ["/nonexistent/x.pem", "No such file"]),
        (load(&empty, &key, None), ["empty", "no certificate in PEM"]),
        (load(&certificate, &certificate, None), ["a.pem", "no private key"]),
        (load(&damaged, &key, None), ["damaged", "not valid PEM"]),
        (load(&certificate, &other_key, None), ["b.key", "belongs to another certificate"]),
        (load(&certificate, &key, Some(&empty)), ["empty", "no certificate"]),
        (load_list(&certificate), ["a.pem", "no revocation list"]),
        (load_list(&absent), ["/nonexistent/x.pem", "No such file"]),
        (load_list(&bad_list), ["bad.crl", "revocation list that cannot be used"]),
    ] {
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let files = ClientFiles { ca: Some(ca.ca()), certificate: Some((certificate, other_key)) };
    let error = ClientConfig::load(&files).unwrap_err().to_string();
    assert!(error.contains("b.key") && error.contains("belongs to another certificate"), "{error}");
}

#[test]
fn debug_output_has_no_keys() {
    let ca = Authority::new();
    assert_eq!(format!("{:?}", ca.server(&["nfs.test"], |_| {})), "ServerConfig");
}
