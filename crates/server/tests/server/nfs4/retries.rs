//! Exactly one execution of each request, also after the loss of its connection.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use millrace_nfs::v4::*;
use millrace_server::{Server, open as open_export};

use super::compound::*;
use crate::{
    common::{Caller, Proto, config, run},
    gate::Gate,
};

const MKDIR: fn(&str) -> Op = |name| {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&Operation::Create);
        e.put(&CreateArgs {
            what: CreateType::Directory,
            name: Opaque(name.as_bytes()),
            attributes: Attributes::default(),
        });
    })
};

#[test]
fn a_retry_on_another_connection_gets_the_kept_reply() {
    for (first, second) in [(Proto::Tcp, Proto::Rdma), (Proto::Rdma, Proto::Tcp), (Proto::Tcp, Proto::Tcp)] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
            let a = Caller::connect(&server, first).await;
            let s = Session::new(&a, b"client").await;
            let export = s.path(&a, "/x").await.unwrap();
            let sequenced = s.sequence(true);
            let request = || [sequence(sequenced), putfh(&export), MKDIR("dir"), getfh()];
            let executed = send(&a, 2, &request()).await;
            assert_eq!(executed.status, Status::Ok);
            drop(a);
            let b = Caller::connect(&server, second).await;
            let retried = send(&b, 2, &request()).await;
            assert_eq!(retried.bytes(), executed.bytes(), "{first:?} {second:?}");
            let other = [sequence(sequenced), putfh(&export), MKDIR("other"), getfh()];
            assert_eq!(send(&b, 2, &other).await.next(), (53, Status::SeqFalseRetry));
            assert_eq!(s.path(&b, "/x/other").await, Err(Status::NoEnt));
            // The next request of the slot is a new one.
            assert_eq!(s.status(&b, [putfh(&export), MKDIR("dir")]).await, Status::Exist);
            assert_eq!(server.stop(Duration::ZERO).await.replayed, 1);
        });
    }
}

#[test]
fn a_retry_of_a_request_whose_reply_is_not_kept_is_not_executed() {
    run(async {
        let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        let export = s.path(&c, "/x").await.unwrap();
        let sequenced = s.sequence(false);
        let request = || [sequence(sequenced), putfh(&export), MKDIR("dir")];
        assert_eq!(send(&c, 2, &request()).await.status, Status::Ok);
        let retried = send(&c, 2, &request()).await;
        let _: SequenceOk = retried.take(Operation::Sequence);
        assert_eq!(retried.next(), (Operation::Putfh.number(), Status::RetryUncachedRep));
        let alone = s.sequence(false);
        let first = send(&c, 2, &[sequence(alone)]).await.bytes();
        assert_eq!(send(&c, 2, &[sequence(alone)]).await.bytes(), first);
    });
}

/// Sends a call on a new connection, which is reset when it is dropped.
fn send_bytes(to: SocketAddr, call: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    let mark = 1 << 31 | call.len() as u32;
    stream.write_all(&[&mark.to_be_bytes(), call].concat()).unwrap();
    stream
}

#[test]
fn a_request_continues_without_its_connection() {
    run(async {
        let (opened, gate) = std::sync::mpsc::channel();
        let server = Server::start_with(config(&["/x=memory:8MiB,squash=none"]), move |export, with| {
            let gate = Gate::new(open_export(export, with)?);
            opened.send((Arc::clone(&gate.open), Arc::clone(&gate.started))).unwrap();
            Ok(Arc::new(gate))
        });
        let (server, (gate, started)) = (server.unwrap(), gate.recv().unwrap());
        let a = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&a, b"client").await;
        let results = s.send(&a, [putrootfh(), lookup("x"), getfh()]).await;
        results.skip(&[Operation::Putrootfh, Operation::Lookup]);
        let export = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
        let sequenced = s.sequence(true);
        let wait = [Attribute::FileType];
        let request = || [sequence(sequenced), putfh(&export), getattr(&wait), MKDIR("dir")];
        let ops = request();
        let message = a.message(PROGRAM, VERSION, 1, &Compound { tag: b"tag", minor_version: 2, ops: &ops });
        let connection = send_bytes(server.tcp_addr().unwrap(), &message.head.to_vec());
        started.acquire().await.unwrap().forget();
        let b = Caller::connect(&server, Proto::Tcp).await;
        assert_eq!(send(&b, 2, &request()).await.next(), (53, Status::Delay), "it is in progress");
        drop(connection);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(send(&b, 2, &request()).await.next(), (53, Status::Delay), "it is still in progress");
        gate.add_permits(100);
        let kept = loop {
            let results = send(&b, 2, &request()).await;
            match results.status {
                Status::Delay => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => break results,
            }
        };
        assert_eq!((kept.status, kept.count), (Status::Ok, 4));
        assert_eq!(s.status(&b, [putfh(&export), MKDIR("dir")]).await, Status::Exist);
        server.stop(Duration::ZERO).await;
    });
}
