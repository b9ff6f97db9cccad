//! The rpcbind client with a small rpcbind.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_admission::Account;
use millrace_oncrpc::{
    CallContext, Dispatcher, Fault, MaybeReady, Outcome, Program, RpcError, Service,
    rpcbind::{Binding, NetId, Rpcbind, parse_universal_address, universal_address},
    tcp::TcpServer,
};
use millrace_runtime::{RuntimeRef, memory_stream, tokio_rt::TokioRuntime};
use millrace_xdr::Encoder;

use crate::common::{arena, peer, words};

/// (program, version, netid or protocol) to address or port.
type Table = Arc<Mutex<HashMap<(u32, u32, String), String>>>;

struct FakeRpcbind {
    versions: RangeInclusive<u32>,
    table: Table,
}

impl FakeRpcbind {
    fn answer(&self, call: &CallContext, reply: &mut Encoder) -> Result<(), millrace_xdr::XdrError> {
        let mut d = call.args();
        let mut table = self.table.lock().unwrap();
        let (prog, vers) = (d.u32()?, d.u32()?);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (net, addr) = if call.header.vers == 2 {
            let (protocol, port) = (d.u32()?, d.u32()?);
            (if protocol == 6 { "tcp".into() } else { protocol.to_string() }, port.to_string())
        } else {
            let both = (text(d.opaque(100)?), text(d.opaque(100)?));
            d.opaque(100)?;
            both
        };
        let key = (prog, vers, net);
        match call.header.proc {
            1 => reply.put_bool(!table.contains_key(&key) && table.insert(key, addr).is_none()),
            2 => reply.put_bool(table.remove(&key).is_some()),
            _ if call.header.vers == 2 => reply.put_u32(table.get(&key).map_or(0, |a| a.parse().unwrap())),
            _ => reply.put_opaque(table.get(&key).map_or("", |a| a).as_bytes()),
        }
        Ok(())
    }
}

impl Program for FakeRpcbind {
    fn number(&self) -> u32 {
        100_000
    }
    fn versions(&self) -> RangeInclusive<u32> {
        self.versions.clone()
    }
    fn call(&self, call: CallContext, mut reply: Encoder) -> MaybeReady<'static, Outcome> {
        let done = self.answer(&call, &mut reply);
        MaybeReady::Ready(done.map(|()| reply.into()).map_err(|_| Fault::GarbageArgs))
    }
}

fn connect(rt: &RuntimeRef, versions: RangeInclusive<u32>, table: &Table) -> Rpcbind {
    let (ours, theirs) = memory_stream(10_000, 10_000);
    let program = FakeRpcbind { versions, table: Arc::clone(table) };
    let service: Arc<dyn Service> = Arc::new(Dispatcher::new([Arc::new(program) as Arc<dyn Program>]));
    let server = TcpServer {
        service,
        rt: Arc::clone(rt),
        arena: arena(),
        config: Default::default(),
        stats: Arc::default(),
    };
    let served = server.serve(Box::new(theirs), peer(), Account::unlimited(), std::future::pending());
    rt.spawn("rpcbind", Box::pin(served));
    Rpcbind::new(Box::new(ours), rt, &arena(), Duration::from_secs(5)).unwrap()
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(RuntimeRef, Table) -> F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async { test(TokioRuntime::current(), Table::default()).await });
}

fn binding(netid: NetId, addr: &str) -> Binding {
    Binding { prog: 100_003, vers: 3, netid, addr: addr.parse().unwrap() }
}

#[test]
fn universal_addresses_round_trip() {
    for (addr, text) in [
        ("0.0.0.0:2049", "0.0.0.0.8.1"),
        ("127.0.0.1:20049", "127.0.0.1.78.81"),
        ("[::]:2049", "::.8.1"),
        ("[fe80::1]:65535", "fe80::1.255.255"),
    ] {
        let addr = addr.parse().unwrap();
        assert_eq!(universal_address(&addr), text);
        assert_eq!(parse_universal_address(text), Some(addr));
    }
    for bad in [
        "",
        ".",
        "..",
        "1.2.3.4",
        "1.2.3.4.8",
        "1.2.3.4.256.1",
        "1.2.3.4.8.-1",
        "::",
        "host.8.1",
        "1.2.3.4.8.1.1",
    ] {
        assert_eq!(parse_universal_address(bad), None, "{bad}");
    }
}

#[test]
fn a_binding_is_set_found_and_unset_by_version_4() {
    run(async |rt, table| {
        let c = connect(&rt, 2..=4, &table);
        let rdma = binding(NetId::Rdma, "0.0.0.0:20049");
        let tcp6 = binding(NetId::Tcp6, "[::]:2049");
        assert_eq!(c.get_addr(100_003, 3, NetId::Rdma).await, Ok(None));
        assert_eq!(c.register(&[rdma, tcp6]).await, 2);
        assert_eq!(c.get_addr(100_003, 3, NetId::Rdma).await, Ok(Some(rdma.addr)));
        assert_eq!(c.get_addr(100_003, 3, NetId::Tcp6).await, Ok(Some(tcp6.addr)));
        assert_eq!(c.set(&rdma).await, Ok(false), "the binding exists");
        assert_eq!(c.register(&[rdma]).await, 1, "a stale binding is replaced");
        c.unregister(&[rdma, tcp6]).await;
        assert!(table.lock().unwrap().is_empty());
    });
}

#[test]
fn a_portmapper_of_version_2_supports_tcp_only() {
    run(async |rt, table| {
        let c = connect(&rt, 2..=2, &table);
        let (tcp, rdma) = (binding(NetId::Tcp, "0.0.0.0:2049"), binding(NetId::Rdma, "0.0.0.0:20049"));
        assert_eq!(c.get_port(100_003, 3, NetId::Tcp).await, Ok(None));
        assert_eq!(c.register(&[tcp, rdma]).await, 1);
        assert_eq!(c.get_port(100_003, 3, NetId::Tcp).await, Ok(Some(2049)));
        assert!(matches!(c.get_port(100_003, 3, NetId::Rdma).await, Err(RpcError::Unsupported(_))));
        assert!(matches!(c.get_addr(100_003, 3, NetId::Rdma).await, Err(RpcError::Accept(_))));
        c.unregister(&[tcp, rdma]).await;
        assert!(table.lock().unwrap().is_empty());
    });
}

#[test]
fn invalid_replies_of_rpcbind_are_errors() {
    run(async |rt, table| {
        let c = connect(&rt, 2..=4, &table);
        for (net, addr) in [("tcp", "65536"), ("rdma", "nonsense"), ("tcp6", &"1".repeat(65))] {
            table.lock().unwrap().insert((100_003, 3, net.into()), addr.into());
        }
        assert!(matches!(c.get_port(100_003, 3, NetId::Tcp).await, Err(RpcError::BadReply { .. })));
        assert!(matches!(c.get_addr(100_003, 3, NetId::Rdma).await, Err(RpcError::BadReply { .. })));
        assert!(matches!(c.get_addr(100_003, 3, NetId::Tcp6).await, Err(RpcError::BadReply { .. })));
    });
}

#[test]
fn arguments_are_encoded_byte_for_byte() {
    run(async |rt, _| {
        let (ours, mut theirs) = memory_stream(10_000, 10_000);
        let c = Rpcbind::new(Box::new(ours), &rt, &arena(), Duration::from_millis(20)).unwrap();
        assert!(c.get_port(100_003, 3, NetId::Tcp).await.is_err());
        assert!(c.set(&binding(NetId::Rdma, "0.0.0.0:20049")).await.is_err());
        let mut bytes = [0; 200];
        let n = std::future::poll_fn(|cx| {
            millrace_runtime::ByteStream::poll_read(
                &mut theirs,
                cx,
                &mut [std::io::IoSliceMut::new(&mut bytes)],
            )
        });
        let n = n.await.unwrap();
        let auth_none = [0, 0, 0, 0];
        assert_eq!(bytes[8..28], words(&[0, 2, 100_000, 2, 3]));
        assert_eq!(bytes[28..44], words(&auth_none));
        assert_eq!(bytes[44..60], words(&[100_003, 3, 6, 0]));
        assert_eq!(bytes[68..88], words(&[0, 2, 100_000, 4, 1]));
        let mut args = words(&[100_003, 3, 4]);
        args.extend(b"rdma\0\0\0\x0d0.0.0.0.78.81\0\0\0\0\0\0\0");
        assert_eq!(bytes[104..n], args);
    });
}
