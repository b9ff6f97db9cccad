//! iSCSI names and addresses of portals (RFC 7143 sections 4.2.7 and 13.8).

use std::{fmt, net::Ipv6Addr, str::FromStr};

/// Maximum length of an iSCSI name in bytes.
pub const MAX_NAME: usize = 223;
/// The TCP port of iSCSI.
pub const PORT: u16 = 3260;

/// The name of an initiator or a target: `iqn.`, `eui.` or `naa.`, in lower case.
///
/// Letters are converted to lower case, as RFC 3722 requires, so that equal names are equal values. Names are
/// ASCII; RFC 3722 also permits letters of other alphabets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IscsiName(String);

/// Why a text is not an iSCSI name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an iSCSI name has at most {MAX_NAME} bytes and the form iqn.YYYY-MM.DOMAIN[:STRING], eui. with 16 hexadecimal \
     digits, or naa. with 16 or 32 (RFC 7143 section 4.2.7)"
)]
pub struct NameError;

impl IscsiName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IscsiName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() > MAX_NAME {
            return Err(NameError);
        }
        let name = text.to_ascii_lowercase();
        let hex = |s: &str, lengths: &[usize]| {
            lengths.contains(&s.len()) && s.bytes().all(|b| b.is_ascii_hexdigit())
        };
        let valid = match name.split_once('.') {
            Some(("iqn", rest)) => qualified(rest),
            Some(("eui", rest)) => hex(rest, &[16]),
            Some(("naa", rest)) => hex(rest, &[16, 32]),
            _ => false,
        };
        if valid { Ok(Self(name)) } else { Err(NameError) }
    }
}

/// Whether `rest` is `YYYY-MM.DOMAIN[:STRING]`.
fn qualified(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else { return false };
    let date_valid = matches!(date.as_bytes(), [y @ .., b'-', m1, m2]
        if y.len() == 4 && y.iter().all(u8::is_ascii_digit)
            && matches!((m1, m2), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2')));
    let domain = authority.split(':').next().unwrap_or_default();
    let permitted = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b);
    date_valid && !domain.is_empty() && authority.bytes().all(permitted)
}

/// The address of a portal of a target: `HOST[:PORT][,TAG]` (RFC 7143 section 13.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAddress {
    /// An IPv4 address, an IPv6 address without brackets, which may have an interface (`fe80::1%eth0`), or a domain name.
    pub host: String,
    /// TCP port; [`PORT`] if the text has none.
    pub port: u16,
    /// Portal group tag; absent in a redirection.
    pub tag: Option<u16>,
}

/// Why a text is not the address of a portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address of a portal has the form HOST[:PORT][,TAG], with IPv6 addresses in brackets")]
pub struct AddressError;

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(ip) => write!(f, "[{ip}]:{}", self.port)?,
            Err(_) if self.host.contains(':') => write!(f, "[{}]:{}", self.host, self.port)?,
            Err(_) => write!(f, "{}:{}", self.host, self.port)?,
        }
        self.tag.map_or(Ok(()), |tag| write!(f, ",{tag}"))
    }
}

impl FromStr for TargetAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let decimal =
            |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u16>().ok()).flatten();
        let (address, tag) = match text.split_once(',') {
            Some((address, tag)) => (address, Some(decimal(tag).ok_or(AddressError)?)),
            None => (text, None),
        };
        let (host, port) = match address.strip_prefix('[').and_then(|a| a.split_once(']')) {
            Some((ip, rest)) => {
                // A link-local address may have an interface.
                let (address, interface) = ip.split_once('%').unwrap_or((ip, "none"));
                address.parse::<Ipv6Addr>().map_err(|_| AddressError)?;
                let permitted = |b: u8| b.is_ascii_alphanumeric() || b"._-@".contains(&b);
                if interface.is_empty() || !interface.bytes().all(permitted) {
                    return Err(AddressError);
                }
                (ip, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or(AddressError)?) })
            }
            None => match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let port = port.map_or(Some(PORT), decimal).filter(|p| *p != 0).ok_or(AddressError)?;
        let domain = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
        let valid = host.contains(':') || !host.is_empty() && host.len() <= 253 && host.bytes().all(domain);
        if valid { Ok(Self { host: host.to_owned(), port, tag }) } else { Err(AddressError) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_checked_and_normalized() {
        for (text, name) in [
            ("iqn.1993-08.org.debian:01:ab-cd.1", "iqn.1993-08.org.debian:01:ab-cd.1"),
            ("IQN.2001-04.COM.Example:Disk", "iqn.2001-04.com.example:disk"),
            ("iqn.2001-12.com.example", "iqn.2001-12.com.example"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.5200456710A4678D", "naa.5200456710a4678d"),
            ("naa.6200456710A4678D0123456789AC0DEF", "naa.6200456710a4678d0123456789ac0def"),
        ] {
            assert_eq!(text.parse::<IscsiName>().unwrap().as_str(), name);
        }
        for text in [
            "",
            "iqn",
            "iqn.",
            "iqn.2001-04",
            "iqn.2001-04.",
            "iqn.2001-04.:disk",
            "iqn.2001-13.com.example",
            "iqn.2001-00.com.example",
            "iqn.201-04.com.example",
            "iqn.2001-04.com.example:a b",
            "iqn.2001-04.com.example:\x1b[2J",
            "iqn.2001-04.com.example:ä",
            "iqn.2001-04.com.example:a/../b",
            "eui.02004567A425678",
            "eui.02004567A425678G",
            "naa.0",
            "disk",
        ] {
            assert_eq!(text.parse::<IscsiName>(), Err(NameError), "{text:?}");
        }
        let longest = format!("iqn.2001-04.com.example:{}", "a".repeat(MAX_NAME - 24));
        assert_eq!(longest.len(), MAX_NAME);
        assert!(longest.parse::<IscsiName>().is_ok());
        assert!(format!("{longest}a").parse::<IscsiName>().is_err());
    }

    #[test]
    fn addresses_have_the_expected_text() {
        for (text, host, port, tag, shown) in [
            ("192.0.2.1:3260,1", "192.0.2.1", 3260, Some(1), "192.0.2.1:3260,1"),
            ("192.0.2.1", "192.0.2.1", 3260, None, "192.0.2.1:3260"),
            ("[2001:db8::1]:860,65535", "2001:db8::1", 860, Some(65535), "[2001:db8::1]:860,65535"),
            ("[2001:db8::1]", "2001:db8::1", 3260, None, "[2001:db8::1]:3260"),
            ("[fe80::1%eth0.1]:860", "fe80::1%eth0.1", 860, None, "[fe80::1%eth0.1]:860"),
            ("storage.example:1,0", "storage.example", 1, Some(0), "storage.example:1,0"),
        ] {
            let address: TargetAddress = text.parse().unwrap();
            assert_eq!(address, TargetAddress { host: host.to_owned(), port, tag });
            assert_eq!(address.to_string(), shown);
        }
        for text in [
            "",
            ":3260",
            "a:0",
            "a:65536",
            "a:+1",
            "a:",
            "a,",
            "a,1,2",
            "a b",
            "2001:db8::1",
            "[a]",
            "[::1]x",
            "[::1",
            "[::1%]",
            "[fe80::1%\x1b[2J]",
            "a\x1b:1",
        ] {
            assert_eq!(text.parse::<TargetAddress>(), Err(AddressError), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_preserved(text: String, tail in "[a-z0-9:.-]{0,30}") {
            for text in [text, format!("iqn.2001-04.{tail}"), tail] {
                if let Ok(name) = text.parse::<IscsiName>() {
                    prop_assert_eq!(name.to_string().parse(), Ok(name));
                }
                if let Ok(address) = text.parse::<TargetAddress>() {
                    prop_assert_eq!(address.to_string().parse(), Ok(address));
                }
            }
        }
    }
}
