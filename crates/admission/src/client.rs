//! Assignment of connections to clients.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// A client for the purpose of limits and fairness: an IPv4 address, or the /64 prefix of an IPv6 address.
///
/// An IPv6 host usually has all 2^64 addresses of a prefix (RFC 4291 section 2.5.1, RFC 7421), so limits per
/// address would be ineffective. An IPv4-mapped address counts as the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientAddr(IpAddr);

impl ClientAddr {
    /// The address, with the last 64 bits of an IPv6 address zero.
    pub fn prefix(self) -> IpAddr {
        self.0
    }
}

impl From<IpAddr> for ClientAddr {
    fn from(addr: IpAddr) -> Self {
        Self(match addr.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

impl fmt::Display for ClientAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => v4.fmt(f),
            IpAddr::V6(v6) => write!(f, "{v6}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_counts_by_address_and_ipv6_by_prefix() {
        let client = |text: &str| ClientAddr::from(text.parse::<IpAddr>().unwrap());
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("2001:db8:0:1::1").to_string(), "2001:db8:0:1::/64");
        assert_eq!(client("10.0.0.1").to_string(), "10.0.0.1");
    }
}
