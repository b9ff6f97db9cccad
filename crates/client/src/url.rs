//! `nfs://` URLs.

use std::{
    ffi::OsString,
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    str::FromStr,
    time::Duration,
};

use millrace_buffer::ByteSize;
use millrace_oncrpc::SecurityFlavor;
use millrace_rdma::registration::Strategy;
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::{ipv6_host, percent_decode};
use millrace_tls::Tls;

use crate::{Error, Proto, Version};

/// Maximum number of connections to one server.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Longest `busy_poll` in microseconds.
const MAX_BUSY_POLL: u64 = 1000;

/// URL of an export: `nfs://HOST[:PORT]/EXPORT/PATH[?OPTIONS]`. `nfs+tcp://` and `nfs+rdma://` state the transport.
///
/// The host is a name, an IPv4 address or an IPv6 address in brackets; a link-local address has an interface,
/// `[fe80::1%eth0]` or `[fe80::1%25eth0]`. Options, joined by `&`:
/// `vers=3|4.1|4.2`, `proto=auto|rdma|tcp`, `provider=auto|iwarp|verbs`, `nconnect=1..64`, `busy_poll=0..1000`
/// (microseconds), `rsize=SIZE`, `wsize=SIZE`, `mountport=PORT`, `resvport`, `noresvport`,
/// `registration=dynamic|fast|cache`, `sec=sys|krb5|krb5i|krb5p` ([`crate::Options::sec`]), `xprtsec=none|tls|mtls`, `tls_ca=FILE`, `tls_cert=FILE`, `tls_key=FILE`,
/// `tls_name=NAME` ([`crate::Tls`]). A size has the text form of
/// [`ByteSize`] and is below 4 GiB. The client determines with MOUNT which part of the path is the export.
/// `%XX` stands for a byte in the path or in the path of a file, which need not be UTF-8.
///
/// ```
/// let url: millrace_client::Url = "nfs://[::1]:2049/data/a%20b?proto=tcp&rsize=256K".parse().unwrap();
/// assert_eq!((url.host.as_str(), url.port, url.path.to_str()), ("::1", Some(2049), Some("/data/a b")));
/// assert_eq!((url.proto, url.rsize), (Some(millrace_client::Proto::Tcp), Some(262_144)));
/// assert_eq!(url.to_string(), "nfs://[::1]:2049/data/a%20b?proto=tcp&rsize=262144");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// Name or address of the server, without brackets.
    pub host: String,
    /// The port, if given; the default is that of the transport (rdma 20049, tcp 2049).
    pub port: Option<u16>,
    /// The path, beginning with `/`.
    pub path: OsString,
    /// The version of NFS, if given; see [`crate::Options::vers`].
    pub vers: Option<Version>,
    /// The transport, if given; see [`crate::transports`].
    pub proto: Option<Proto>,
    /// The RDMA provider, if given.
    pub provider: Option<ProviderChoice>,
    /// Number of connections, if given.
    pub nconnect: Option<usize>,
    /// Time to poll for a reply before the thread sleeps, if given; see [`crate::Options::busy_poll`].
    pub busy_poll: Option<Duration>,
    /// Maximum size of one READ in bytes, if given.
    pub rsize: Option<u32>,
    /// Maximum size of one WRITE in bytes, if given.
    pub wsize: Option<u32>,
    /// The TCP port of the MOUNT program, if given.
    pub mountport: Option<u16>,
    /// Whether to connect from a port below 1024, if given.
    pub resvport: Option<bool>,
    /// The registration strategy, if given.
    pub registration: Option<Strategy>,
    /// The security flavor, if given; see [`crate::Options::sec`].
    pub sec: Option<SecurityFlavor>,
    /// The settings of TLS that are given.
    pub tls: Tls,
}

impl Url {
    /// Returns a URL with a host and a path, without options.
    pub fn new(host: impl Into<String>, path: impl Into<OsString>) -> Self {
        Self {
            host: host.into(),
            port: None,
            path: path.into(),
            vers: None,
            proto: None,
            provider: None,
            nconnect: None,
            busy_poll: None,
            rsize: None,
            wsize: None,
            mountport: None,
            resvport: None,
            registration: None,
            sec: None,
            tls: Tls::default(),
        }
    }

    /// The URL of an export as mount(8), fstab(5) and mount tables name it: `HOST:/PATH`, with an IPv6 address in
    /// brackets. None for other text.
    ///
    /// ```
    /// use millrace_client::Url;
    ///
    /// let url = Url::from_source("[::1]:/data/a b").unwrap();
    /// assert_eq!(url.to_string(), "nfs://[::1]/data/a%20b");
    /// assert_eq!(Url::from_source("nfs://[::1]/data"), None);
    /// ```
    pub fn from_source(source: &str) -> Option<Self> {
        let (host, path) = source.split_at(source.find(":/")?);
        let path = path.strip_prefix(':').filter(|path| !path.starts_with("//"))?;
        match split_host(host) {
            Ok((name, None, "")) => Some(Self::new(name, path)),
            _ => None,
        }
    }

    /// Sets an option, such as `rsize=64K`; replaces an earlier value.
    ///
    /// # Errors
    /// The reason why the option is invalid, as text.
    pub fn set_option(&mut self, option: &str) -> Result<(), String> {
        match (option, option.split_once('=')) {
            (_, Some((key, value))) => self.set(key, value)?,
            ("resvport", None) => self.resvport = Some(true),
            ("noresvport", None) => self.resvport = Some(false),
            _ => return Err(format!("option {option:?} has no value")),
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "vers" => self.vers = Some(value.parse()?),
            "proto" => self.proto = proto(value)?,
            "provider" => self.provider = Some(value.parse()?),
            "nconnect" => {
                let n = value.parse().ok().filter(|n| (1..=MAX_CONNECTIONS).contains(n));
                self.nconnect = Some(n.ok_or_else(|| {
                    format!("nconnect={value}: expected a number from 1 to {MAX_CONNECTIONS}")
                })?);
            }
            "busy_poll" => self.busy_poll = Some(busy_poll(value)?),
            "rsize" => self.rsize = Some(size(key, value)?),
            "wsize" => self.wsize = Some(size(key, value)?),
            "mountport" => self.mountport = Some(port(value)?),
            "registration" => self.registration = Some(strategy(value)?),
            "sec" => self.sec = Some(value.parse()?),
            _ if self.tls.set(key, &unescape(value)?)? => {}
            _ => return Err(format!("unknown option {key:?}")),
        }
        Ok(())
    }
}

/// Schemes of URLs, and the transports that they state.
const SCHEMES: [(&str, Option<Proto>); 3] =
    [("nfs://", None), ("nfs+tcp://", Some(Proto::Tcp)), ("nfs+rdma://", Some(Proto::Rdma))];

/// Parses the value of `proto`; `None` for `auto`.
fn proto(s: &str) -> Result<Option<Proto>, String> {
    if s == "auto" { Ok(None) } else { s.parse().map(Some) }
}

/// The transport that the scheme of `s` states, and the rest.
fn split_scheme(s: &str) -> Option<(Option<Proto>, &str)> {
    SCHEMES.iter().find_map(|(scheme, proto)| Some((*proto, s.strip_prefix(scheme)?)))
}

/// Parses a strategy. Rejects those that require a trusted server.
fn strategy(s: &str) -> Result<Strategy, String> {
    match s.parse()? {
        Strategy::AllPhysical => {
            Err("registration=all-physical is a research option: use millrace-lab".into())
        }
        strategy => Ok(strategy),
    }
}

fn busy_poll(s: &str) -> Result<Duration, String> {
    let n = s.parse().ok().filter(|n| *n <= MAX_BUSY_POLL).map(Duration::from_micros);
    n.ok_or_else(|| format!("busy_poll={s}: expected a number of microseconds from 0 to {MAX_BUSY_POLL}"))
}

fn port(s: &str) -> Result<u16, String> {
    s.parse().ok().filter(|p| *p != 0).ok_or_else(|| format!("{s:?} is not a port (1 to 65535)"))
}

fn size(key: &str, s: &str) -> Result<u32, String> {
    let bytes = s.parse().ok().and_then(|ByteSize(n)| u32::try_from(n).ok());
    bytes
        .filter(|n| *n >= 512)
        .ok_or_else(|| format!("{key}={s}: expected a size of at least 512 bytes, such as 65536, 64K or 1M"))
}

/// Splits the authority from the URL; returns host, port, and the rest.
fn split_host(rest: &str) -> Result<(String, Option<u16>, &str), String> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if authority.contains('@') {
        return Err("the URL of an export has no user: calls have the user of this process".into());
    }
    let (host, after) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, after) =
            inner.split_once(']').ok_or("the closing bracket of the IPv6 address is missing")?;
        (ipv6_host(host)?, after)
    } else {
        if authority.matches(':').count() > 1 {
            return Err("an IPv6 address must be in brackets".into());
        }
        let (host, after) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        (host.to_owned(), after)
    };
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    let number = match after {
        "" => None,
        _ => Some(port(after.strip_prefix(':').ok_or("unexpected text after the host")?)?),
    };
    Ok((host, number, tail))
}

/// The path of `text`, in which `%XX` is a byte.
fn unescape(text: &str) -> Result<OsString, String> {
    let path = percent_decode(text)?;
    if path.contains(&0) {
        return Err("the path contains a NUL byte".into());
    }
    Ok(OsString::from_vec(path))
}

/// The text form of a path, in which `%XX` is a byte.
fn escape(path: &[u8]) -> String {
    let escaped = |b: &u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' | b'+' | b'@' => {
            char::from(*b).to_string()
        }
        b => format!("%{b:02X}"),
    };
    path.iter().map(escaped).collect()
}

fn parse(s: &str) -> Result<Url, String> {
    if s.starts_with(['/', '.']) {
        return Err("it is a path of this host".into());
    }
    let (stated, rest) = split_scheme(s).ok_or("the URL does not begin with nfs://")?;
    let (host, port, tail) = split_host(rest)?;
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let path = if path.is_empty() { "/".into() } else { unescape(path)? };
    let mut url = Url { port, ..Url::new(host, path) };
    for option in query.split('&').filter(|o| !o.is_empty()) {
        url.set_option(option)?;
    }
    match (stated, url.proto) {
        (Some(stated), Some(other)) if stated != other => {
            return Err(format!("the scheme nfs+{stated}:// contradicts proto={other}"));
        }
        _ => url.proto = stated.or(url.proto),
    }
    Ok(url)
}

/// The URL that `s` means in the spelling of mount(8), nfs(5) or other URLs, if that is one.
fn corrected(s: &str) -> Option<Url> {
    if let Some(url) = Url::from_source(s) {
        return Some(url);
    }
    let (stated, rest) = split_scheme(s)?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let options: Vec<_> = query.split('&').map(as_option).collect();
    let url = parse(&format!("nfs://{host}{path}?{}", options.join("&"))).ok()?;
    Some(Url { proto: stated.or(url.proto), ..url })
}

/// The option of a URL for a synonym of nfs(5).
fn as_option(option: &str) -> String {
    match (option, option.split_once('=')) {
        ("tcp" | "rdma", _) => format!("proto={option}"),
        (_, Some(("version" | "nfsvers", value))) => format!("vers={value}"),
        _ => option.to_owned(),
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        parse(s).map_err(|mut reason| {
            if let Some(url) = corrected(s) {
                reason.push_str(&format!("; write '{url}'"));
            }
            Error::Url { url: s.to_owned(), reason }
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "nfs://[{}]", self.host)?,
            false => write!(f, "nfs://{}", self.host)?,
        }
        if let Some(p) = self.port {
            write!(f, ":{p}")?;
        }
        f.write_str(&escape(self.path.as_bytes()))?;
        let options = [
            self.vers.map(|v| format!("vers={v}")),
            self.proto.map(|v| format!("proto={v}")),
            self.provider.map(|v| format!("provider={v}")),
            self.nconnect.map(|v| format!("nconnect={v}")),
            self.busy_poll.map(|v| format!("busy_poll={}", v.as_micros())),
            self.rsize.map(|v| format!("rsize={v}")),
            self.wsize.map(|v| format!("wsize={v}")),
            self.mountport.map(|v| format!("mountport={v}")),
            self.resvport.map(|v| if v { "resvport" } else { "noresvport" }.to_owned()),
            self.registration.map(|v| format!("registration={v}")),
            self.sec.map(|v| format!("sec={v}")),
        ];
        let tls = self.tls.options().map(|(key, value)| format!("{key}={}", escape(value.as_bytes())));
        for (n, option) in options.into_iter().flatten().chain(tls).enumerate() {
            write!(f, "{}{option}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millrace_oncrpc::TransportSecurity;

    use super::*;

    #[test]
    fn a_plain_url_states_no_transport_and_no_port() {
        let u: Url = "nfs://server/export".parse().unwrap();
        assert_eq!(
            (u.host.as_str(), u.port, u.path.to_str(), u.proto),
            ("server", None, Some("/export"), None)
        );
        let u: Url = "nfs://10.0.0.1:7?proto=auto".parse().unwrap();
        assert_eq!((u.port, u.path.to_str(), u.proto), (Some(7), Some("/"), None));
    }

    #[test]
    fn a_scheme_states_the_transport() {
        for (scheme, proto) in [("nfs+tcp", Proto::Tcp), ("nfs+rdma", Proto::Rdma)] {
            let url: Url = format!("{scheme}://h:7/x?nconnect=2").parse().unwrap();
            assert_eq!(url, format!("nfs://h:7/x?nconnect=2&proto={proto}").parse().unwrap());
            assert_eq!(url, format!("{scheme}://h:7/x?nconnect=2&proto={proto}").parse().unwrap());
        }
    }

    #[test]
    fn all_options_are_read_and_written() {
        let text = "nfs://h:1/a/b?vers=4.2&proto=rdma&provider=verbs&nconnect=4&busy_poll=100&rsize=65536&wsize=1048576&mountport=635&noresvport&registration=cache&sec=krb5p&xprtsec=mtls&tls_ca=/a%20b&tls_cert=c.pem&tls_key=k%26.pem&tls_name=nfs.test";
        let u: Url = text.parse().unwrap();
        assert_eq!(
            (u.nconnect, u.busy_poll, u.rsize, u.wsize, u.mountport, u.resvport),
            (Some(4), Some(Duration::from_micros(100)), Some(65536), Some(1 << 20), Some(635), Some(false))
        );
        assert_eq!(
            (u.tls.xprtsec, u.tls.key.as_deref()),
            (Some(TransportSecurity::Mtls), Some("k&.pem".as_ref()))
        );
        assert_eq!(u.to_string(), text);
        let short: Url =
            "nfs://h:1/a/b?registration=cache&vers=4.2&proto=rdma&provider=verbs&nconnect=4&busy_poll=100&rsize=64K&wsize=1m&mountport=635&noresvport&tls_name=nfs.test&tls_key=k%26.pem&tls_cert=c.pem&tls_ca=%2Fa%20b&xprtsec=mtls&sec=krb5p"
                .parse()
                .unwrap();
        assert_eq!(short, u);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("http://h/", "does not begin with nfs://"),
            ("/data", "path of this host"),
            ("nfs://root@h/x", "no user"),
            ("nfs:///x", "host is missing"),
            ("nfs://::1/x", "brackets"),
            ("nfs://[::1/x", "closing bracket"),
            ("nfs://[zz]/x", "not an IPv6 address"),
            ("nfs://h:0/", "not a port"),
            ("nfs://h:99999/", "not a port"),
            ("nfs://[::1]x/", "unexpected text"),
            ("nfs://h/?vers=4", "use 3, 4.1 or 4.2"),
            ("nfs://h/?proto=udp", "use rdma or tcp"),
            ("nfs+tcp://h/?proto=rdma", "contradicts proto=rdma"),
            ("nfs://h/?provider=roce", "auto, iwarp or verbs"),
            ("nfs://h/?registration=all-physical", "millrace-lab"),
            ("nfs://h/?nconnect=0", "1 to 64"),
            ("nfs://h/?busy_poll=1001", "0 to 1000"),
            ("nfs://h/?busy_poll=1ms", "microseconds"),
            ("nfs://h/?rsize=4G", "expected a size"),
            ("nfs://h/?rsize=4096M", "expected a size"),
            ("nfs://h/?rsize=5000M", "expected a size"),
            ("nfs://h/?color=red", "unknown option"),
            ("nfs://h/?registration=fmr", "use dynamic, fast, cache"),
            ("nfs://h/?proto", "no value"),
            ("nfs://h/?xprtsec=ssl", "write none, tls or mtls"),
            ("nfs://h/?sec=dh", "write sys, krb5, krb5i or krb5p"),
            ("nfs://h/?tls_ca=", "tls_ca names no file"),
            ("nfs://h/?tls_name=*.test", "neither a DNS name nor an IP address"),
            ("nfs://h/%zz", "hexadecimal"),
            ("nfs://h/%00", "NUL"),
            ("nfs://[2001:db8::1%eth0]/", "only link-local addresses have an interface"),
        ] {
            let err = text.parse::<Url>().unwrap_err().to_string();
            assert!(err.contains(part), "{text}: {err}");
        }
    }

    #[test]
    fn errors_have_the_url_for_spellings_of_other_programs() {
        for (text, corrected) in [
            ("127.0.0.1:/data", "'nfs://127.0.0.1/data'"),
            ("[fe80::1%eth0]:/data/a b?", "'nfs://[fe80::1%eth0]/data/a%20b%3F'"),
            ("nfs://root@h/data", "'nfs://h/data'"),
            ("nfs://root:secret@h:2049/data/a@b", "'nfs://h:2049/data/a@b'"),
            ("nfs://h/data?version=3", "'nfs://h/data?vers=3'"),
            ("nfs://h/data?nconnect=2&nfsvers=4.2&tcp", "'nfs://h/data?vers=4.2&proto=tcp&nconnect=2'"),
            ("nfs+tcp://u@h/data", "'nfs://h/data?proto=tcp'"),
            ("nfs+rdma://u@h/data?rsize=1M", "'nfs://h/data?proto=rdma&rsize=1048576'"),
        ] {
            let err = text.parse::<Url>().unwrap_err().to_string();
            assert!(err.contains(&format!("; write {corrected}")), "{text}: {err}");
        }
        // A guess that would be wrong too is not made.
        for text in [
            "nfs://h/data?version=2",
            "http://h/data",
            "/data",
            "./a:/b",
            "h/a:/b",
            ":/data",
            "nfs://u@/data",
        ] {
            let err = text.parse::<Url>().unwrap_err().to_string();
            assert!(!err.contains("write"), "{text}: {err}");
        }
    }

    #[test]
    fn a_path_with_any_character_survives() {
        for path in ["/a b/ä?&=%/#".into(), OsString::from_vec(b"/\xe9t\xe9".to_vec())] {
            let u = Url::new("h", path);
            assert_eq!(u.to_string().parse::<Url>().unwrap(), u);
        }
    }

    #[test]
    fn a_link_local_address_has_an_interface() {
        for text in ["nfs://[fe80::1%eth0]:7/x", "nfs://[fe80::1%25eth0]:7/x"] {
            let u: Url = text.parse().unwrap();
            assert_eq!((u.host.as_str(), u.port), ("fe80::1%eth0", Some(7)));
            assert_eq!(u.to_string().parse::<Url>().unwrap(), u);
        }
    }
}
