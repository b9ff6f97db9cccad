//! Calls end to end, over every kind of connection.

use std::sync::{Arc, atomic::Ordering};

use millrace_oncrpc::Transport;
use millrace_rdma::registration::{Registration, Settings, Strategy};
use millrace_read_read::{ReadRead, Requester, Responder};
use millrace_rpcrdma::{Protocol, RequesterConfig, RequesterTransport, ResponderConfig};

use crate::{
    connected, finish,
    support::{self, Ask, Echo, Link, arena, echo, queue_pairs, rt, settled},
};

fn configs(inline: usize) -> (RequesterConfig, ResponderConfig) {
    (
        RequesterConfig { inline_size: inline, ..Default::default() },
        ResponderConfig { inline_size: inline, max_transfer: 4 << 20, ..Default::default() },
    )
}

#[tokio::test]
async fn payloads_of_every_size_arrive_both_ways() {
    for link in Link::all() {
        let (a, protocol) = (arena(), ReadRead::default());
        let (c, s) = configs(4096);
        let (client, server) = connected(link, &a, c, s, &protocol).await;
        let largest = if link.is_slow() { 1 << 17 } else { 4 << 20 };
        let sizes = [0, 1, 3, 4, 1000, 3900, 4095, 4096, 65_535, 65_537, 1 << 20, 4 << 20];
        for (i, n) in sizes.into_iter().filter(|n| *n <= largest).enumerate() {
            let seed = i as u32 * 10;
            echo(&client, &a, Ask { send: n, seed, ..Ask::default() }).await;
            echo(&client, &a, Ask { receive: n, seed, ..Ask::default() }).await;
            echo(&client, &a, Ask { send: n, receive: n, seed, later: true, ..Ask::default() }).await;
        }
        let stats = server.stats.snapshot();
        assert!(stats.reads > 0 && stats.writes == 0, "{link:?}");
        assert!(protocol.counts.result_reads.get() > 0, "{link:?}");
        assert_eq!(stats.remote_invalidations > 0, link.can_be_invalidated(), "{link:?}");
        assert_eq!(stats.remote_invalidations, client.stats().remote_invalidations);
        finish(client, server, &a, &protocol).await;
    }
}

#[tokio::test]
async fn every_combination_of_inline_and_chunks_works() {
    for (link, inline) in Link::all().into_iter().flat_map(|l| [(l, 1024), (l, 4096)]) {
        let (a, protocol) = (arena(), ReadRead::default());
        let (c, s) = configs(inline);
        let (client, server) = connected(link, &a, c, s, &protocol).await;
        let sizes = [0, 7, 5001];
        for (send, head) in sizes.into_iter().flat_map(|s| sizes.map(|h| (s, h))) {
            for (receive, reply_head) in sizes.into_iter().flat_map(|s| sizes.map(|h| (s, h))) {
                echo(&client, &a, Ask { send, head, receive, reply_head, later: false, seed: 5 }).await;
            }
        }
        assert!(client.stats().long_calls > 0 && client.stats().long_replies > 0);
        assert_eq!(server.stats.snapshot().chunk_errors, 0);
        finish(client, server, &a, &protocol).await;
    }
}

#[tokio::test]
async fn hundreds_of_calls_share_a_few_credits() {
    for link in Link::all() {
        let (a, protocol) = (arena(), ReadRead::default());
        let (c, s) = configs(1024);
        let s = ResponderConfig { credits: 3, ..s };
        let (client, server) = connected(link, &a, c, s, &protocol).await;
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
        finish(client, server, &a, &protocol).await;
    }
}

#[tokio::test]
async fn requesters_register_sinks_according_to_the_strategy() {
    for link in Link::registering() {
        for strategy in [Strategy::Dynamic, Strategy::Fast, Strategy::Cache] {
            let (a, protocol) = (arena(), ReadRead::default());
            let (c, s) = configs(4096);
            let registration = Arc::new(Registration::new(Settings::new(strategy)));
            let c = RequesterConfig { registration: registration.clone(), ..c };
            let (client, server) = connected(link, &a, c, s, &protocol).await;
            for seed in 0..5 {
                echo(&client, &a, Ask { receive: 70_000, seed, ..Ask::default() }).await;
            }
            let stats = registration.stats();
            match strategy {
                Strategy::Dynamic => assert_eq!(stats.bytes, 350_000, "{stats:?}"),
                Strategy::Fast => assert_eq!(stats.registrations, 0),
                _ => assert!(stats.registrations <= 2 && stats.registrations + stats.hits >= 5, "{stats:?}"),
            }
            client.close();
            drop(client);
            server.ended(&a).await;
            assert_eq!(registration.stats().deregistrations, stats.registrations);
        }
    }
}

#[tokio::test]
async fn stop_answers_calls_in_progress_and_closes() {
    let (a, protocol) = (arena(), ReadRead::default());
    let (c, s) = configs(4096);
    let accept = protocol.accept_params(&s, Default::default());
    let (qc, qs) = queue_pairs(Link::Tcp, &a, protocol.connect_params(&c), accept).await;
    let service = Arc::new(Echo::default());
    let connection = support::accepted(qs, service.clone(), &a);
    let responder = Responder::new(connection, s, protocol.clone(), Arc::default()).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(responder.run_until(async move {
        drop(stopped.await);
    }));
    let client = Requester::from_queue_pair(qc, rt(), a.clone(), c, protocol).unwrap();
    echo(&client, &a, Ask::default()).await;
    let call = async {
        let mut reply =
            std::pin::pin!(echo(&client, &a, Ask { receive: 9000, later: true, ..Ask::default() }));
        while service.executed.load(Ordering::SeqCst) < 2 {
            assert!(futures::poll!(reply.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        drop(stop);
        reply.await;
    };
    call.await;
    task.await.unwrap().unwrap();
    assert!(support::call(&client, &a, Ask::default()).await.is_err());
    drop((client, service));
    settled(&a).await;
}

#[tokio::test]
async fn callers_on_several_threads_share_a_connection() {
    let a = arena();
    let (c, s) = configs(4096);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let (arena, protocol) = (a.clone(), ReadRead::default());
    let work = runtime.spawn(async move {
        let s = ResponderConfig { credits: 7, ..s };
        let (client, server) = connected(Link::Tcp, &arena, c, s, &protocol).await;
        let callers = (0..8_usize).map(|i| {
            let (client, arena) = (client.clone(), arena.clone());
            tokio::spawn(async move {
                for n in 0..40 {
                    let ask = Ask { send: n * 211 * i, receive: n * 307, seed: n as u32, ..Ask::default() };
                    echo(&client, &arena, ask).await;
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        finish(client, server, &arena, &protocol).await;
    });
    tokio::task::spawn_blocking(move || runtime.block_on(work).unwrap()).await.unwrap();
}

#[tokio::test]
async fn calls_allocate_no_heap_memory() {
    for every in [0, 1, 3] {
        support::allocations::assert_none(&ReadRead::default(), every).await;
    }
}
