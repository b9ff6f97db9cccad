//! Calls from end to end: requester, responder, and a service that echoes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use rpcrdma::{RequesterConfig, ResponderConfig};
use support::{Ask, arena, connected, echo, finish};

fn configs(inline: usize) -> (RequesterConfig, ResponderConfig) {
    (
        RequesterConfig { inline_size: inline, ..Default::default() },
        ResponderConfig { inline_size: inline, max_transfer: 4 << 20, ..Default::default() },
    )
}

#[tokio::test]
async fn payloads_of_every_size_arrive_both_ways() {
    let a = arena();
    let (c, s) = configs(4096);
    let (client, server) = connected(&a, c, s);
    for (i, n) in
        [0, 1, 3, 4, 1000, 3900, 4095, 4096, 65_535, 65_537, 1 << 20, 4 << 20].into_iter().enumerate()
    {
        let seed = i as u32 * 10;
        echo(&client, &a, Ask { send: n, seed, ..Ask::default() }).await;
        echo(&client, &a, Ask { receive: n, seed, ..Ask::default() }).await;
        echo(&client, &a, Ask { send: n, receive: n, seed, later: true, ..Ask::default() }).await;
    }
    finish(client, server, &a).await;
}

#[tokio::test]
async fn every_combination_of_inline_and_chunks_works() {
    let a = arena();
    for inline in [1024, 4096] {
        let (c, s) = configs(inline);
        let (client, server) = connected(&a, c, s);
        let sizes = [0, 7, 5001];
        for (send, head) in sizes.into_iter().flat_map(|s| sizes.map(|h| (s, h))) {
            for (receive, reply_head) in sizes.into_iter().flat_map(|s| sizes.map(|h| (s, h))) {
                echo(&client, &a, Ask { send, head, receive, reply_head, later: false, seed: 5 }).await;
            }
        }
        assert!(client.stats().long_calls > 0 && client.stats().long_replies > 0);
        assert_eq!(server.stats.snapshot().chunk_errors, 0);
        finish(client, server, &a).await;
    }
}

#[tokio::test]
async fn hundreds_of_calls_share_a_few_credits() {
    let a = arena();
    let (c, s) = configs(1024);
    let (client, server) = connected(&a, c, ResponderConfig { credits: 3, ..s });
    let calls = (0..300).map(|i| {
        let ask = Ask {
            send: i * 37 % 9000,
            receive: i * 91 % 7000,
            reply_head: i % 5 * 400,
            later: i % 2 == 0,
            seed: i as u32,
            ..Ask::default()
        };
        echo(&client, &a, ask)
    });
    futures::future::join_all(calls).await;
    assert_eq!(client.stats().credits_granted, 3);
    finish(client, server, &a).await;
}
