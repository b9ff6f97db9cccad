//! Connections without calls.

use std::{sync::Arc, time::Duration};

use millrace_nfs::v3::{GetattrArgs, Procedure};
use millrace_oncrpc::RpcError;
use millrace_server::{Running, Server, open};
use tokio::sync::Semaphore;

use crate::common::{Caller, Proto, config, run};
use crate::gate::Gate;

/// A server with an idle timeout of one second, and the semaphore that lets its GETATTRs complete.
fn start() -> (Running, Arc<Semaphore>) {
    let mut config = config(&["/x=memory:8MiB"]);
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

/// Makes a call on a new connection, and waits until the server has closed the connection.
async fn connect_and_wait_for_close(server: &Running, proto: Proto) {
    let before = closed_idle(server, proto);
    let idle = Caller::connect(server, proto).await;
    idle.mount("/x").await.unwrap();
    while closed_idle(server, proto) == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(closed_idle(server, proto), before + 1);
    // The client detects the end without a call.
    while idle.transport.failure().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = idle.reply(Procedure::Null, &(), 0).await;
    assert!(matches!(refused, Err(RpcError::Disconnected { .. })), "{refused:?}");
}

#[test]
fn idle_connections_are_closed_and_those_with_calls_in_progress_are_not() {
    for proto in Proto::ALL {
        run(async {
            let (server, open) = start();
            let busy = Caller::connect(&server, proto).await;
            let args = GetattrArgs { object: busy.mount("/x").await.unwrap() };
            let call = busy.reply(Procedure::Getattr, &args, 0);
            // This connection would also have been closed in the time of two others.
            let meanwhile = async {
                connect_and_wait_for_close(&server, proto).await;
                connect_and_wait_for_close(&server, proto).await;
                open.add_permits(1);
            };
            let (answer, ()) = futures::join!(call, meanwhile);
            assert!(answer.is_ok(), "{proto:?}: {answer:?}");
            assert_eq!(closed_idle(&server, proto), 2, "{proto:?}");
        });
    }
}
