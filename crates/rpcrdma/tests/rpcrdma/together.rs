//! Concurrent calls of several callers are sent together.

use std::{future::poll_fn, sync::Arc};

use millrace_oncrpc::Transport;
use millrace_rdma::ConnectParams;
use millrace_rpcrdma::{Body, Header, Lists, RequesterConfig};

use crate::support::{
    raw::Raw,
    request,
    scene::{Scene, TINY, rpc_reply},
};

const CALLS: usize = 8;

/// Number of messages that are available when the first one is.
async fn first_messages(raw: &mut Raw) -> usize {
    let mut out = Vec::new();
    poll_fn(|cx| raw.qp.poll(cx, &mut out)).await.unwrap();
    out.len()
}

// A multi-threaded executor runs a task that another task wakes before the waiting tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_of_ready_tasks_are_sent_together() {
    let mut scene = Scene::over(RequesterConfig::default(), &ConnectParams::default());
    let first = scene.call(TINY);
    let xid = scene.receive().await.xid;
    let answer = Header::new(xid, 32, Body::Msg(Lists::default()));
    scene.raw.send(&Raw::message(&answer, &rpc_reply(xid, &[])));
    first.await.unwrap().unwrap();
    // While a call is in flight, the connection's task sends the others.
    let before = scene.call(TINY);
    scene.receive().await;
    let Scene { client, mut raw, arena } = scene;
    let responder = tokio::spawn(async move { first_messages(&mut raw).await });
    tokio::spawn(async move {
        for _ in 0..CALLS {
            let (client, request) = (Arc::clone(&client), request(&arena, TINY));
            tokio::spawn(async move { client.submit(request).await });
        }
    });
    assert_eq!(responder.await.unwrap(), CALLS);
    drop(before);
}
