//! Retransmission, limits, start and stop of a server.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_buffer::Arena;

use futures::future::{BoxFuture, join_all};
use millrace_nfs::v3::{
    self, AccessArgs, CommitArgs, CreateArgs, CreateHow, FsinfoArgs, GetattrArgs, LinkArgs, LookupArgs,
    MkdirArgs, MknodArgs, MknodWhat, Procedure, ReadArgs, RemoveArgs, RenameArgs, Res, RmdirArgs, Sattr,
    SetattrArgs, StableHow, Status, SymlinkArgs, WccData, WriteArgs,
};
use millrace_rdma::{ConnectParams, ConnectionError, Incoming, Listener, Provider, QueuePair};
use millrace_rdma_iwarp::Iwarp;
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::RequesterConfig;
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};
use millrace_server::{Config, Running, Server, ServerError};
use millrace_xdr::{Encode, Message};

use crate::common::{Caller, Proto, arena, at, config, rdma_at, run, tcp};

const GRACE: Duration = Duration::from_secs(5);

fn remove(c: &Caller, dir: v3::FileHandle, name: &str) -> Message {
    c.message(v3::PROGRAM, v3::VERSION, Procedure::Remove.number(), &RemoveArgs { object: at(dir, name) })
}

async fn status(c: &Caller, message: Message, xid: u32) -> Status {
    let reply = c.send(message, 0, Some(xid)).await.unwrap();
    reply.results().get::<Res<WccData, WccData>>().unwrap().status()
}

#[test]
fn a_retransmitted_call_is_answered_and_not_executed_again() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB"])).unwrap();
            let first = Caller::connect(&server, proto).await;
            let root = first.mount("/x").await.unwrap();
            first.create(root, "f").await;
            first.create(root, "g").await;
            assert_eq!(status(&first, remove(&first, root, "f"), 4711).await, Status::Ok);
            first.transport.close();
            // The client reconnects from another port and retransmits the call.
            let second = Caller::connect(&server, proto).await;
            assert_eq!(status(&second, remove(&second, root, "f"), 4711).await, Status::Ok);
            assert_eq!(server.stats().replayed, 1);
            // The same XID with other arguments, and the same arguments with another XID, are different
            // calls.
            assert_eq!(status(&second, remove(&second, root, "g"), 4711).await, Status::Ok);
            assert_eq!(status(&second, remove(&second, root, "f"), 4712).await, Status::NoEnt);
            assert_eq!(server.stats().replayed, 1);
            assert_eq!(server.stats().calls_of(Procedure::Remove), 3);
        });
    }
}

/// Sends a call of `procedure` twice with the same XID. Returns whether the second one was replayed.
async fn is_replayed(server: &Running, c: &Caller, procedure: Procedure, args: &impl Encode) -> bool {
    let before = server.stats();
    let xid = 5000 + procedure.number();
    let send = async || {
        let message = c.message(v3::PROGRAM, v3::VERSION, procedure.number(), args);
        c.send(message, 1024, Some(xid)).await.unwrap().results().u32().unwrap()
    };
    assert_eq!(send().await, Status::Ok as u32, "{procedure:?}");
    assert_eq!(send().await, Status::Ok as u32, "{procedure:?} again");
    let after = server.stats();
    let calls = after.calls_of(procedure) - before.calls_of(procedure);
    let replayed = after.replayed - before.replayed;
    assert_eq!(calls + replayed, 2, "{procedure:?}");
    replayed == 1
}

#[test]
fn non_idempotent_calls_are_replayed_and_others_are_executed_again() {
    run(async {
        let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/x").await.unwrap();
        let file = c.create(root, "file").await;
        let attributes = Sattr::default();
        let (s, c) = (&server, &c);
        let data = arena(1 << 20).copy_from(b"data").unwrap();
        let write = WriteArgs { file, offset: 0, count: 4, stable: StableHow::Unstable, data: data.into() };
        let set = SetattrArgs { object: file, attributes, guard: None };
        let create = CreateArgs { where_: at(root, "new"), how: CreateHow::Guarded(attributes) };
        let mkdir = MkdirArgs { where_: at(root, "dir"), attributes };
        let target = arena(1 << 20).copy_from(b"file").unwrap().into();
        let symlink = SymlinkArgs { where_: at(root, "link"), attributes, target };
        let mknod = MknodArgs { where_: at(root, "fifo"), what: MknodWhat::Fifo(attributes) };
        assert!(is_replayed(s, c, Procedure::Write, &write).await);
        assert!(is_replayed(s, c, Procedure::Setattr, &set).await);
        assert!(is_replayed(s, c, Procedure::Create, &create).await);
        assert!(is_replayed(s, c, Procedure::Mkdir, &mkdir).await);
        assert!(is_replayed(s, c, Procedure::Symlink, &symlink).await);
        assert!(is_replayed(s, c, Procedure::Mknod, &mknod).await);
        let link = LinkArgs { file, link: at(root, "second") };
        assert!(is_replayed(s, c, Procedure::Link, &link).await);
        let rename = RenameArgs { from: at(root, "second"), to: at(root, "third") };
        assert!(is_replayed(s, c, Procedure::Rename, &rename).await);
        assert!(is_replayed(s, c, Procedure::Remove, &RemoveArgs { object: at(root, "third") }).await);
        assert!(is_replayed(s, c, Procedure::Rmdir, &RmdirArgs { object: at(root, "dir") }).await);

        assert!(!is_replayed(s, c, Procedure::Getattr, &GetattrArgs { object: file }).await);
        assert!(!is_replayed(s, c, Procedure::Access, &AccessArgs { object: file, access: 1 }).await);
        assert!(!is_replayed(s, c, Procedure::Lookup, &LookupArgs { what: at(root, "file") }).await);
        assert!(!is_replayed(s, c, Procedure::Read, &ReadArgs { file, offset: 0, count: 4 }).await);
        assert!(!is_replayed(s, c, Procedure::Commit, &CommitArgs { file, offset: 0, count: 0 }).await);
        assert!(!is_replayed(s, c, Procedure::Fsinfo, &FsinfoArgs { root }).await);
    });
}

#[test]
fn the_crc_setting_requires_checksums_of_iwarp_clients() {
    for crc in [false, true] {
        run(async {
            let config = Config {
                crc,
                provider: ProviderChoice::Iwarp,
                listen_rdma: vec![(Ipv4Addr::LOCALHOST, 0).into()],
                ..config(&["/x=memory:8MiB"])
            };
            let server = Server::start(config).unwrap();
            let (rt, params) = (TokioRuntime::current(), RequesterConfig::default().connect_params());
            let addr = server.rdma_addr().unwrap();
            let qp = Iwarp::new().connect(rt, arena(8 << 20), addr, params).await.unwrap();
            assert_eq!(qp.info().crc, crc);
        });
    }
}

/// The kernel's socket table shows whether a keepalive timer runs (`02`).
#[cfg(target_os = "linux")]
#[test]
fn connections_of_dead_clients_are_closed_by_keepalive() {
    let server = Server::start(config(&["/x=memory:8MiB"])).unwrap();
    let addr = server.tcp_addr().unwrap();
    let client = TcpStream::connect(addr).unwrap();
    while server.stats().tcp.open == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let hex = |a: SocketAddr| format!("0100007F:{:04X}", a.port());
    let ends = format!(" {} {} ", hex(addr), hex(client.local_addr().unwrap()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let row = table.lines().find(|l| l.contains(&ends)).unwrap();
    assert!(row.split_whitespace().nth(5).unwrap().starts_with("02:"), "no keepalive timer: {row}");
}

#[test]
fn cached_replies_are_bounded() {
    run(async {
        let mut config = config(&["/x=memory:8MiB"]);
        config.limits.replies_kept = 32;
        let server = Server::start(config).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/x").await.unwrap();
        for i in 0..500 {
            let _ = c.create(root, &format!("f{i}")).await;
        }
        let kept = server.stats().replies_kept;
        assert!((1..=32).contains(&kept), "{kept}");
    });
}

#[test]
fn connections_beyond_the_limit_are_rejected() {
    run(async {
        let mut config = config(&["/x=memory:8MiB"]);
        config.limits.max_connections = Some(3);
        let server = Server::start(config).unwrap();
        let mut callers = Vec::new();
        for proto in [Proto::Tcp, Proto::Rdma, Proto::Tcp] {
            let c = Caller::connect(&server, proto).await;
            c.mount("/x").await.unwrap();
            callers.push(c);
        }
        let addr = server.tcp_addr().unwrap();
        let c = &callers[0];
        let refused = tcp(&c.rt, &c.arena, addr).await.unwrap();
        let late = Caller { transport: refused, ..c.with(c.cred.clone()) };
        assert!(late.reply(Procedure::Null, &(), 0).await.is_err());
        assert_eq!(server.stats().turned_away, 1);
        // A connection becomes available again.
        callers.pop().unwrap().transport.close();
        while server.stats().tcp.open > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let c = loop {
            let c = Caller::connect(&server, Proto::Tcp).await;
            if c.reply(Procedure::Null, &(), 0).await.is_ok() {
                break c;
            }
        };
        assert!(c.mount("/x").await.is_ok());
    });
}

#[test]
fn connections_beyond_the_limit_per_client_are_rejected() {
    run(async {
        let mut config = config(&["/x=memory:8MiB"]);
        config.limits.max_connections_per_client = Some(2);
        // A client has one address only if both transports use the same one.
        config.listen_tcp = vec![(rdma_at().0, 0).into()];
        let server = Server::start(config).unwrap();
        let callers =
            [Caller::connect(&server, Proto::Tcp).await, Caller::connect(&server, Proto::Rdma).await];
        for c in &callers {
            c.mount("/x").await.unwrap();
        }
        let late = Caller::connect(&server, Proto::Tcp).await;
        assert!(late.reply(Procedure::Null, &(), 0).await.is_err());
        assert_eq!(server.stats().turned_away, 1);
        // Another address of the same host is another client.
        let from = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        from.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        from.connect(&server.tcp_addr().unwrap().into()).unwrap();
        while server.stats().tcp.open < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.stats().turned_away, 1);
    });
}

#[test]
fn a_client_that_stalls_within_a_call_is_disconnected() {
    let mut config = config(&["/x=memory:8MiB"]);
    config.limits.stall_timeout = 1;
    let server = Server::start(config).unwrap();
    let mut client = TcpStream::connect(server.tcp_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client.write_all(&[0x80, 0, 0x10, 0, 1, 2, 3, 4]).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
}

#[test]
fn a_stopped_server_frees_its_addresses() {
    run(async {
        let server = Server::start(config(&["/x=memory:8MiB"])).unwrap();
        let addrs = [server.tcp_addr().unwrap(), server.rdma_addr().unwrap()];
        let c = Caller::connect(&server, Proto::Tcp).await;
        c.mount("/x").await.unwrap();
        server.stop(GRACE).await;
        for addr in addrs {
            let again = Config { listen_tcp: vec![addr], listen_rdma: vec![], ..config(&["/x=memory:8MiB"]) };
            Server::start(again).unwrap().stop_blocking(GRACE);
        }
        assert!(c.reply(Procedure::Null, &(), 0).await.is_err());
    });
}

/// iWARP with listeners that close slowly, as those of an adapter do.
struct SlowToClose(Arc<AtomicBool>);

struct SlowListener(Box<dyn Listener>, Arc<AtomicBool>);

impl Provider for SlowToClose {
    fn name(&self) -> &'static str {
        "slow to close"
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Iwarp::default().connect(rt, arena, addr, params)
    }

    fn listen(&self, rt: RuntimeRef, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(SlowListener(Iwarp::default().listen(rt, addr)?, Arc::clone(&self.0))))
    }
}

impl Listener for SlowListener {
    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        self.0.accept()
    }
}

impl Drop for SlowListener {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(100));
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn stop_waits_for_the_listeners_to_close() {
    let closed = Arc::new(AtomicBool::new(false));
    let provider = Arc::new(SlowToClose(Arc::clone(&closed)));
    // There is no other listener, for whose end the stop might wait as long.
    let config = Config { listen_tcp: vec![], ..config(&["/x=memory:8MiB"]) };
    Server::start_over(config, provider).unwrap().stop_blocking(GRACE);
    assert!(closed.load(Ordering::SeqCst));
}

#[test]
fn every_executed_call_is_answered_before_the_stop() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:64MiB"])).unwrap();
            let c = Caller::connect(&server, proto).await;
            let root = c.mount("/x").await.unwrap();
            let file = c.create(root, "f").await;
            let data: millrace_xdr::Views = c.arena.copy_from(&vec![7; 256 << 10]).unwrap().into();
            let calls: Vec<_> = (0..32)
                .map(|i| WriteArgs {
                    file,
                    offset: i << 18,
                    count: 256 << 10,
                    stable: StableHow::FileSync,
                    data: data.clone(),
                })
                .collect();
            let calls = join_all(calls.iter().map(|args| c.reply(Procedure::Write, args, 0)));
            let stop = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                server.stop(GRACE).await
            };
            let (replies, stats) = futures::join!(calls, stop);
            let answered = replies.iter().filter(|r| r.is_ok()).count() as u64;
            assert_eq!(answered, stats.calls_of(Procedure::Write), "{proto:?}");
            assert_eq!(stats.tcp.open + stats.rdma.open, 0);
        });
    }
}

#[test]
fn an_address_in_use_is_an_error_with_the_address() {
    let other = Server::start(config(&["/x=memory:8MiB"])).unwrap();
    let [tcp, rdma] = [other.tcp_addr().unwrap(), other.rdma_addr().unwrap()];
    for (tcp, rdma, addr) in [(vec![tcp], vec![], tcp), (vec![], vec![rdma], rdma)] {
        let config = Config { listen_tcp: tcp, listen_rdma: rdma, ..config(&["/x=memory:8MiB"]) };
        let e = Server::start(config).err().unwrap();
        assert!(matches!(e, ServerError::Listen { .. }) && e.to_string().contains(&addr.to_string()), "{e}");
    }
}

#[test]
fn a_name_cannot_be_exported_twice() {
    let e = Server::start(config(&["/x=memory:8MiB", "/x=memory:9MiB"])).err().unwrap();
    assert!(e.to_string().contains("/x"), "{e}");
}

#[test]
fn dropping_the_handle_stops_the_server() {
    let server = Server::start(config(&["/x=memory:8MiB"])).unwrap();
    let addr = server.tcp_addr().unwrap();
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn handles_of_a_local_export_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (files, state) = (dir.path().join("files"), dir.path().join("state"));
    std::fs::create_dir(&files).unwrap();
    std::fs::create_dir(&state).unwrap();
    let export = format!("/x=local:{},squash=none", files.display());
    for state_dir in [None, Some(state)] {
        let config = || Config { state_dir: state_dir.clone(), ..config(&[&export]) };
        run(async {
            let server = Server::start(config()).unwrap();
            let c = Caller::connect(&server, Proto::Rdma).await;
            let root = c.mount("/x").await.unwrap();
            let f = c.create(root, "f").await;
            let w = c.write(f, 0, b"before", StableHow::FileSync).await.unwrap();
            server.stop(GRACE).await;
            std::fs::rename(files.join("f"), files.join("moved")).unwrap();
            let server = Server::start(config()).unwrap();
            let c = Caller::connect(&server, Proto::Tcp).await;
            assert_eq!(c.read(f, 0, 100).await.unwrap().0, b"before");
            let again = c.write(f, 6, b" after", StableHow::FileSync).await.unwrap();
            assert_ne!(again.verifier, w.verifier, "unstable data may have been lost");
            assert_eq!(std::fs::read(files.join("moved")).unwrap(), b"before after");
            std::fs::remove_file(files.join("moved")).unwrap();
            server.stop(GRACE).await;
        });
    }
}

#[test]
fn a_missing_directory_is_an_error_with_the_path() {
    let e = Server::start(config(&["/x=local:/nonexistent/files"])).err().unwrap().to_string();
    assert!(e.contains("/x") && e.contains("/nonexistent/files"), "{e}");
}
