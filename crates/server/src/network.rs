//! Sets of client addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An address with a prefix length or a netmask (`10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `fe80::/10`), or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    addr: IpAddr,
    prefix: u8,
}

impl From<IpAddr> for Network {
    fn from(addr: IpAddr) -> Self {
        let addr = addr.to_canonical();
        Self { addr, prefix: width(addr) }
    }
}

/// Bits of an address.
fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { Ipv6Addr::BITS as u8 }
}

impl Network {
    /// Whether it is a single address.
    pub(crate) fn is_host(&self) -> bool {
        self.prefix == width(self.addr)
    }

    /// Whether it has all addresses of its family.
    pub(crate) fn is_all(&self) -> bool {
        self.prefix == 0
    }

    /// Whether `ip` is in the network. An IPv4-mapped IPv6 address counts as IPv4.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        match (self.addr, ip.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                same_prefix(u128::from(net.to_bits()), u128::from(ip.to_bits()), 32, self.prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => same_prefix(net.to_bits(), ip.to_bits(), 128, self.prefix),
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u8, prefix: u8) -> bool {
    let host_bits = u32::from(width.saturating_sub(prefix));
    (a ^ b).checked_shr(host_bits).is_none_or(|differing| differing == 0)
}

impl FromStr for Network {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad =
            || format!("`{s}` is not a network; write an address or, for example, 10.0.0.0/8 or fd00::/8");
        let (addr, length) = match s.trim().split_once('/') {
            Some((addr, length)) => (addr, Some(length)),
            None => (s.trim(), None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let width = width(addr);
        let prefix = match length {
            None => width,
            Some(length) => match length.parse::<Ipv4Addr>() {
                Ok(mask)
                    if addr.is_ipv4() && mask.to_bits().leading_ones() == mask.to_bits().count_ones() =>
                {
                    mask.to_bits().count_ones() as u8
                }
                _ => length.parse().map_err(|_| bad())?,
            },
        };
        if prefix > width {
            return Err(bad());
        }
        Ok(Self { addr, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_only() {
        let cases = [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("fe80::/10", "febf::1", true),
            ("fe80::/10", "fec0::1", false),
            ("127.0.0.0/8", "::ffff:127.0.0.1", true),
            ("10.0.0.0/255.0.0.0", "10.255.1.2", true),
            ("10.0.0.0/255.0.0.0", "11.0.0.1", false),
        ];
        for (net, ip, inside) in cases {
            let n: Network = net.parse().unwrap();
            assert_eq!(n.contains(ip.parse().unwrap()), inside, "{ip} in {net}");
        }
    }

    #[test]
    fn malformed_networks_are_rejected() {
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "host.example",
            "1.2.3.4/-1",
            "1.2.3.4/",
            "1.2.3.4/255.0.255.0",
            "::/255.0.0.0",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
