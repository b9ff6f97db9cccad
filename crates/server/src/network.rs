//! Sets of client addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use millrace_runtime::{ipv6_host, lookup};

/// Prefix length of the link-local addresses, fe80::/10.
const LINK_LOCAL: u8 = 10;

/// An address with a prefix length or a netmask (`10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `fe80::/10`), or a single address.
/// Link-local addresses may have an interface (`fe80::1%eth0`, `fe80::%eth0/64`); without it, those of all links are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    addr: IpAddr,
    prefix: u8,
    interface: Option<Interface>,
}

/// The interface of link-local addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    name: String,
    index: u32,
}

/// The interface of the link of `addr`; 0 if it is not link-local.
fn interface_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(addr) => addr.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

impl From<SocketAddr> for Network {
    fn from(addr: SocketAddr) -> Self {
        let index = interface_of(addr);
        let interface = (index > 0).then(|| Interface { name: index.to_string(), index });
        let addr = addr.ip().to_canonical();
        Self { addr, prefix: width(addr), interface }
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

    /// Whether it has addresses of one link only.
    pub(crate) fn has_interface(&self) -> bool {
        self.interface.is_some()
    }

    /// Whether the address of `peer` is in the network. An IPv4-mapped IPv6 address counts as IPv4.
    pub(crate) fn contains(&self, peer: SocketAddr) -> bool {
        if self.interface.as_ref().is_some_and(|interface| interface.index != interface_of(peer)) {
            return false;
        }
        match (self.addr, peer.ip().to_canonical()) {
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
        let (addr, interface) = match addr.contains('%') {
            true => link_local(addr).map(|(addr, interface)| (addr, Some(interface)))?,
            false => (addr.parse().map_err(|_| bad())?, None),
        };
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
        // As the addresses of peers, an IPv4-mapped one is an IPv4 address.
        let (addr, prefix) = match addr.to_canonical() {
            ip @ IpAddr::V4(_) if addr.is_ipv6() && prefix >= 96 => (ip, prefix - 96),
            _ => (addr, prefix),
        };
        if let Some(Interface { name, .. }) = interface.as_ref().filter(|_| prefix < LINK_LOCAL) {
            return Err(format!(
                "only link-local addresses have an interface: write fe80::%{name}/{LINK_LOCAL}"
            ));
        }
        let first = first_address(addr, prefix);
        if addr != first {
            let zone = interface.map(|Interface { name, .. }| format!("%{name}")).unwrap_or_default();
            return Err(format!(
                "`{s}` has bits beyond its prefix; write {first}{zone}/{prefix} for the network, or {addr}{zone} for the host"
            ));
        }
        Ok(Self { addr, prefix, interface })
    }
}

/// The first address of the network of `addr`.
fn first_address(addr: IpAddr, prefix: u8) -> IpAddr {
    let host_bits = u32::from(width(addr).saturating_sub(prefix));
    match addr {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into()
        }
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into()
        }
    }
}

/// The link-local address `text` with an interface of this host.
fn link_local(text: &str) -> Result<(IpAddr, Interface), String> {
    let host = ipv6_host(text)?;
    let found = lookup(&host, 0).ok().and_then(|found| found.first().copied());
    let (addr, name) = host.split_once('%').unwrap_or((&host, ""));
    match found.map(|found| (found.ip(), interface_of(found))) {
        Some((addr, index)) if index > 0 => Ok((addr, Interface { name: name.to_owned(), index })),
        _ => Err(format!(
            "this host has no interface {name}: write {addr}%INTERFACE with one of those that `ip link` shows"
        )),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, prefix, interface } = self;
        match interface {
            Some(Interface { name, .. }) => write!(f, "{addr}%{name}/{prefix}"),
            None => write!(f, "{addr}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

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
            ("::ffff:10.1.2.3", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "10.255.1.2", true),
            ("::ffff:10.0.0.0/104", "11.0.0.1", false),
        ];
        for (net, ip, inside) in cases {
            let n: Network = net.parse().unwrap();
            assert_eq!(n.contains(SocketAddr::new(ip.parse().unwrap(), 1)), inside, "{ip} in {net}");
        }
    }

    #[test]
    fn link_local_addresses_may_have_an_interface() {
        let index: u32 =
            std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
        let peer = |ip: &str, index| SocketAddr::V6(SocketAddrV6::new(ip.parse().unwrap(), 1, 0, index));
        for (net, shown, ip, inside) in [
            ("fe80::1%lo", "fe80::1%lo/128", "fe80::1", (true, false)),
            ("fe80::1%25lo", "fe80::1%lo/128", "fe80::1", (true, false)),
            ("fe80::1%lo", "fe80::1%lo/128", "fe80::2", (false, false)),
            ("fe80::%lo/64", "fe80::%lo/64", "fe80::2", (true, false)),
            ("fe80::1", "fe80::1/128", "fe80::1", (true, true)),
            ("fe80::/10", "fe80::/10", "fe80::1", (true, true)),
        ] {
            let n: Network = net.parse().unwrap();
            assert_eq!(n.to_string(), shown);
            assert_eq!(shown.parse(), Ok(n.clone()));
            let found = (n.contains(peer(ip, index)), n.contains(peer(ip, index + 1)));
            assert_eq!(found, inside, "{ip} in {net}");
            assert!(!n.contains("10.0.0.1:1".parse().unwrap()));
        }
        for (text, part) in [
            ("2001:db8::1%lo", "write 2001:db8::1"),
            ("fe80::%lo/9", "write fe80::%lo/10"),
            ("fe80::1%lo/64", "write fe80::%lo/64 for the network, or fe80::1%lo for the host"),
            ("fe80::1%no-such0", "no interface no-such0: write fe80::1%"),
            ("fe80::zz%lo", "not an IPv6 address"),
            ("10.0.0.1%lo", "not an IPv6 address"),
        ] {
            let why = text.parse::<Network>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn networks_with_bits_of_hosts_are_rejected() {
        for (text, network, host) in [
            ("10.0.0.5/8", "10.0.0.0/8", "10.0.0.5"),
            ("10.0.0.5/255.255.255.0", "10.0.0.0/24", "10.0.0.5"),
            ("10.0.0.5/0", "0.0.0.0/0", "10.0.0.5"),
            ("fd00::1/8", "fd00::/8", "fd00::1"),
            ("2001:db8::1/0", "::/0", "2001:db8::1"),
        ] {
            let why = text.parse::<Network>().unwrap_err();
            let expected = format!("write {network} for the network, or {host} for the host");
            assert!(why.contains(&expected), "{text}: {why}");
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
