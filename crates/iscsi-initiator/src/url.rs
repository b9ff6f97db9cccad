//! `iscsi://` and `iser://` URLs.

use std::{fmt, str::FromStr};

use millrace_iscsi::{
    chap::{Credentials, Secret},
    name::{IscsiName, PORT, TargetAddress},
};
use millrace_runtime::ipv6_host;
use millrace_scsi::Lun;
use millrace_tls::Tls;

use crate::Error;

/// The transport of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `iscsi://`: TCP.
    Tcp,
    /// `iser://`: RDMA, with iSER (RFC 7145).
    Iser,
}

/// URL of a logical unit, `iscsi://[USER[%SECRET]@]HOST[:PORT]/TARGET/LUN`, of a target, without the LUN, or of a
/// portal for discovery, without target and LUN. With `iser://` the connection is over RDMA.
///
/// The format is that of libiscsi: the CHAP secret follows the user after `%`. `?xprtsec=tls&tls_ca=FILE` encrypts, with the
/// options of NFS. The host is a name, an IPv4 address or
/// an IPv6 address in brackets. [`Display`](fmt::Display) and [`Debug`] leave the secret out.
///
/// ```
/// let url: millrace_iscsi_initiator::Url = "iscsi://[::1]:3261/iqn.2026-01.example:disk/3".parse().unwrap();
/// assert_eq!((url.address.host.as_str(), url.address.port), ("::1", 3261));
/// assert_eq!(url.target.unwrap().as_str(), "iqn.2026-01.example:disk");
/// assert_eq!(url.lun.unwrap().number(), 3);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Url {
    /// The transport.
    pub transport: Transport,
    /// The portal.
    pub address: TargetAddress,
    /// The CHAP name of the initiator, if given.
    pub user: Option<String>,
    /// The CHAP secret of the initiator, if given.
    pub secret: Option<Secret>,
    /// The target; `None` for discovery.
    pub target: Option<IscsiName>,
    /// The logical unit, if given.
    pub lun: Option<Lun>,
    /// TLS, which no standard defines for iSCSI: of a Millrace target only, and not on RDMA adapters.
    pub tls: Tls,
}

impl Url {
    /// A URL without credentials.
    pub fn new(
        transport: Transport,
        address: TargetAddress,
        target: Option<IscsiName>,
        lun: Option<Lun>,
    ) -> Self {
        Self { transport, address, user: None, secret: None, target, lun, tls: Tls::default() }
    }

    /// The credentials, if there are a name and a secret.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let (name, secret) = self.user.clone().zip(self.secret.clone())?;
        Some(Credentials { name, secret })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        let address = TargetAddress { tag: None, ..self.address.clone() };
        let scheme = match self.transport {
            Transport::Tcp => "iscsi",
            Transport::Iser => "iser",
        };
        write!(f, "{scheme}://{user}{address}")?;
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        self.lun.map_or(Ok(()), |lun| write!(f, "/{}", lun.number()))?;
        for (n, (option, value)) in self.tls.options().enumerate() {
            write!(f, "{}{option}={}", if n == 0 { '?' } else { '&' }, value.display())?;
        }
        Ok(())
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|reason| Error::Url { url: redacted(text), reason })
    }
}

/// The text without a secret, also if it is no URL: a secret follows the first `%`, and ends before the last `@`.
fn redacted(text: &str) -> String {
    match text.split_once('%') {
        Some((user, rest)) if !is_bracketed(user) || text.contains('@') => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{user}@{host}"),
            None => user.to_owned(),
        },
        _ => text.to_owned(),
    }
}

/// Whether a `%` after this text precedes the interface of an IPv6 address.
fn is_bracketed(before: &str) -> bool {
    before.rsplit_once('[').is_some_and(|(_, address)| !address.contains([']', '/']))
}

fn parse(text: &str) -> Result<Url, String> {
    let (transport, rest) = match text.split_once("://") {
        Some(("iscsi", rest)) => (Transport::Tcp, rest),
        Some(("iser", rest)) => (Transport::Iser, rest),
        _ => return Err("it does not begin with iscsi:// or iser://".into()),
    };
    // A secret may have any character, also those that separate the parts after it, and so may a file in the query: the login
    // ends at the first `@` that a portal follows.
    let ends = rest.match_indices('@').map(|(at, _)| at);
    let divided = ends.map(|at| (Some(&rest[..at]), &rest[at + 1..]));
    let (mut found, mut failure) = (None, String::new());
    for (login, portal) in std::iter::once((None, rest)).chain(divided) {
        match parse_portal(transport, portal) {
            Ok(url) => {
                found = Some((login, url));
                break;
            }
            Err(reason) => failure = reason,
        }
    }
    let Some((login, mut url)) = found else {
        let is_secret = rest.split_once('%').is_some_and(|(before, _)| !is_bracketed(before));
        return Err(match rest.contains('@') || !is_secret {
            true => failure,
            false => "the user and the secret are not followed by @HOST".into(),
        });
    };
    let (user, secret) = match login.map(|l| l.split_once('%').map_or((l, None), |(u, s)| (u, Some(s)))) {
        None => return Ok(url),
        Some(("", _)) => return Err("the user is empty".into()),
        Some(found) => found,
    };
    url.user = Some(user.to_owned());
    url.secret = secret.map(|s| Secret::new(s.as_bytes())).transpose().map_err(|e| e.to_string())?;
    Ok(url)
}

/// Parses what follows the login.
fn parse_portal(transport: Transport, rest: &str) -> Result<Url, String> {
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut address: TargetAddress = address.parse().map_err(|_| {
        format!("{address:?} is not a host with an optional port; the default port is {PORT}")
    })?;
    if address.host.contains(':') {
        address.host = ipv6_host(&address.host)?;
    }
    if address.tag.is_some() {
        return Err("a portal group tag is not part of a URL".into());
    }
    let (target, lun) = match path.trim_end_matches('/').split_once('/') {
        Some((target, lun)) => (Some(target), Some(lun)),
        None => (Some(path.trim_end_matches('/')).filter(|t| !t.is_empty()), None),
    };
    let target = target.map(str::parse::<IscsiName>).transpose().map_err(|e| e.to_string())?;
    let lun = lun.map(str::parse::<Lun>).transpose().map_err(|e| e.to_string())?;
    let tls = query.map(tls).transpose()?.unwrap_or_default();
    Ok(Url { tls, ..Url::new(transport, address, target, lun) })
}

/// The options of a URL, which are those of NFS.
fn tls(query: &str) -> Result<Tls, String> {
    let mut tls = Tls::default();
    for option in query.split('&') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !tls.set(key, value.as_ref())? {
            return Err(format!(
                "`{option}` is not an option; there are xprtsec=none|tls|mtls, tls_ca=FILE, tls_cert=FILE, \
                 tls_key=FILE and tls_name=NAME"
            ));
        }
    }
    tls.check(false)?;
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_the_parts_of_libiscsi() {
        for (text, shown) in [
            ("iscsi://192.0.2.1", "iscsi://192.0.2.1:3260"),
            ("iscsi://192.0.2.1/", "iscsi://192.0.2.1:3260"),
            (
                "iscsi://san.example:3261/iqn.2026-01.example:a",
                "iscsi://san.example:3261/iqn.2026-01.example:a",
            ),
            ("iscsi://[fe80::1%25eth0]", "iscsi://[fe80::1%eth0]:3260"),
            ("iscsi://me%a-secret-of-20-byte@[fe80::1%eth0]", "iscsi://me@[fe80::1%eth0]:3260"),
            ("iscsi://h/iqn.2026-01.example:a/7/", "iscsi://h:3260/iqn.2026-01.example:a/7"),
            ("iser://h/iqn.2026-01.example:a/7", "iser://h:3260/iqn.2026-01.example:a/7"),
            (
                "iscsi://me%a-secret-of-20-byte@h/iqn.2026-01.example:a/0",
                "iscsi://me@h:3260/iqn.2026-01.example:a/0",
            ),
            (
                "iscsi://h/iqn.2026-01.example:a/7?xprtsec=mtls&tls_key=k&tls_cert=c&tls_ca=/a&tls_name=n",
                "iscsi://h:3260/iqn.2026-01.example:a/7?xprtsec=mtls&tls_ca=/a&tls_cert=c&tls_key=k&tls_name=n",
            ),
            ("iser://h?xprtsec=tls", "iser://h:3260?xprtsec=tls"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("a-secret"));
        }
    }

    #[test]
    fn a_secret_has_any_character() {
        for secret in [
            "a-secret-of%20-byte",
            "a-secret?xprtsec=tls",
            "a-secret/of/base64==",
            "a-secret@with?of@/twice",
            "://a-secret-of",
        ] {
            for (portal, ca) in
                [("h:7/iqn.2026-01.example:a/0", None), ("h:7?xprtsec=tls&tls_ca=/a@h?/c", Some("/a@h?/c"))]
            {
                let url: Url = format!("iscsi://me%{secret}@{portal}").parse().unwrap();
                let Credentials { name, secret: found } = url.credentials().unwrap();
                assert!(name == "me" && found == Secret::new(secret.as_bytes()).unwrap(), "{secret}");
                assert_eq!((url.address.host.as_str(), url.address.port), ("h", 7), "{secret}");
                assert_eq!(url.tls.ca, ca.map(Into::into));
                assert_eq!(url.to_string(), format!("iscsi://me@{portal}"));
            }
        }
        let url: Url = "iscsi://[fe80::1%eth0@if2]/iqn.2026-01.example:a".parse().unwrap();
        assert_eq!((url.address.host.as_str(), url.user), ("fe80::1%eth0@if2", None));
    }

    #[test]
    fn invalid_urls_name_the_reason_without_the_secret() {
        for (text, reason) in [
            ("nfs://h", "does not begin with iscsi://"),
            ("iscsi://", "is not a host"),
            ("iscsi://a:0", "is not a host"),
            ("iscsi://a,1", "portal group tag"),
            ("iscsi://[2001:db8::1%eth0]", "only link-local addresses have an interface"),
            ("iscsi://h/disk/0", "iSCSI name"),
            ("iscsi://h/iqn.2026-01.example:a/x", "is not a LUN"),
            ("iscsi://h/iqn.2026-01.example:a/16384", "is not a LUN"),
            ("iscsi://%s@h", "user is empty"),
            ("iscsi://me%short-key@h", "CHAP secret"),
            ("iscsi://me%short-key", "not followed by @HOST"),
            ("iscsi://me%short-key/h", "not followed by @HOST"),
            ("iscsi://me%short-key/@/?xprtsec=tls", "\"\" is not a host"),
            ("iscsi://me%short-key?xprtsec=ssl", "not followed by @HOST"),
            ("iscsi://me%[short-key]", "not followed by @HOST"),
            ("iscsi://me%short-key@h?tls=yes", "there are xprtsec=none|tls|mtls, tls_ca=FILE"),
            ("iscsi://me%short-key?a@h@i/x", "iSCSI name"),
            ("me%short-key://@h", "does not begin with iscsi://"),
            ("me%short-key", "does not begin with iscsi://"),
            ("iscsi://h?tls=yes", "there are xprtsec=none|tls|mtls, tls_ca=FILE"),
            ("iscsi://h?xprtsec=ssl", "write none, tls or mtls"),
            ("iscsi://h?tls_ca=a", "has no effect without TLS"),
            ("iscsi://h?xprtsec=mtls", "needs a certificate of this client"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("short-key"), "{error}");
        }
    }
}
