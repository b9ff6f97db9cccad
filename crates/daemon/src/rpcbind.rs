//! Registration of NFS and MOUNT with the rpcbind of this host (RFC 1833).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_oncrpc::rpcbind::{Binding, NetId, PORT, Rpcbind};
use millrace_runtime::{RuntimeRef, tokio_rt::TcpByteStream};
/// Time limit for connecting to rpcbind and for each call.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum bytes of memory for messages to and from rpcbind.
const MEMORY: usize = millrace_buffer::SPAN_BYTES;

/// The bindings for these addresses: the first address of each kind, because rpcbind has one entry per
/// program and network id. That of all IPv6 addresses is also one for IPv4, unless there is another.
pub(crate) fn bindings(tcp: &[SocketAddr], rdma: &[SocketAddr]) -> Vec<Binding> {
    let mut out: Vec<Binding> = Vec::new();
    let both = |addr: &&SocketAddr| addr.is_ipv6() && addr.ip().is_unspecified();
    let ipv4 = |addr: &SocketAddr| SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port()));
    let with_ipv4 =
        |list: &[SocketAddr]| [list, &list.iter().filter(both).map(ipv4).collect::<Vec<_>>()].concat();
    let tcp = with_ipv4(tcp).into_iter().map(|addr| (NetId::tcp(&addr), addr));
    let named = tcp.chain(with_ipv4(rdma).into_iter().map(|addr| (NetId::rdma(&addr), addr)));
    for (netid, addr) in named {
        let programs = [
            (millrace_nfs::v3::PROGRAM, millrace_nfs::v3::VERSION),
            (millrace_nfs::mount::PROGRAM, millrace_nfs::mount::VERSION),
        ];
        for (prog, vers) in programs {
            if !out.iter().any(|b| b.prog == prog && b.netid == netid) {
                out.push(Binding { prog, vers, netid, addr });
            }
        }
    }
    out
}

async fn rpcbind(rt: &RuntimeRef) -> Result<Rpcbind, String> {
    let addr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
    let stream = millrace_runtime::timeout(&**rt, LIMIT, TcpByteStream::connect(addr)).await;
    let stream = stream.ok_or("no answer")?.map_err(|e| e.to_string())?;
    let arena = Arena::new(ArenaConfig { limit: MEMORY, huge_pages: false });
    Rpcbind::new(Box::new(stream), rt, &arena, LIMIT).map_err(|e| e.to_string())
}

/// Registers `bindings`, and removes them when `stopping` completes.
pub(crate) async fn register(rt: RuntimeRef, bindings: Vec<Binding>, stopping: impl Future<Output = ()>) {
    match rpcbind(&rt).await {
        Ok(r) => {
            let registered = r.register(&bindings).await;
            tracing::info!(registered, of = bindings.len(), "registered with rpcbind");
        }
        Err(e) => {
            return tracing::warn!(
                "not registered with rpcbind ({e}); clients must state the ports (mount -o port=,mountport=)"
            );
        }
    }
    stopping.await;
    // A new connection, because rpcbind closes idle ones.
    if let Ok(r) = rpcbind(&rt).await {
        r.unregister(&bindings).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_are_registered_once_per_network_id() {
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let all = bindings(
            &[addr("0.0.0.0:2049"), addr("10.0.0.1:99"), addr("[::]:2049")],
            &[addr("0.0.0.0:20049")],
        );
        let registered: Vec<_> = all.iter().map(|b| (b.prog, b.netid.name(), b.addr.port())).collect();
        let expected = [
            (100_003, "tcp", 2049),
            (100_005, "tcp", 2049),
            (100_003, "tcp6", 2049),
            (100_005, "tcp6", 2049),
            (100_003, "rdma", 20049),
            (100_005, "rdma", 20049),
        ];
        assert_eq!(registered, expected);
        let both = bindings(&[addr("[::]:2049")], &[]);
        let registered: Vec<_> = both.iter().map(|b| (b.prog, b.netid.name(), b.addr.to_string())).collect();
        let expected = |program, netid, at: &str| (program, netid, at.to_owned());
        assert!(registered.contains(&expected(100_003, "tcp", "0.0.0.0:2049")), "{registered:?}");
        assert!(registered.contains(&expected(100_003, "tcp6", "[::]:2049")), "{registered:?}");
    }
}
