//! TLS (RFC 9289) between Millrace and the Linux kernel, whose handshakes its daemon tlshd makes.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
};

use super::{Case, knfsd};
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab, Skipped},
    network::HOST,
    server::{Server, ServerOptions, TCP_PORT},
};

/// Name of the Millrace server, and of the guest.
const SERVER: &str = "nfs.test";
const GUEST: &str = "guest.test";
const SECURITIES: [&str; 3] = ["none", "tls", "mtls"];
/// What the kernel logs for AUTH_TOOWEAK.
const TOO_WEAK: &str = "requires stronger authentication";
/// The serial number of the certificate that is revoked.
const REVOKED: u64 = 77;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in ["3", "4.2"] {
        let name = |peer: &str, what: &str| format!("tls/{peer}/v{version}/{what}");
        cases.push(Case::new(name("kernel-client", "xprtsec"), move |lab| exports(lab, version)));
        cases.push(Case::new(name("knfsd", "xprtsec"), move |lab| kernel_server(lab, version)));
    }
    cases.push(Case::new("tls/kernel-client/refusals", refusals));
    cases.push(Case::new("tls/kernel-client/certificate-replaced", replaced));
    cases.push(Case::new("tls/knfsd/refusals", kernel_server_refusals));
    cases
}

/// Certificates in a directory of the host, which guests see too.
pub(super) struct Pki {
    dir: PathBuf,
    authority: Issuer<'static, KeyPair>,
}

impl Pki {
    /// An authority with the certificate `NAME.pem`.
    fn new(lab: &Lab, name: &str) -> Result<Self> {
        let dir = lab.directory("pki")?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        fs::write(dir.join(format!("{name}.pem")), params.self_signed(&key)?.pem())?;
        Ok(Self { dir, authority: Issuer::new(params, key) })
    }

    /// Writes `FILE.pem` and `FILE.key`, for these names.
    fn issue(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, file);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        change(&mut params);
        fs::write(self.file(file, "pem"), params.signed_by(&key, &self.authority)?.pem())?;
        Ok(fs::write(self.file(file, "key"), key.serialize_pem())?)
    }

    /// Writes `crl.pem`, with the certificate that is revoked.
    fn revoke(&self) -> Result<()> {
        let (this_update, next_update) = (date_time_ymd(2001, 1, 1), date_time_ymd(2901, 1, 1));
        let revoked = RevokedCertParams {
            serial_number: REVOKED.into(),
            revocation_time: this_update,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update,
            next_update,
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(fs::write(self.file("crl", "pem"), list.signed_by(&self.authority)?.pem()?)?)
    }

    fn file(&self, name: &str, end: &str) -> PathBuf {
        self.dir.join(format!("{name}.{end}"))
    }

    /// The options of a URL for the authority and the certificate.
    fn url_options(&self, ca: &str, certificate: &str) -> String {
        let at = |file: &str, end: &str| self.file(file, end).display().to_string();
        let (ca, own, key) = (at(ca, "pem"), at(certificate, "pem"), at(certificate, "key"));
        format!("&tls_ca={ca}&tls_cert={own}&tls_key={key}")
    }
}

fn expired(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
}

/// The authorities `ca` and `other`, with certificates of the server, and of clients.
pub(super) fn pki(lab: &Lab) -> Result<Pki> {
    let (pki, other) = (Pki::new(lab, "ca")?, Pki::new(lab, "other")?);
    for (name, host) in [("server", SERVER), ("guest", GUEST)] {
        pki.issue(name, &[host], |_| {})?;
        pki.issue(&format!("{name}-wrong-name"), &["elsewhere.test"], |_| {})?;
        pki.issue(&format!("{name}-expired"), &[host], expired)?;
        other.issue(&format!("{name}-wrong-ca"), &[host], |_| {})?;
    }
    pki.issue("client", &["client.test"], |_| {})?;
    pki.issue("client-expired", &["client.test"], expired)?;
    pki.issue("client-revoked", &["client.test"], |p| p.serial_number = Some(REVOKED.into()))?;
    other.issue("client-wrong-ca", &["client.test"], |_| {})?;
    pki.revoke()?;
    Ok(pki)
}

/// Boots a guest that finds this host and itself by name.
fn boot(lab: &mut Lab) -> Result<Guest> {
    let mut guest = lab.guest(&GuestOptions { memory: 768, tlshd: true, ..GuestOptions::default() })?;
    if guest.run("command -v tlshd")?.status != 0 {
        return Err(Skipped("the guests have no tlshd (package ktls-utils of Debian 13)".into()).into());
    }
    let address = guest.address();
    guest.must(&format!(
        "printf '127.0.0.1 localhost\\n{HOST} {SERVER}\\n{address} {GUEST}\\n' >/tmp/hosts && mount --bind /tmp/hosts /etc/hosts"
    ))?;
    Ok(guest)
}

/// Ends tlshd. A zombie, for which the first process of the guest does not wait, does not count.
const STOP_TLSHD: &str = "pkill -x tlshd; while pgrep -r D,R,S -x tlshd >/dev/null; do sleep 0.05; done";

/// (Re)starts tlshd. It trusts the authority `ca`, and has a certificate as client, unless it is empty, and as server.
pub(super) fn tlshd(guest: &mut Guest, pki: &Pki, ca: &str, client: &str, server: &str) -> Result<()> {
    let at = |name: &str, end: &str| guest.host_file(&pki.file(name, end));
    let own = |name: &str| match name {
        "" => String::new(),
        name => format!("x509.certificate={}\nx509.private_key={}\n", at(name, "pem"), at(name, "key")),
    };
    let trust = format!("x509.truststore={}\n", at(ca, "pem"));
    let config = format!(
        "[debug]\nloglevel=1\ntls=1\nnl=0\n[authenticate]\n[authenticate.client]\n{trust}{}[authenticate.server]\n{trust}{}",
        own(client),
        own(server)
    );
    guest.must(&format!(
        "{STOP_TLSHD}\ncat >/tmp/tlshd.conf <<'END'\n{config}END\n\
         setsid tlshd -s -c /tmp/tlshd.conf >/tmp/tlshd.log 2>&1 </dev/null &\n\
         for i in $(seq 100); do grep -q . /tmp/tlshd.log && break; sleep 0.05; done; pgrep -r D,R,S -x tlshd >/dev/null"
    ))?;
    Ok(())
}

/// Mounts `path` of the Millrace server on `/mnt/x`.
fn mount(version: &str, xprtsec: &str, path: &str) -> String {
    let of_v3 = match version {
        "3" => format!(",nolock,mountport={TCP_PORT},mountproto=tcp,mountvers=3"),
        _ => String::new(),
    };
    format!(
        "mkdir -p /mnt/x && timeout 90 mount -t nfs \
         -o vers={version},proto=tcp,port={TCP_PORT},retry=0,retrans=1,timeo=50,xprtsec={xprtsec}{of_v3} {SERVER}:{path} /mnt/x"
    )
}

/// Writes a file, and reads it from the server.
const ROUND_TRIP: &str = "set -e; cd /tmp; head -c 3000000 /dev/urandom >data; cp data /mnt/x/file; sync; \
                          echo 3 >/proc/sys/vm/drop_caches; cmp data /mnt/x/file; rm /mnt/x/file";

/// The settings of a server with this certificate.
pub(super) fn table(pki: &Pki, certificate: &str) -> String {
    let [certificate, key, ca] =
        [(certificate, "pem"), (certificate, "key"), ("ca", "pem")].map(|(name, end)| pki.file(name, end));
    format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n")
}

/// A server with exports `/export`, `/tls` and `/mtls` of these protections, and a control socket.
fn serve(lab: &Lab, pki: &Pki, more: &str) -> Result<Server> {
    let (tls, mtls) = (lab.directory("tls")?, lab.directory("mtls")?);
    // The case replaces these files.
    for end in ["pem", "key"] {
        fs::copy(pki.file("server", end), pki.file("current", end))?;
    }
    let table = format!("{}{more}", table(pki, "current"));
    let mut options = ServerOptions::default()
        .memory("/export", "64MiB")
        .local("/tls", &tls, "sync_metadata = false\nxprtsec = [\"tls\"]")
        .local("/mtls", &mtls, "sync_metadata = false\nxprtsec = [\"mtls\"]")
        .tables(&table);
    options.config = format!("control = {:?}\n", control(lab));
    lab.server(&options)
}

fn control(lab: &Lab) -> PathBuf {
    lab.dir.join("control")
}

/// Has the server read the files again.
fn reload(lab: &Lab) -> Result<()> {
    lab::millrace(&["reload", &control(lab).display().to_string()])?.ok().map(drop)
}

/// The kernel mounts each export with each protection.
fn exports(lab: &mut Lab, version: &str) -> Result<()> {
    lab.expect_log(TOO_WEAK);
    let pki = pki(lab)?;
    let mut server = serve(lab, &pki, "")?;
    server.expect_fault("refused_calls_total");
    let mut guest = boot(lab)?;
    tlshd(&mut guest, &pki, "ca", "client", "guest")?;
    for (path, admitted) in [("/export", 0), ("/tls", 1), ("/mtls", 2)] {
        for (strength, xprtsec) in SECURITIES.into_iter().enumerate() {
            let mounted = guest.run(&mount(version, xprtsec, path))?;
            let used = mounted.status == 0 && guest.run("ls /mnt/x")?.status == 0;
            ensure!(used == (strength >= admitted), "{path} with xprtsec={xprtsec}: {mounted:?}");
            if used {
                guest.must(ROUND_TRIP).with_context(|| format!("{path} with xprtsec={xprtsec}"))?;
                let open = |kind| server.metrics()?.get(&format!("tls_connections{{security=\"{kind}\"}}"));
                let counts = (open("tls")?, open("mtls")?);
                ensure!(
                    (counts.0 > 0, counts.1 > 0) == (xprtsec == "tls", xprtsec == "mtls"),
                    "with xprtsec={xprtsec} the server has {counts:?} connections with tls and mtls"
                );
                if version == "4.2" {
                    let socket = control(lab).display().to_string();
                    let clients = lab::millrace(&["state", "--json", "--socket", &socket])?.ok()?.stdout;
                    let subject = xprtsec == "mtls";
                    ensure!(
                        clients.contains(&format!("\"xprtsec\":\"{xprtsec}\""))
                            && clients.contains("\"subject\":\"CN=client\"") == subject,
                        "with xprtsec={xprtsec} `millrace state` prints {clients}"
                    );
                }
            }
            if mounted.status == 0 {
                guest.must("umount /mnt/x")?;
            }
        }
    }
    lab.finish(vec![guest], &[&server])
}

/// Each fault of a certificate is refused, with the reason at the end that finds it.
fn refusals(lab: &mut Lab) -> Result<()> {
    lab.expect_log(TOO_WEAK);
    let pki = pki(lab)?;
    let crl = format!("client_crl = {:?}\n", pki.file("crl", "pem").display().to_string());
    let mut server = serve(lab, &pki, &crl)?;
    server.expect_fault("refused_calls_total");
    let mut guest = boot(lab)?;
    // Those of the server.
    for (certificate, ca) in [
        ("server-wrong-name", "ca"),
        ("server-expired", "ca"),
        ("server-wrong-ca", "ca"),
        ("server", "other"),
    ] {
        for end in ["pem", "key"] {
            fs::copy(pki.file(certificate, end), pki.file("current", end))?;
        }
        reload(lab)?;
        tlshd(&mut guest, &pki, ca, "client", "guest")?;
        refused(&mut guest, "tls", "/export", certificate)?;
        let log = guest.must("cat /tmp/tlshd.log")?.to_lowercase();
        let words = ["certificate", "verif", "expired", "owner", "trust", "signer"];
        ensure!(words.iter().any(|word| log.contains(word)), "{certificate}: tlshd logs {log}");
    }
    for end in ["pem", "key"] {
        fs::copy(pki.file("server", end), pki.file("current", end))?;
    }
    reload(lab)?;
    // Those of the client, whose handshake is complete before the server refuses.
    for (certificate, reason) in [
        ("client-expired", "the certificate of the peer has expired"),
        ("client-wrong-ca", "was not issued by a trusted authority"),
        ("client-revoked", "the certificate of the peer is revoked"),
    ] {
        tlshd(&mut guest, &pki, "ca", certificate, "guest")?;
        refused(&mut guest, "mtls", "/mtls", certificate)?;
        let log = fs::read_to_string(server.log_file())?;
        ensure!(log.contains(reason), "{certificate}: the log has no `{reason}`");
    }
    // Without a certificate, tlshd cannot do mtls, and tls is too weak for the export.
    tlshd(&mut guest, &pki, "ca", "", "guest")?;
    refused(&mut guest, "mtls", "/mtls", "no certificate")?;
    refused(&mut guest, "tls", "/mtls", "no certificate")?;
    guest.must(&mount("4.2", "tls", "/tls"))?;
    guest.must(ROUND_TRIP)?;
    guest.must("umount /mnt/x")?;
    // A probe without the answer STARTTLS, as a host in between would make it: nothing falls back.
    drop(server);
    let plain = ServerOptions::default().memory("/export", "64MiB");
    let plain = Server::start(&plain, &lab.directory("plain")?)?;
    refused(&mut guest, "tls", "/export", "a server without TLS")?;
    let url =
        format!("nfs://{HOST}:{TCP_PORT}/export?proto=tcp&xprtsec=tls{}", pki.url_options("ca", "client"));
    let stderr = lab::millrace(&["ls", &url])?.failed()?;
    ensure!(stderr.contains("does not offer TLS"), "Millrace's client prints {stderr}");
    lab.finish(vec![guest], &[&plain])
}

fn refused(guest: &mut Guest, xprtsec: &str, path: &str, why: &str) -> Result<()> {
    for version in ["3", "4.2"] {
        let mounted = guest.run(&format!("{} && ls /mnt/x", mount(version, xprtsec, path)))?;
        guest.run("umount /mnt/x")?;
        ensure!(
            mounted.status != 0,
            "version {version} with xprtsec={xprtsec} and {why}: the mount succeeded"
        );
    }
    Ok(())
}

/// The server's certificate is replaced while the kernel writes and reads.
fn replaced(lab: &mut Lab) -> Result<()> {
    let pki = pki(lab)?;
    let server = serve(lab, &pki, "")?;
    let mut guest = boot(lab)?;
    tlshd(&mut guest, &pki, "ca", "client", "guest")?;
    guest.must(&mount("4.2", "mtls", "/mtls"))?;
    let load = "set -e; cd /tmp; head -c 4000000 /dev/urandom >data; touch /mnt/x/started\n\
                until [ -e /mnt/x/stop ]; do cp data /mnt/x/file; sync; echo 3 >/proc/sys/vm/drop_caches; cmp data /mnt/x/file; echo .; done";
    let mut load = guest.spawn(load)?;
    let dir = lab.directory("mtls")?;
    while !dir.join("started").exists() {
        ensure!(load.is_running(), "the load has ended");
        thread::sleep(Duration::from_millis(20));
    }
    for round in 0..5 {
        pki.issue("current", &[SERVER], |_| {})?;
        reload(lab)?;
        // Connections that are made now get the new certificate.
        let url = format!(
            "nfs://{HOST}:{TCP_PORT}/mtls/started?proto=tcp&xprtsec=mtls&tls_name={SERVER}{}",
            pki.url_options("ca", "client")
        );
        lab::millrace(&["cat", &url])?.ok().with_context(|| format!("round {round}"))?;
        thread::sleep(Duration::from_millis(300));
    }
    ensure!(load.is_running(), "the load has ended");
    fs::write(dir.join("stop"), "")?;
    let rounds = load.wait(Duration::from_secs(120))?.ok()?.stdout;
    ensure!(rounds.contains('.'), "the load has not transferred a file");
    lab.finish(vec![guest], &[&server])
}

/// The guest serves `/mnt/export` with these protections. NFSv4's root is the export.
fn start_knfsd(guest: &mut Guest, xprtsec: &str) -> Result<()> {
    let start = knfsd::start_v4().replace("fsid=0", &format!("fsid=0,xprtsec={xprtsec}"));
    guest.must(&start).map(drop)
}

/// The URL of the guest's export.
fn url(guest: &Guest, version: &str, xprtsec: &str, options: &str) -> String {
    let path = if version == "3" { "/mnt/export" } else { "" };
    format!(
        "nfs://{}{path}/file?proto=tcp&vers={version}&xprtsec={xprtsec}&tls_name={GUEST}{options}",
        guest.address()
    )
}

fn put(file: &Path, url: &str) -> Result<crate::program::Output> {
    lab::millrace(&["put", "--verify", &file.display().to_string(), url])
}

/// Millrace's client uses the kernel's server with each protection.
fn kernel_server(lab: &mut Lab, version: &str) -> Result<()> {
    lab.expect_log("NFSD: ");
    let pki = pki(lab)?;
    let mut guest = boot(lab)?;
    tlshd(&mut guest, &pki, "ca", "client", "guest")?;
    start_knfsd(&mut guest, "none:tls:mtls")?;
    let own = pki.url_options("ca", "client");
    let file = lab.dir.join("data");
    fs::write(&file, vec![7; 3_000_000])?;
    for xprtsec in SECURITIES {
        let options = if xprtsec == "none" { "" } else { &own };
        let url = url(&guest, version, xprtsec, options).replace(
            &format!("&tls_name={GUEST}"),
            if xprtsec == "none" { "" } else { "&tls_name=guest.test" },
        );
        put(&file, &url)?.ok().with_context(|| format!("xprtsec={xprtsec}"))?;
    }
    let handshakes =
        guest.must("awk '$1 ~ /^Tls(Tx|Rx)Sw$/ { n += $2 } END { print n + 0 }' /proc/net/tls_stat")?;
    ensure!(handshakes.trim().parse::<u32>()? > 0, "the kernel has encrypted nothing");
    guest.must("exportfs -i -o rw,async,no_root_squash,insecure,no_subtree_check,fsid=0,xprtsec=tls:mtls '*:/mnt/export'")?;
    put(&file, &url(&guest, version, "tls", &own))?.ok()?;
    let clear = url(&guest, version, "none", "").replace(&format!("&tls_name={GUEST}"), "");
    put(&file, &clear)?.failed()?;
    lab.finish(vec![guest], &[])
}

/// Faults of the certificate of the kernel's server.
fn kernel_server_refusals(lab: &mut Lab) -> Result<()> {
    lab.expect_log("NFSD: ");
    // Without tlshd it offers TLS too, and then reads the handshake as a call.
    lab.expect_log("oversized RPC fragment");
    let pki = pki(lab)?;
    let mut guest = boot(lab)?;
    start_knfsd(&mut guest, "none:tls:mtls")?;
    let file = lab.dir.join("data");
    fs::write(&file, "data")?;
    let own = pki.url_options("ca", "client");
    for (server, client, reason) in [
        ("guest-wrong-name", "client", "is not for guest.test"),
        ("guest-expired", "client", "has expired"),
        ("guest-wrong-ca", "client", "not issued by a trusted authority"),
        // The kernel refuses after the client's handshake, which then tries again for a minute.
        ("guest", "client-wrong-ca", "refused"),
    ] {
        tlshd(&mut guest, &pki, "ca", client, server)?;
        let own = pki.url_options("ca", client);
        for version in if client == "client" { &["3", "4.2"][..] } else { &["4.2"] } {
            let stderr = put(&file, &url(&guest, version, "mtls", &own))?.failed()?;
            ensure!(stderr.contains(reason), "{server} and {client}: {stderr}");
        }
    }
    tlshd(&mut guest, &pki, "ca", "client", "guest")?;
    put(&file, &url(&guest, "4.2", "tls", &own))?.ok()?;
    // Without tlshd there is no handshake.
    guest.must(STOP_TLSHD)?;
    let stderr = put(&file, &url(&guest, "4.2", "tls", &own))?.failed()?;
    ensure!(stderr.contains("TLS"), "without tlshd: {stderr}");
    lab.finish(vec![guest], &[])
}
