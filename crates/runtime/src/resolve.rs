//! Name resolution, and the interfaces of link-local addresses.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

use futures::channel::oneshot;

use crate::Runtime;

/// Returns the IPv6 address `text`, which may have the interface of a link-local address: `fe80::1%eth0` (RFC 4007), or
/// `fe80::1%25eth0` as in URLs (RFC 6874), which becomes the former.
///
/// # Errors
/// What is wrong, and how to write it.
pub fn ipv6_host(text: &str) -> Result<String, String> {
    let (address, interface) = text.split_once('%').map_or((text, None), |(address, i)| (address, Some(i)));
    let ip: Ipv6Addr = address.parse().map_err(|_| format!("{text:?} is not an IPv6 address"))?;
    match interface {
        None => Ok(text.to_owned()),
        Some(interface) if ip.is_unicast_link_local() => {
            let interface = interface.strip_prefix("25").filter(|rest| !rest.is_empty()).unwrap_or(interface);
            Ok(format!("{address}%{interface}"))
        }
        Some(_) => Err(format!("only link-local addresses have an interface: write {ip}")),
    }
}

/// Returns the addresses of `host`, a name or an IP address, with `port`, in the order of getaddrinfo(3). A link-local IPv6
/// address has an interface, as in [`ipv6_host`]. Blocks if `host` is a name.
///
/// # Errors
/// Those of the lookup; [`ErrorKind::InvalidInput`] if a link-local address has no interface of this host.
pub fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                Err(no_interface(ip, format!("the link-local address {ip} is unique on one link only")))
            }
            ip => Ok(vec![SocketAddr::new(ip, port)]),
        };
    }
    (host, port).to_socket_addrs().map(Vec::from_iter).map_err(|e| match host.split_once('%') {
        Some((address, interface)) => match address.parse() {
            Ok(ip) => no_interface(ip, format!("this host has no interface {interface}")),
            Err(_) => e,
        },
        None => e,
    })
}

/// The error of a link-local address without one of the interfaces of this host, which it lists.
fn no_interface(ip: Ipv6Addr, why: String) -> io::Error {
    let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten().filter_map(Result::ok);
    let mut addresses: Vec<_> = interfaces
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "lo")
        .map(|name| format!("[{ip}%{name}]"))
        .collect();
    addresses.sort();
    if addresses.is_empty() {
        addresses.push(format!("[{ip}%INTERFACE]"));
    }
    io::Error::new(ErrorKind::InvalidInput, format!("{why}: write {}", addresses.join(" or ")))
}

/// `addr`, as an IPv4 address if it is an IPv4-mapped IPv6 address, which a socket for both families shows for IPv4.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
        // Keeps the interface.
        IpAddr::V6(_) => addr,
    }
}

/// As [`lookup`], as blocking work of `rt`. Returns at least one address.
///
/// # Errors
/// Those of [`lookup`]; [`ErrorKind::NotFound`] if it returns no address.
pub async fn resolve(rt: &dyn Runtime, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if host.parse::<IpAddr>().is_ok() {
        return lookup(host, port);
    }
    let (done, found) = oneshot::channel();
    let name = host.to_owned();
    rt.spawn_blocking(Box::new(move || {
        drop(done.send(lookup(&name, port)));
    }));
    match found.await {
        Ok(Ok(addresses)) if addresses.is_empty() => {
            Err(io::Error::new(ErrorKind::NotFound, "the name has no address"))
        }
        Ok(result) => result,
        Err(_) => Err(io::Error::other("the runtime has shut down")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokio_rt::TokioRuntime;

    #[test]
    fn names_and_addresses_are_resolved() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let rt = TokioRuntime::current();
            let rt = &*rt;
            let v6 = resolve(rt, "::1", 3260).await.unwrap();
            assert_eq!(v6, ["[::1]:3260".parse().unwrap()]);
            let local = resolve(rt, "localhost", 2049).await.unwrap();
            assert!(local.iter().all(|a| a.ip().is_loopback() && a.port() == 2049) && !local.is_empty());
            resolve(rt, "name with spaces", 1).await.unwrap_err();
        });
    }

    #[test]
    fn link_local_addresses_have_an_interface() {
        for (text, host) in [
            ("fe80::1%eth0", Ok("fe80::1%eth0")),
            ("fe80::1%25eth0", Ok("fe80::1%eth0")),
            ("fe80::1%25", Ok("fe80::1%25")),
            ("2001:db8::1", Ok("2001:db8::1")),
            ("2001:db8::1%eth0", Err("write 2001:db8::1")),
            ("fe80::zz%eth0", Err("not an IPv6 address")),
        ] {
            match (ipv6_host(text), host) {
                (Ok(found), Ok(host)) => assert_eq!(found, host),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let found = lookup("fe80::1%lo", 7).unwrap();
        assert_eq!(found, [format!("[fe80::1%{}]:7", index.trim()).parse().unwrap()]);
        for (host, part) in [("fe80::1", "link-local"), ("fe80::1%no-such0", "no interface no-such0")] {
            let e = lookup(host, 7).unwrap_err().to_string();
            assert!(e.contains(part) && e.contains("write [fe80::1%"), "{e}");
        }
    }
}
