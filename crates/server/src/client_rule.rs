//! The clients of an export, and their options, in the notation of exports(5): `10.0.0.5(rw,no_root_squash)`.

use std::{fmt, str::FromStr};

use millrace_oncrpc::TransportSecurity;

use crate::{network::Network, security::SecurityFlavors};

/// Some clients of an export, and the options that replace those of the export for them.
///
/// The text form is `HOSTS` or `HOSTS(OPTION,...)`, with the options of [`ExportConfig`](crate::ExportConfig) that concern access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRule {
    pub(crate) hosts: Hosts,
    pub(crate) options: Vec<AccessOption>,
}

/// The hosts of a [`ClientRule`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// A host by name.
    Name(String),
    /// The hosts with these addresses.
    Network(Network),
    /// `*`: all hosts.
    Any,
}

impl Hosts {
    /// The order in which rules are compared with a client, as in exports(5): single hosts, networks, `*`; those of one link
    /// before those of all.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Network(network) => match (network.is_host(), network.has_interface()) {
                (true, true) => 0,
                (true, false) => 1,
                (false, true) => 2,
                (false, false) => 3,
            },
            Self::Name(_) => 1,
            Self::Any => 4,
        }
    }

    /// Whether every host of an address family matches.
    pub(crate) fn is_any(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Network(network) => network.is_all(),
            Self::Any => true,
        }
    }
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s == "*" {
            return Ok(Self::Any);
        }
        if s.contains(['/', ':']) {
            return s.parse().map(Self::Network);
        }
        let unsupported = if s.starts_with('@') {
            "netgroups"
        } else if s.contains(['*', '?', '[']) {
            "wildcards in host names"
        } else {
            let label = |l: &str| {
                !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            };
            let name = s.strip_suffix('.').unwrap_or(s);
            // A name whose last label is a number is an address, possibly a wrong one.
            let is_number = |l: &str| l.bytes().all(|b| b.is_ascii_digit());
            return match name.split('.').all(label) && !name.rsplit('.').next().is_none_or(is_number) {
                true => Ok(Self::Name(s.to_owned())),
                false => s.parse().map(Self::Network),
            };
        };
        Err(format!("`{s}`: {unsupported} are not supported; write host names, addresses, networks, or `*`"))
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Network(network) => network.fmt(f),
            Self::Any => f.write_str("*"),
        }
    }
}

impl FromStr for ClientRule {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let s = s.trim();
        let (hosts, options) = match s.split_once('(') {
            None => (s, ""),
            Some((hosts, rest)) => {
                let unclosed =
                    || format!("`{s}`: write HOSTS(OPTION,...), for example 10.0.0.5(rw,no_root_squash)");
                (hosts, rest.strip_suffix(')').ok_or_else(unclosed)?)
            }
        };
        let options = options.split(',').filter(|o| !o.is_empty());
        let options = options.map(|o| AccessOption::parse(o)?.ok_or_else(|| unknown(o)));
        Ok(Self { hosts: hosts.parse()?, options: options.collect::<Result<_, _>>()? })
    }
}

/// Mapping of callers to the anonymous identity, as in exports(5) of Linux. Callers without a credential are
/// always mapped.
///
/// AUTH_SYS does not authenticate users; with `None` this includes root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// No mapping: client identities are used unchanged, including root.
    None,
    /// Root (uid 0, and gid 0 in any position).
    #[default]
    Root,
    /// All callers.
    All,
}

/// An option that concerns access, which an export and its clients can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessOption {
    ReadOnly(bool),
    Squash(Squash),
    AnonUid(u32),
    AnonGid(u32),
    Secure(bool),
    AuthNone(bool),
    XprtSec(TransportSecurity),
    Sec(SecurityFlavors),
}

impl AccessOption {
    /// The option with this text; `None` if it is another one.
    pub(crate) fn parse(option: &str) -> Result<Option<Self>, String> {
        let number = |v: &str| v.parse::<u32>().map_err(|_| format!("`{v}` is not an id in `{option}`"));
        Ok(Some(match option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v))) {
            ("ro", None) => Self::ReadOnly(true),
            ("rw", None) => Self::ReadOnly(false),
            ("squash", Some("none")) | ("no_root_squash", None) => Self::Squash(Squash::None),
            ("squash", Some("root")) | ("root_squash", None) => Self::Squash(Squash::Root),
            ("squash", Some("all")) | ("all_squash", None) => Self::Squash(Squash::All),
            ("anon_uid" | "anonuid", Some(v)) => Self::AnonUid(number(v)?),
            ("anon_gid" | "anongid", Some(v)) => Self::AnonGid(number(v)?),
            ("secure", None) => Self::Secure(true),
            ("insecure", None) => Self::Secure(false),
            ("auth_none", None) => Self::AuthNone(true),
            ("no_auth_none", None) => Self::AuthNone(false),
            ("xprtsec", Some(list)) => Self::XprtSec(TransportSecurity::weakest(list.split(':'))?),
            ("sec", Some(list)) => Self::Sec(list.parse()?),
            _ => return Ok(None),
        }))
    }
}

/// The error for an option that does not exist.
pub(crate) fn unknown(option: &str) -> String {
    let counterpart = match option.split_once('=').map_or(option, |(key, _)| key) {
        "async" => "write no_sync_metadata",
        "sync" | "no_subtree_check" | "no_all_squash" | "wdelay" | "no_wdelay" | "fsid" => {
            "this option of exports(5) has no counterpart; leave it out"
        }
        _ => {
            "there are ro, rw, squash=none|root|all (or no_root_squash, root_squash, all_squash), anon_uid=N, anon_gid=N, \
             secure, insecure, auth_none, no_auth_none, xprtsec=none:tls:mtls and sec=krb5p:krb5i:krb5:sys; only for an export client=HOSTS[(OPTION,...)], no_sync_metadata, \
             identities=callers|server-user and delegations=none|read|write"
        }
    };
    format!("`{option}` is not an export option; {counterpart}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_addresses_networks_or_all() {
        for (text, shown, rank) in [
            ("*", "*", 4),
            ("10.0.0.5", "10.0.0.5/32", 1),
            ("10.0.0.0/255.0.0.0", "10.0.0.0/8", 3),
            ("fd00::/8(ro)", "fd00::/8", 3),
            ("fe80::1%lo(ro)", "fe80::1%lo/128", 0),
            ("fe80::%lo/64", "fe80::%lo/64", 2),
            ("::1", "::1/128", 1),
            ("node-1.example.com(rw,no_root_squash)", "node-1.example.com", 1),
        ] {
            let rule: ClientRule = text.parse().unwrap();
            assert_eq!((rule.hosts.to_string(), rule.hosts.rank()), (shown.to_owned(), rank));
        }
        for (text, expected) in [
            ("@staff", "netgroups are not supported"),
            ("*.example.com", "wildcards in host names are not supported"),
            ("10.0.0", "not a network"),
            ("10.0.0.0/255.0.255.0", "not a network"),
            ("a b", "not a network"),
            ("", "not a network"),
            ("10.0.0.5(rw", "write HOSTS(OPTION,...)"),
            ("10.0.0.5(rww)", "not an export option; there are ro, rw"),
            ("10.0.0.5(anonuid=x)", "not an id"),
            ("10.0.0.5(delegations=read)", "only for an export"),
            ("10.0.0.5(async)", "write no_sync_metadata"),
        ] {
            let e = text.parse::<ClientRule>().unwrap_err();
            assert!(e.contains(expected), "{text}: {e}");
        }
    }
}
