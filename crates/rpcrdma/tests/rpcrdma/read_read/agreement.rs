//! Negotiation of the design: both ends must state it.

use std::sync::Arc;

use millrace_admission::Account;
use millrace_oncrpc::RpcError;
use millrace_rdma::{
    ConnectionError,
    registration::{Registration, Settings, Strategy},
};
use millrace_rpcrdma::{
    Body, Design, Requester, RequesterConfig, Responder, ResponderConfig, TransportError,
};

use super::params;
use crate::support::{
    self, Ask, Echo, Link, arena, connected, echo, fabric, finish, message, peer, queue_pairs, raw, raw::Raw,
    rt, serve, settled,
};

#[tokio::test]
async fn a_requester_rejects_a_responder_of_another_design_with_a_message() {
    for (ours, theirs, says) in [
        (
            Design::ReadWrite,
            Design::ReadRead,
            "use another one, or, for an experiment, connect with millrace-lab",
        ),
        (Design::ReadRead, Design::ReadWrite, "does not offer the Read-Read design"),
    ] {
        for link in Link::fabric_and_providers() {
            let a = arena();
            let c = RequesterConfig { design: ours, ..Default::default() };
            let s = ResponderConfig { design: theirs, ..Default::default() };
            let (qc, qs) =
                queue_pairs(link, &a, c.connect_params(), s.connect_params(Default::default())).await;
            let server = serve(qs, &a, s);
            let error = Requester::from_queue_pair(qc, rt(), a.clone(), c).err().unwrap();
            assert!(matches!(error, ConnectionError::Incompatible(_)), "{error}");
            assert!(error.to_string().contains(says), "{error}");
            server.task.await.unwrap().unwrap();
            drop(server.service);
            settled(&a).await;
        }
    }
}

#[tokio::test]
async fn the_read_read_design_requires_private_data_and_read_depth() {
    for (private, ird, says) in
        [(false, 8, "does not offer"), (true, 0, "serves no RDMA Reads"), (true, 8, "")]
    {
        let a = arena();
        let config = RequesterConfig { design: Design::ReadRead, ..Default::default() };
        let theirs = if private { params(Design::ReadRead) } else { millrace_rdma::ConnectParams::default() };
        let (c, _s) =
            fabric::pair(1, &config.connect_params(), &millrace_rdma::ConnectParams { ird, ..theirs });
        match Requester::from_queue_pair(Box::new(c), rt(), a.clone(), config) {
            Err(e) => assert!(!says.is_empty() && e.to_string().contains(says), "{e}"),
            Ok(_) => assert_eq!(says, ""),
        }
    }
}

/// A Linux client ignores the server's design: its calls return errors and do not hang.
#[tokio::test]
async fn calls_of_a_requester_of_another_design_get_err_chunk_and_are_not_executed() {
    for private in [true, false] {
        let a = arena();
        let config = ResponderConfig { design: Design::ReadRead, ..Default::default() };
        let ours = if private { params(Design::ReadWrite) } else { millrace_rdma::ConnectParams::default() };
        let accept = config.connect_params(Default::default());
        let (c, s) = queue_pairs(Link::Fabric, &a, ours, accept).await;
        let server = serve(s, &a, config);
        let mut raw = Raw::new(c, &a);
        let zeros = a.copy_from(&[0; 4]).unwrap();
        for xid in 1..4 {
            let call = message(&a, xid, Ask::default()).gather(&zeros).to_vec();
            raw.send(&Raw::message(&raw::msg(xid, Default::default()), &call));
            let (h, _) = raw.receive_header().await;
            assert_eq!((h.xid, h.body), (xid, Body::Error(TransportError::Chunk)));
        }
        assert_eq!(server.service.executed.load(std::sync::atomic::Ordering::SeqCst), 0);
        drop((raw, zeros));
        drop(server.task.await.unwrap());
        drop(server.service);
        settled(&a).await;
    }
}

#[tokio::test]
async fn a_result_above_the_exposure_limit_fails_only_its_call() {
    let a = arena();
    let c = RequesterConfig { design: Design::ReadRead, ..Default::default() };
    let s = ResponderConfig { design: Design::ReadRead, max_transfer: 1 << 20, ..Default::default() };
    let s = ResponderConfig { exposure: millrace_rpcrdma::ExposureLimits { bytes: 0, ..s.exposure }, ..s };
    let (client, server) = connected(Link::Fabric, &a, c, s).await;
    // The limit of 0 bytes is raised to one reply. It then also limits the credits, to one.
    echo(&client, &a, Ask { receive: 1 << 20, ..Ask::default() }).await;
    assert_eq!(client.stats().credits_granted, 1);
    let client: Arc<Requester> = client;
    let error = support::call(&client, &a, Ask { receive: 2 << 20, ..Ask::default() }).await.unwrap_err();
    assert!(matches!(error, RpcError::Unsupported(_)), "{error}");
    assert_eq!(server.stats.snapshot().exposures_refused, 1);
    echo(&client, &a, Ask { receive: 1 << 20, ..Ask::default() }).await;
    finish(client, server, &a).await;
}

#[tokio::test]
async fn a_read_read_responder_rejects_all_physical_and_revokes_all_memory_otherwise() {
    for strategy in Strategy::ALL {
        let a = arena();
        let registration =
            Arc::new(Registration::new(Settings { trust_peer: true, ..Settings::new(strategy) }));
        let c = RequesterConfig { design: Design::ReadRead, ..Default::default() };
        let registered = registration.clone();
        let s = ResponderConfig { design: Design::ReadRead, registration: registered, ..Default::default() };
        let (qc, qs) =
            queue_pairs(Link::Tcp, &a, c.connect_params(), s.connect_params(Default::default())).await;
        let service = Arc::new(Echo::default());
        let made = Responder::new(
            qs,
            peer(&*qc),
            service,
            rt(),
            a.clone(),
            s.clone(),
            Arc::default(),
            Account::unlimited(),
        );
        assert_eq!(made.is_err(), strategy == Strategy::AllPhysical, "{strategy}");
        if made.is_err() {
            continue;
        }
        drop((made, qc));
        let (client, server) = connected(Link::Tcp, &a, c, s).await;
        for seed in 0..5 {
            echo(&client, &a, Ask { send: 9000, receive: 70_000, seed, ..Ask::default() }).await;
        }
        finish(client, server, &a).await;
        let stats = registration.stats();
        assert!(stats.registrations + stats.hits >= 5, "{stats:?}");
        assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");
    }
}
