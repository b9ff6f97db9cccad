//! Checks of the path to a port: name, connection, MTU.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use millrace_runtime::lookup;

use super::Finding;

/// Time limit of one step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// MTU above which large transfers over TCP and siw are efficient.
const JUMBO: u64 = 9000;

/// The first address of `host`.
pub(super) fn resolve(host: &str, port: u16) -> Result<SocketAddr, Finding> {
    let remedy = || format!("correct the name, or check `getent hosts {host}` and /etc/resolv.conf");
    let failed = |why: String| Finding::broken("name", format!("{host} has no address: {why}"), remedy());
    lookup(host, port)
        .map_err(|e| failed(e.to_string()))?
        .into_iter()
        .next()
        .ok_or_else(|| failed("the lookup returned no address".into()))
}

/// Connects to the port of a server that `start`, a command, starts.
pub(super) fn connect(addr: SocketAddr, start: &str) -> Result<TcpStream, Finding> {
    TcpStream::connect_timeout(&addr, STEP_TIMEOUT).map_err(|e| {
        let (why, remedy) = match e.kind() {
            ErrorKind::ConnectionRefused => (
                "nothing listens there",
                format!(
                    "start the server with this address: {start}; `ss -ltn` on the server lists its ports"
                ),
            ),
            ErrorKind::TimedOut => (
                "no answer: packets are dropped on the path, or the host is down",
                format!(
                    "open the port in firewalls: `nft add rule inet filter input tcp dport {} accept`",
                    addr.port()
                ),
            ),
            _ => ("the host is unreachable", format!("check `ip route get {}`", addr.ip())),
        };
        Finding::broken("port", format!("{addr}: {why} ({e})"), remedy)
    })
}

/// The MTU of the interface towards the server, and whether segments are smaller than it allows.
pub(super) fn mtu(stream: &TcpStream) -> Finding {
    let seen = || -> io::Result<(String, u64, u64)> {
        let local = stream.local_addr()?.ip();
        let of = if_addrs::get_if_addrs()?.into_iter().find(|i| i.ip() == local);
        let name = of.ok_or(ErrorKind::NotFound)?.name;
        let text = fs::read_to_string(format!("/sys/class/net/{name}/mtu"))?;
        let mtu = text.trim().parse().map_err(|_| ErrorKind::InvalidData)?;
        let segment = socket2::SockRef::from(stream).tcp_mss()?;
        Ok((name, mtu, segment.into()))
    };
    match seen() {
        Err(e) => {
            Finding::note("mtu", format!("the MTU cannot be determined: {e}"), "check it with `ip link`")
        }
        Ok((name, mtu, segment)) => mtu_finding(&name, mtu, segment),
    }
}

/// Headers take 40 bytes with IPv4 and 60 with IPv6, options of TCP 12 more.
const HEADERS: u64 = 72;

fn mtu_finding(name: &str, mtu: u64, segment: u64) -> Finding {
    if name != "lo" && segment + HEADERS < mtu {
        return Finding::note(
            "mtu",
            format!("{name} has {mtu}, but TCP segments to the server are limited to {segment} bytes"),
            "set the same MTU on both hosts and all devices between them: `ip link set dev DEVICE mtu N`",
        );
    }
    if mtu < JUMBO {
        return Finding::note(
            "mtu",
            format!("{name} has {mtu}; large transfers are faster with {JUMBO}"),
            format!("if network and server support jumbo frames: `ip link set dev {name} mtu {JUMBO}`"),
        );
    }
    Finding::fine("mtu", format!("{name} has {mtu}"))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn mtus_are_judged() {
        assert_eq!(mtu_finding("lo", 65536, 32741).state, State::Fine);
        assert_eq!(mtu_finding("eth0", 9000, 8948).state, State::Fine);
        let small = mtu_finding("eth0", 9000, 1448);
        assert!(small.state == State::Note && small.found.contains("1448"), "{small:?}");
        assert!(mtu_finding("eth0", 1500, 1448).found.contains("faster"));
    }
}
