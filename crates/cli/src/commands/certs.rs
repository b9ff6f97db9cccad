//! `millrace certs`.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, absolute},
    time::{Duration, SystemTime},
};

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_tls::PeerName;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::{args::CertsInitArgs, file_error::FileError};

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn init(args: &CertsInitArgs) -> CommandResult {
    let dir = &args.directory;
    for host in &args.hosts {
        PeerName::parse(host).map_err(|e| Failure::usage(e.to_string()))?;
    }
    let made = Made::new(&args.hosts).map_err(|e| {
        Failure::new(format!("a certificate cannot be made for {}: {e}", args.hosts.join(", ")))
    })?;
    fs::create_dir_all(dir).map_err(|e| FileError::local("make", dir, &e))?;
    let files = made.files();
    if let Some((name, ..)) = files.iter().find(|(name, ..)| dir.join(name).exists()) {
        let there = dir.join(name);
        return Err(Failure::new(format!(
            "{} exists; name another directory, or remove it",
            there.display()
        )));
    }
    for (name, text, mode) in files {
        let file = dir.join(name);
        let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(&file);
        written
            .and_then(|mut f| f.write_all(text.as_bytes()))
            .map_err(|e| FileError::local("write", &file, &e))?;
    }
    output::write(table(dir)?.as_bytes())?;
    Ok(Outcome::Done)
}

/// The table of a configuration for the server's files in `dir`.
fn table(dir: &Path) -> Result<String, Failure> {
    let dir = absolute(dir).map_err(|e| FileError::local("find", dir, &e))?;
    let entry = |(key, file): (&str, &str)| {
        let path = toml::Value::String(dir.join(file).to_string_lossy().into_owned());
        format!("{key} = {path}\n")
    };
    let keys = [("certificate", "server.pem"), ("key", "server.key"), ("client_ca", "ca.pem")];
    Ok(format!("[tls]\n{}", keys.map(entry).concat()))
}

/// An authority, and what it has issued: certificate and key in PEM.
struct Made {
    authority: (String, String),
    server: (String, String),
    client: (String, String),
}

impl Made {
    fn new(hosts: &[String]) -> Result<Self, rcgen::Error> {
        let name = hosts.first().map_or("", String::as_str);
        let key = KeyPair::generate()?;
        let mut params = valid_for(3650 * DAY, &format!("Millrace authority for {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (certificate, secret) = (params.self_signed(&key)?.pem(), key.serialize_pem());
        let issuer = Issuer::new(params, key);
        let issue = |common_name: &str, usage, names: &[String]| {
            let mut params = valid_for(365 * DAY, common_name);
            params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
            params.use_authority_key_identifier_extension = true;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate()?;
            Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
        };
        let server = issue(name, ExtendedKeyUsagePurpose::ServerAuth, hosts)?;
        let client = issue("client", ExtendedKeyUsagePurpose::ClientAuth, &[])?;
        Ok(Self { authority: (certificate, secret), server, client })
    }

    /// Names, contents and modes of the files.
    fn files(&self) -> [(&'static str, &str, u32); 6] {
        let Self { authority, server, client } = self;
        [
            ("ca.pem", &authority.0, 0o644),
            ("ca.key", &authority.1, 0o600),
            ("server.pem", &server.0, 0o644),
            ("server.key", &server.1, 0o600),
            ("client.pem", &client.0, 0o644),
            ("client.key", &client.1, 0o600),
        ]
    }
}

/// The fields that all certificates have. They are valid since yesterday, because clocks differ.
fn valid_for(time: Duration, common_name: &str) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    (params.not_before, params.not_after) = ((now - DAY).into(), (now + time).into());
    params
}
