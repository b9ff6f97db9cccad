//! The address of this host in URLs that others use.

use std::net::{IpAddr, SocketAddr};

/// The address at which a listener on `addr` is reached: for all addresses of the host (`0.0.0.0`, `::`), the first of the
/// same family that other hosts can use, for `::` otherwise of IPv4, or the loopback address if there is none.
pub(crate) fn reachable(addr: SocketAddr) -> SocketAddr {
    if !addr.ip().is_unspecified() {
        return addr;
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let own = interfaces.into_iter().map(|interface| interface.ip()).collect();
    SocketAddr::new(choose(addr.ip(), own), addr.port())
}

/// Chooses from the addresses of this host.
fn choose(listener: IpAddr, own: Vec<IpAddr>) -> IpAddr {
    let is_usable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        // The scope of a link-local address is not part of a URL.
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let loopback = match listener {
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    let mut usable = own.iter().filter(|ip| is_usable(ip));
    let same_family = usable.clone().find(|ip| ip.is_ipv4() == listener.is_ipv4());
    same_family.or_else(|| usable.find(|_| listener.is_ipv6())).copied().unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_use_is_chosen() {
        let ips = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let own =
            ips(&["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "2001:db8::1", "192.0.2.1", "192.0.2.2"]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(choose(ip("0.0.0.0"), own.clone()), ip("192.0.2.1"));
        assert_eq!(choose(ip("::"), own), ip("2001:db8::1"));
        assert_eq!(choose(ip("0.0.0.0"), ips(&["127.0.0.1", "2001:db8::1"])), ip("127.0.0.1"));
        assert_eq!(choose(ip("::"), ips(&["fe80::1"])), ip("::1"));
        assert_eq!(choose(ip("::"), ips(&["fe80::1", "192.0.2.1"])), ip("192.0.2.1"));
    }

    #[test]
    fn urls_have_no_unspecified_address() {
        for (addr, is_same) in
            [("192.0.2.7:1", true), ("[::1]:2", true), ("0.0.0.0:3", false), ("[::]:4", false)]
        {
            let addr: SocketAddr = addr.parse().unwrap();
            let url = reachable(addr);
            assert!(!url.ip().is_unspecified() && url.port() == addr.port(), "{url}");
            assert_eq!(url == addr, is_same, "{url}");
        }
    }
}
