//! Values of keys that have a text form.

use std::{
    ffi::OsString,
    fmt::{self, Display},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
    str::FromStr,
};

use millrace_runtime::{ipv6_host, lookup, percent_decode};
use millrace_server::{Backend, ByteSize, TransportSecurity};
use serde::{Deserialize, Deserializer, de};

/// Parses a value from its text form.
pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(d: D) -> Result<T, D::Error> {
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

/// Parses a value that may be missing.
pub(crate) fn optional_parsed<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    parsed(d).map(Some)
}

/// Parses a list of values from their text forms.
pub(crate) fn parsed_list<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: FromStr<Err: Display>")]
    struct Text<T>(#[serde(deserialize_with = "parsed")] T);
    Ok(Vec::deserialize(d)?.into_iter().map(|Text(value)| value).collect())
}

/// Parses an address to listen on, `ADDR:PORT`. A link-local IPv6 address has an interface: `[fe80::1%eth0]:2049`.
///
/// # Errors
/// What is wrong, and how to write it.
pub fn listening_address(text: &str) -> Result<SocketAddr, String> {
    let parts = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let (host, port) = parts.or_else(|| text.rsplit_once(':')).unwrap_or((text, ""));
    let Some(port) = number(port) else { return Err(not_an_address(text)) };
    let port = port
        .parse()
        .map_err(|_| format!("the port of {text:?} is {port}; ports are 1 to 65535, and 0 for a free one"))?;
    let host = match parts {
        Some(_) => ipv6_host(host)?,
        None => host.parse::<Ipv4Addr>().map_err(|_| not_an_address(text))?.to_string(),
    };
    let found = lookup(&host, port).map_err(|e| e.to_string())?;
    found.first().copied().ok_or_else(|| not_an_address(text))
}

fn number(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
}

/// Says what is missing or wrong in an address, and how to write it.
fn not_an_address(text: &str) -> String {
    const EXAMPLES: &str = "write ADDRESS:PORT, such as 127.0.0.1:2049 or [::1]:2049";
    let is_ip = |text: &str| text.parse::<IpAddr>().is_ok();
    if let Some((scheme, rest)) = text.split_once("://") {
        return format!("{text:?} has a scheme; leave {scheme}:// out: {rest}");
    }
    if number(text).is_some() {
        return format!(
            "{text:?} is a port without an address; write [::]:{text} for all addresses, or 127.0.0.1:{text} for this \
             host only"
        );
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if let ("" | "*", Some(port)) = (host, number(port)) {
        return format!("{text:?} has no address; write [::]:{port} for all addresses");
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let with_port = match ip {
            IpAddr::V6(ip) if number(port).is_some() && is_ip(host) && !text.starts_with('[') => {
                let last = format!("[{host}]:{port}");
                return format!("{text:?} is ambiguous; write {last}, or [{ip}]:PORT");
            }
            IpAddr::V6(ip) => format!("[{ip}]:2049"),
            IpAddr::V4(ip) => format!("{ip}:2049"),
        };
        return format!("{text:?} has no port; write for example {with_port}");
    }
    if let (Ok(ip), Some(port)) = (host.parse::<Ipv6Addr>(), number(port)) {
        return format!("an IPv6 address is in brackets; write [{ip}]:{port}");
    }
    let is_name = |host: &str| {
        host.contains(|c: char| c.is_ascii_alphabetic())
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
    };
    if number(port).is_some() && is_name(host) {
        let local = if host == "localhost" { format!("; write 127.0.0.1:{port}") } else { String::new() };
        return format!(
            "{text:?} has a host name, and a server listens on addresses of this host{local}; \
                        `ip address` shows them"
        );
    }
    format!("{text:?} is not an address and a port; {EXAMPLES}")
}

/// A listening address of a configuration file.
#[derive(Deserialize)]
pub(crate) struct Listening(#[serde(deserialize_with = "address")] pub(crate) SocketAddr);

fn address<'de, D: Deserializer<'de>>(d: D) -> Result<SocketAddr, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = SocketAddr;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address and a port, such as \"127.0.0.1:2049\" or \"[::1]:2049\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<SocketAddr, E> {
            listening_address(text).map_err(E::custom)
        }

        fn visit_i64<E: de::Error>(self, port: i64) -> Result<SocketAddr, E> {
            self.visit_str(&port.to_string())
        }
    }
    d.deserialize_any(Visitor)
}

/// A path, or a value with one: text, or `{ bytes = "..." }`, in which `%XX` is a byte, if it is not UTF-8.
fn os_string<'de, D: Deserializer<'de>>(d: D) -> Result<OsString, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Encoded {
        bytes: String,
    }

    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = OsString;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text, or { bytes = \"...\" } with %XX for each byte that is not UTF-8")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<OsString, E> {
            Ok(text.into())
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<OsString, A::Error> {
            let Encoded { bytes } = Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
            percent_decode(&bytes).map(OsString::from_vec).map_err(de::Error::custom)
        }
    }
    d.deserialize_any(Visitor)
}

/// A path.
pub(crate) fn path<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
    os_string(d).map(PathBuf::from)
}

/// A path that may be missing.
pub(crate) fn optional_path<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
    path(d).map(Some)
}

/// A backend, whose directory may have a path that is not UTF-8.
pub(crate) fn backend<'de, D: Deserializer<'de>>(d: D) -> Result<Backend, D::Error> {
    Backend::from_os_str(&os_string(d)?).map_err(de::Error::custom)
}

/// A number of bytes that may be missing, as an integer or as text.
pub(crate) fn optional_byte_size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ByteSize>, D::Error> {
    byte_size(d).map(Some)
}

/// A number of bytes, as an integer or as text.
pub(crate) fn byte_size<'de, D: Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = ByteSize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size in bytes, as a number or as text like \"2GiB\"")
        }

        fn visit_i64<E: de::Error>(self, v: i64) -> Result<ByteSize, E> {
            u64::try_from(v).map(ByteSize).map_err(|_| E::custom("a size cannot be negative"))
        }

        fn visit_u64<E: de::Error>(self, v: u64) -> Result<ByteSize, E> {
            Ok(ByteSize(v))
        }

        fn visit_str<E: de::Error>(self, v: &str) -> Result<ByteSize, E> {
            v.parse().map_err(E::custom)
        }
    }
    d.deserialize_any(Visitor)
}

/// A list of protections of transports.
pub(crate) fn xprtsec<'de, D: Deserializer<'de>>(d: D) -> Result<TransportSecurity, D::Error> {
    let list = Vec::<String>::deserialize(d)?;
    TransportSecurity::weakest(list.iter().map(String::as_str)).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses_have_a_port_and_link_local_ones_an_interface() {
        for text in ["127.0.0.1:0", "0.0.0.0:2049", "[::]:2049", "[2001:db8::1]:1"] {
            assert_eq!(listening_address(text), Ok(text.parse().unwrap()));
        }
        let local = listening_address("[fe80::1%lo]:2049").unwrap();
        assert_eq!(listening_address("[fe80::1%25lo]:2049"), Ok(local));
        assert!(matches!(local, SocketAddr::V6(addr) if addr.scope_id() != 0), "{local}");
        for (text, part) in [
            ("", "is not an address and a port; write ADDRESS:PORT"),
            ("127.0.0.1", "no port; write for example 127.0.0.1:2049"),
            ("127.0.0.1:", "write ADDRESS:PORT"),
            ("127.0.0.1:70000", "the port of \"127.0.0.1:70000\" is 70000; ports are 1 to 65535"),
            ("127.0.0.1:nfs", "write ADDRESS:PORT"),
            ("127.0.0.1:-1", "write ADDRESS:PORT"),
            ("[::1]", "no port; write for example [::1]:2049"),
            ("[::1]2049", "write ADDRESS:PORT"),
            ("2049", "a port without an address; write [::]:2049 for all addresses, or 127.0.0.1:2049"),
            (":2049", "no address; write [::]:2049"),
            ("*:2049", "no address; write [::]:2049"),
            ("localhost:0", "write 127.0.0.1:0"),
            ("host:2049", "host name, and a server listens on addresses"),
            ("server.example.com:2049", "host name"),
            ("tcp://0.0.0.0:2049", "leave tcp:// out: 0.0.0.0:2049"),
            ("::1:2049", "write [::1]:2049, or [::1:2049]:PORT"),
            ("::", "write for example [::]:2049"),
            ("fe80::zz:1", "write ADDRESS:PORT"),
            (
                "2001:db8:1:2:3:4:5:6:2049",
                "an IPv6 address is in brackets; write [2001:db8:1:2:3:4:5:6]:2049",
            ),
            ("[fe80::1]:2049", "write [fe80::1%"),
            ("[fe80::1%no-such0]:2049", "no interface no-such0"),
            ("[::1%lo]:2049", "only link-local"),
        ] {
            let why = listening_address(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
