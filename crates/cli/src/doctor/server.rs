//! What of a server can be seen from here, one step after the other: name, port, protocol, exports, access.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_client::{Error, Options, Proto, RetryPolicy, Url, nfs3::Client};
use millrace_nfs::{
    mount,
    v3::{Fattr, access},
};
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::tokio_rt::TokioRuntime;

use super::Finding;
use crate::session;

/// How long one step may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames of siw and of TCP are cut by the MTU; from here on large transfers are fast.
const JUMBO: u64 = 9000;
/// How much clocks may differ before times of files are taken for wrong.
const SKEW: Duration = Duration::from_secs(2);

/// Looks at the server of `url`, and at the export and path if it names any; ends with the first thing that is broken.
pub(crate) async fn server(url: &Url) -> Vec<Finding> {
    let mut out = Vec::new();
    // What broke is the last finding.
    let _ = steps(url, &mut out).await.map_err(|broken| out.push(broken));
    out
}

async fn steps(url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let addr = resolved(url)?;
    if over_tcp(url, addr) {
        let stream = reached(url, addr)?;
        out.push(Finding::fine("port", format!("something listens at {addr}")));
        out.push(mtu(&stream));
    }
    let exports = millrace_client::exports(TokioRuntime::current(), url, &options()).await;
    let exports = exports.map_err(|e| unanswered(url, &e))?;
    let names: Vec<&str> = exports.iter().map(|(name, _)| name.as_str()).collect();
    let proto = url.proto.unwrap_or_default();
    out.push(Finding::fine("protocol", format!("an NFS server answers over {proto}")));
    if names.is_empty() {
        return Err(Finding::broken(
            "exports",
            "the server exports nothing",
            "add an [[export]] to its configuration and `millrace reload` there",
        ));
    }
    out.push(Finding::fine("exports", names.join(", ")));
    if url.path != "/" {
        used(url, out).await?;
    }
    Ok(())
}

/// Mounts the export and looks at the path.
async fn used(url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let client = Client::connect(TokioRuntime::current(), url, options()).await.map_err(|e| unmounted(&e))?;
    let asked = Instant::now();
    let found = client.resolve(client.path_in_export().as_bytes()).await;
    let took = asked.elapsed();
    let (file, attributes) = found.map_err(|e| {
        let mend = format!("`millrace ls` shows what is in {}", client.export());
        Finding::broken("path", format!("{}: {e}", url.path), mend)
    })?;
    out.push(Finding::fine("path", format!("{} is there (asked in {} us)", url.path, took.as_micros())));
    let wanted = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND;
    let rights = client.access(file, wanted).await.map_err(|e| {
        Finding::broken("access", e.to_string(), "look at the server's log, and at the export's `clients`")
    })?;
    out.push(judged(rights, &attributes));
    out.push(clock(&attributes, SystemTime::now()));
    client.close();
    Ok(())
}

fn options() -> Options {
    session::options()
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .retry(RetryPolicy { max_elapsed: PATIENCE, ..RetryPolicy::default() })
}

fn resolved(url: &Url) -> Result<SocketAddr, Finding> {
    let found = (url.host.as_str(), url.port()).to_socket_addrs();
    let mend = || format!("correct the name, or check `getent hosts {}` and /etc/resolv.conf", url.host);
    let failed = |why: String| Finding::broken("name", format!("{} has no address: {why}", url.host), mend());
    found.map_err(|e| failed(e.to_string()))?.next().ok_or_else(|| failed("none is known".into()))
}

/// Whether the port is a TCP port: that of NFS over TCP, or of the software provider.
fn over_tcp(url: &Url, addr: SocketAddr) -> bool {
    let stated = url.provider.or(session::stated().provider).unwrap_or_default();
    let devices = || stated.to_connect(addr.ip()).is_ok_and(|chosen| chosen.provider.name() != "iwarp");
    url.proto == Some(Proto::Tcp) || stated == ProviderChoice::Iwarp || !devices()
}

fn reached(url: &Url, addr: SocketAddr) -> Result<TcpStream, Finding> {
    TcpStream::connect_timeout(&addr, PATIENCE).map_err(|e| {
        let (why, mend) = match e.kind() {
            ErrorKind::ConnectionRefused => (
                "nothing listens there",
                format!(
                    "start the server, and have it listen there: `millrace serve --listen-{} 0.0.0.0:{} ...`; \
                     `ss -ltn` on its machine shows what listens",
                    url.proto.unwrap_or_default(),
                    addr.port()
                ),
            ),
            ErrorKind::TimedOut => (
                "no answer: packets are dropped on the way, or the machine is off",
                format!("open the port in firewalls: `nft add rule inet filter input tcp dport {} accept`", addr.port()),
            ),
            _ => ("there is no way to the machine", format!("check `ip route get {}`", addr.ip())),
        };
        Finding::broken("port", format!("{addr}: {why} ({e})"), mend)
    })
}

/// The MTU of the interface towards the server, and whether segments are smaller than it allows.
fn mtu(stream: &TcpStream) -> Finding {
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
        Err(e) => Finding::note("mtu", format!("cannot be seen: {e}"), "`ip link` shows it"),
        Ok((name, mtu, segment)) => judged_mtu(&name, mtu, segment),
    }
}

/// Headers take 40 bytes with IPv4 and 60 with IPv6, options of TCP 12 more.
const HEADERS: u64 = 72;

fn judged_mtu(name: &str, mtu: u64, segment: u64) -> Finding {
    if name != "lo" && segment + HEADERS < mtu {
        return Finding::note(
            "mtu",
            format!("{name} has {mtu}, and the way to the server carries segments of {segment} bytes only"),
            "give both ends, and what is between them, the same MTU: `ip link set dev DEVICE mtu N`",
        );
    }
    if mtu < JUMBO {
        return Finding::note(
            "mtu",
            format!("{name} has {mtu}; large transfers are faster with {JUMBO}"),
            format!("where network and server have jumbo frames: `ip link set dev {name} mtu {JUMBO}`"),
        );
    }
    Finding::fine("mtu", format!("{name} has {mtu}"))
}

/// Something listens, and speaks something else.
fn unanswered(url: &Url, e: &Error) -> Finding {
    let (proto, other) = match url.proto.unwrap_or_default() {
        Proto::Rdma => ("RDMA", "tcp"),
        Proto::Tcp => ("TCP", "rdma"),
    };
    Finding::broken(
        "protocol",
        format!("no NFS over {proto} at port {}: {e}", url.port()),
        format!(
            "the port may be that of another service: name the server's port for {proto}, or try ?proto={other}; \
             the server's `ready` line has both"
        ),
    )
}

fn unmounted(e: &Error) -> Finding {
    match e {
        Error::UnknownExport { .. } => Finding::broken(
            "export",
            e.to_string(),
            "correct the name, or add the [[export]] to the server's configuration and `millrace reload` there",
        ),
        Error::Mount { status: mount::Status::Access, .. } => Finding::broken(
            "access",
            e.to_string(),
            "add this machine to the export's `clients` and `millrace reload` there; with \
             `require_privileged_port`, ask as root",
        ),
        _ => Finding::broken("mount", e.to_string(), "look at the server's log"),
    }
}

fn judged(rights: u32, attributes: &Fattr) -> Finding {
    let readable = rights & (access::READ | access::LOOKUP) != 0;
    let writable = rights & (access::MODIFY | access::EXTEND) != 0;
    let whose =
        format!("owner {}, group {}, mode {:o}", attributes.uid, attributes.gid, attributes.mode & 0o7777);
    match (readable, writable) {
        (true, true) => Finding::fine("access", "may read and write"),
        (true, false) => Finding::note(
            "access",
            format!("may read, not write ({whose})"),
            "if it is to be written: `read_only` and `squash` of the export, and `chown` or `chmod` on the server",
        ),
        (false, _) => Finding::broken(
            "access",
            format!("may not read ({whose})"),
            "`chown` or `chmod` on the server, or another `squash` of the export",
        ),
    }
}

/// A server does not tell its time, but what has just changed there cannot be from the future.
fn clock(attributes: &Fattr, now: SystemTime) -> Finding {
    let newest = attributes.ctime.max(attributes.mtime);
    let newest = UNIX_EPOCH + Duration::new(newest.seconds.into(), newest.nanoseconds);
    match newest.duration_since(now) {
        Ok(ahead) if ahead > SKEW => Finding::broken(
            "clocks",
            format!("the file was changed {} s in the future: the clocks differ", ahead.as_secs()),
            "`timedatectl set-ntp true` on both machines",
        ),
        _ => Finding::fine("clocks", "no sign that the server's differs"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn mtus_are_judged() {
        assert_eq!(judged_mtu("lo", 65536, 32741).state, State::Fine);
        assert_eq!(judged_mtu("eth0", 9000, 8948).state, State::Fine);
        let small = judged_mtu("eth0", 9000, 1448);
        assert!(small.state == State::Note && small.found.contains("1448"), "{small:?}");
        assert!(judged_mtu("eth0", 1500, 1448).found.contains("faster"));
    }
}
