//! The end of a connection whose initiator has sent more than the target reads.

use std::time::Duration;

use millrace_iscsi::pdu::{NopOut, RESERVED_TAG, RejectReason, Request, RequestNumbers, Response};
use millrace_iscsi_target::ConnectionLimits;
use millrace_runtime::RuntimeExt;

use super::{
    common::{Bench, Client, Ended, login, run},
    hostile::{nop, session},
};

/// Begins a session and violates the protocol: an answer to a ping that was not sent.
async fn violator(bench: &Bench) -> Client {
    let (mut client, _) = session(bench).await;
    let exp_stat_sn = client.exp_stat_sn();
    let ping = nop(RESERVED_TAG);
    let numbers = RequestNumbers { exp_stat_sn, ..ping.numbers };
    let answer = Request::NopOut(NopOut { ttt: 7, numbers, ..ping });
    client.send(&answer.encode(0), &[]).await.unwrap();
    client
}

fn is_reject(response: &Response) -> bool {
    matches!(response, Response::Reject(r) if r.reason == RejectReason::PROTOCOL_ERROR)
}

#[test]
fn a_reject_arrives_although_the_initiator_has_sent_further_data() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = violator(&bench).await;
        // More than the stream buffers.
        client.send_bytes(&[0; 1 << 20]).await.unwrap();
        let responses = client.expect_end().await;
        assert!(responses.last().is_some_and(is_reject), "{responses:?}");
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn a_refused_login_has_its_response_although_the_initiator_has_sent_further_data() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        let unknown = "InitiatorName=iqn.2026-01.example:host\0TargetName=iqn.2026-01.example:none\0";
        let request = login(|_| {}, unknown.as_bytes());
        client.send(&request.bhs, &request.data).await.unwrap();
        client.send_bytes(&[0; 1 << 20]).await.unwrap();
        let responses = client.expect_end().await;
        let not_found =
            |r: &Response| matches!(r, Response::Login(r) if (r.status_class, r.status_detail) == (2, 3));
        assert!(responses.last().is_some_and(not_found), "{responses:?}");
        bench.expect_idle().await;
    });
}

#[test]
fn an_initiator_that_does_not_close_keeps_neither_its_place_nor_the_stream() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = violator(&bench).await;
        while client.receive().await.is_ok() {}
        // The target waits for the end of the stream, but no client has the connection.
        assert_eq!((bench.serving(), bench.budget.stats().connections, bench.table.sessions()), (1, 0, 0));
        bench.rt.sleep(Duration::from_millis(1001)).await;
        assert_eq!(bench.serving(), 0);
        assert_eq!(client.send_bytes(&[0]).await, Err(Ended));
        bench.expect_idle().await;
    });
}

#[test]
fn an_initiator_that_sends_without_end_is_cut_off() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = violator(&bench).await;
        let mut sent = 0_u64;
        while client.send_bytes(&[0; 1 << 16]).await.is_ok() {
            sent += 1 << 16;
            assert!(sent <= 17 << 20, "the target reads {sent} bytes");
        }
        assert!(sent >= 16 << 20, "{sent}");
        bench.expect_idle().await;
    });
}

#[test]
fn few_streams_wait_for_their_end_at_a_time() {
    run(ConnectionLimits::default(), async |bench| {
        let mut clients = Vec::new();
        for _ in 0..70 {
            let mut client = violator(&bench).await;
            while client.receive().await.is_ok() {}
            clients.push(client);
        }
        assert_eq!(bench.serving(), 64);
        bench.expect_service().await;
        drop(clients);
        bench.expect_idle().await;
    });
}
