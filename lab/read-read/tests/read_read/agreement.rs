//! Negotiation of the design: both ends must state it.

use std::sync::Arc;

use millrace_oncrpc::RpcError;
use millrace_rdma::{
    ConnectParams, ConnectionError,
    registration::{Registration, Settings, Strategy},
};
use millrace_read_read::{ExposureLimits, ReadRead, Requester};
use millrace_rpcrdma::{
    Body, Protocol, RequesterConfig, RequesterTransport, ResponderConfig, TransportError,
};

use crate::{
    connected, finish, params, params_of_rfc, serve,
    support::{self, Ask, Link, arena, echo, fabric, message, queue_pairs, raw, raw::Raw, rt, settled},
};

#[tokio::test]
async fn a_requester_rejects_a_responder_of_another_design_with_a_message() {
    for link in Link::fabric_and_providers() {
        let a = arena();
        let (c, s) = (RequesterConfig::default(), ResponderConfig::default());
        let ours = ReadRead::default();
        let accept = s.connect_params(ConnectParams::default());
        let (qc, qs) = queue_pairs(link, &a, ours.connect_params(&c), accept).await;
        let server = support::serve(qs, &a, s);
        let error = Requester::from_queue_pair(qc, rt(), a.clone(), c, ours).err().unwrap();
        assert!(matches!(error, ConnectionError::Incompatible(_)), "{error}");
        assert!(error.to_string().contains("does not offer the Read-Read design"), "{error}");
        server.ended(&a).await;
    }
}

#[tokio::test]
async fn the_design_requires_private_data_and_read_depth() {
    for (private, ird, says) in
        [(false, 8, "does not offer"), (true, 0, "serves no RDMA Reads"), (true, 8, "")]
    {
        let (a, config, ours) = (arena(), RequesterConfig::default(), ReadRead::default());
        let theirs = if private { params() } else { ConnectParams::default() };
        let (c, _s) = fabric::pair(1, &ours.connect_params(&config), &ConnectParams { ird, ..theirs });
        match Requester::from_queue_pair(Box::new(c), rt(), a.clone(), config, ours) {
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
        let (config, theirs) = (ResponderConfig::default(), ReadRead::default());
        let ours = if private { params_of_rfc() } else { ConnectParams::default() };
        let accept = theirs.accept_params(&config, Default::default());
        let (c, s) = queue_pairs(Link::Fabric, &a, ours, accept).await;
        let server = serve(s, &a, config, theirs).unwrap();
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
    let exposure = ExposureLimits { bytes: 0, ..ExposureLimits::default() };
    let protocol = ReadRead { exposure, ..ReadRead::default() };
    let s = ResponderConfig { max_transfer: 1 << 20, ..Default::default() };
    let (client, server) = connected(Link::Fabric, &a, RequesterConfig::default(), s, &protocol).await;
    // The limit of 0 bytes is raised to one reply. It then also limits the credits, to one.
    echo(&client, &a, Ask { receive: 1 << 20, ..Ask::default() }).await;
    assert_eq!(client.stats().credits_granted, 1);
    let error = support::call(&client, &a, Ask { receive: 2 << 20, ..Ask::default() }).await.unwrap_err();
    assert!(matches!(error, RpcError::Unsupported(_)), "{error}");
    assert_eq!(protocol.counts.exposures_refused.get(), 1);
    echo(&client, &a, Ask { receive: 1 << 20, ..Ask::default() }).await;
    finish(client, server, &a, &protocol).await;
}

#[tokio::test]
async fn a_read_read_responder_rejects_all_physical_and_revokes_all_memory_otherwise() {
    for strategy in Strategy::ALL {
        let a = arena();
        let registration =
            Arc::new(Registration::new(Settings { trust_peer: true, ..Settings::new(strategy) }));
        let (c, protocol) = (RequesterConfig::default(), ReadRead::default());
        let s = ResponderConfig { registration: registration.clone(), ..Default::default() };
        let accept = protocol.accept_params(&s, Default::default());
        let (qc, qs) = queue_pairs(Link::Tcp, &a, protocol.connect_params(&c), accept).await;
        let made = serve(qs, &a, s.clone(), protocol.clone());
        assert_eq!(made.is_err(), strategy == Strategy::AllPhysical, "{strategy}");
        let Ok(made) = made else { continue };
        made.task.abort();
        drop((made, qc));
        let (client, server) = connected(Link::Tcp, &a, c, s, &protocol).await;
        for seed in 0..5 {
            echo(&client, &a, Ask { send: 9000, receive: 70_000, seed, ..Ask::default() }).await;
        }
        finish(client, server, &a, &protocol).await;
        let stats = registration.stats();
        assert!(stats.registrations + stats.hits >= 5, "{stats:?}");
        assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");
    }
}
