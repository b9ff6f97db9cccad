//! Calls in progress at a file system when the server is stopped.

use std::{sync::Arc, time::Duration};

use millrace_nfs::v3::{GetattrArgs, Procedure};
use millrace_server::{Running, Server, open};
use tokio::sync::Semaphore;

use crate::common::{Caller, Proto, config, run};
use crate::gate::Gate;

struct Gated {
    server: Running,
    open: Arc<Semaphore>,
    started: Arc<Semaphore>,
}

fn start() -> Gated {
    let (opened, gate) = std::sync::mpsc::channel();
    let server = Server::start_with(config(&["/x=memory:8MiB"]), move |export, with| {
        let gate = Gate::new(open(export, with)?);
        opened.send((Arc::clone(&gate.open), Arc::clone(&gate.started))).unwrap();
        Ok(Arc::new(gate))
    });
    let (server, (open, started)) = (server.unwrap(), gate.recv().unwrap());
    Gated { server, open, started }
}

#[test]
fn a_call_in_progress_is_answered_within_the_grace_period() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let Gated { server, open, started } = start();
            let c = Caller::connect(&server, proto).await;
            let root = c.mount("/x").await.unwrap();
            let args = GetattrArgs { object: root };
            let call = c.reply(Procedure::Getattr, &args, 0);
            let stop = async {
                started.acquire().await.unwrap().forget();
                let stopping = server.stop(Duration::from_secs(30));
                let release = async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    open.add_permits(1);
                };
                futures::join!(stopping, release).0
            };
            let (answer, stats) = futures::join!(call, stop);
            assert!(answer.is_ok(), "{proto:?}: {answer:?}");
            assert_eq!(stats.calls_of(Procedure::Getattr), 1);
        });
    }
}

#[test]
fn an_unending_call_does_not_delay_the_stop() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let Gated { server, started, .. } = start();
            let c = Caller::connect(&server, proto).await;
            let root = c.mount("/x").await.unwrap();
            let args = GetattrArgs { object: root };
            let call = c.reply(Procedure::Getattr, &args, 0);
            let stop = async {
                started.acquire().await.unwrap().forget();
                server.stop(Duration::from_millis(10)).await
            };
            // The test's time limit detects a server that waits.
            let (answer, _) = futures::join!(call, stop);
            assert!(answer.is_err(), "{proto:?}");
        });
    }
}
