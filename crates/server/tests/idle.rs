//! Connections on which no call comes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/gate.rs"]
#[allow(unreachable_pub, clippy::expect_used)]
mod gate;

use std::{sync::Arc, time::Duration};

use common::{Caller, Proto, config, run};
use gate::Gate;
use millrace_nfs::v3::{GetattrArgs, Procedure};
use millrace_oncrpc::RpcError;
use millrace_server::{Running, Server, open};
use tokio::sync::Semaphore;

/// A server that closes connections after a second or two, and what lets its GETATTRs end.
fn start(proto: Proto) -> (Running, Arc<Semaphore>) {
    let mut config = proto.adapt(config(&["/x=memory:8MiB"]));
    config.limits.idle_timeout = 1;
    let (opened, gate_open) = std::sync::mpsc::channel();
    let server = Server::start_with(config, move |export, with| {
        let gate = Gate::new(open(export, with)?);
        opened.send(Arc::clone(&gate.open)).unwrap();
        Ok(Arc::new(gate))
    });
    (server.unwrap(), gate_open.recv().unwrap())
}

fn closed_idle(server: &Running, proto: Proto) -> u64 {
    let stats = server.stats();
    if proto == Proto::Tcp { stats.tcp.idle } else { stats.rdma.idle }
}

/// Makes a connection that has had a call, and waits until the server has closed it.
async fn come_and_be_silent(server: &Running, proto: Proto) {
    let before = closed_idle(server, proto);
    let silent = Caller::connect(server, proto).await;
    silent.mount("/x").await.unwrap();
    while closed_idle(server, proto) == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(closed_idle(server, proto), before + 1);
    // The client notices by itself, before it has a call.
    while silent.transport.failure().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = silent.reply(Procedure::Null, &(), 0).await;
    assert!(matches!(refused, Err(RpcError::Disconnected { .. })), "{refused:?}");
}

#[test]
fn a_silent_connection_is_closed_and_one_whose_call_waits_is_not() {
    for proto in Proto::ALL {
        run(async {
            let (server, open) = start(proto);
            let busy = Caller::connect(&server, proto).await;
            let args = GetattrArgs { object: busy.mount("/x").await.unwrap() };
            let call = busy.reply(Procedure::Getattr, &args, 0);
            // In the time of two of others it would have been closed too.
            let meanwhile = async {
                come_and_be_silent(&server, proto).await;
                come_and_be_silent(&server, proto).await;
                open.add_permits(1);
            };
            let (answer, ()) = futures::join!(call, meanwhile);
            assert!(answer.is_ok(), "{proto:?}: {answer:?}");
            assert_eq!(closed_idle(&server, proto), 2, "{proto:?}");
        });
    }
}
