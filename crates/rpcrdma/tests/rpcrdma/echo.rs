//! Calls end to end: requester, responder and an echo service, over every kind of connection.

use std::sync::{Arc, atomic::Ordering};

use millrace_buffer::Arena;
use millrace_oncrpc::Transport;
use millrace_rdma::{
    Access, ConnectParams, Memory, RegistrationKind,
    registration::{Invalidation, Registration, Settings, Strategy},
};
use millrace_rpcrdma::{
    NFS_RDMA_PORT, Requester, RequesterConfig, Responder, ResponderConfig, ResponderStats, Rfc8166,
};

use crate::support::{
    self, Ask, Echo, Link, PIECE, Server, arena, connected, echo, ended, finish, queue_pairs,
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
        let a = arena();
        let (c, s) = configs(4096);
        let (client, server) = connected(link, &a, c, s).await;
        let largest = if link.is_slow() { 1 << 17 } else { 4 << 20 };
        let sizes = [0, 1, 3, 4, 1000, 3900, 4095, 4096, 65_535, 65_537, 1 << 20, 4 << 20];
        for (i, n) in sizes.into_iter().filter(|n| *n <= largest).enumerate() {
            let seed = i as u32 * 10;
            echo(&client, &a, Ask { send: n, seed, ..Ask::default() }).await;
            echo(&client, &a, Ask { receive: n, seed, ..Ask::default() }).await;
            echo(&client, &a, Ask { send: n, receive: n, seed, later: true, ..Ask::default() }).await;
        }
        let stats = server.stats.snapshot();
        assert!(stats.reads > 0, "{link:?}");
        assert_eq!(stats.remote_invalidations > 0, link.can_be_invalidated(), "{link:?}");
        assert!(stats.writes > 0, "{link:?}");
        assert_eq!(stats.remote_invalidations, client.stats().remote_invalidations);
        finish(client, server, &a).await;
    }
}

#[tokio::test]
async fn every_combination_of_inline_and_chunks_works() {
    for (link, inline) in Link::all().into_iter().flat_map(|l| [(l, 1024), (l, 4096)]) {
        let a = arena();
        let (c, s) = configs(inline);
        let (client, server) = connected(link, &a, c, s).await;
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
async fn pieces_have_separate_segments_and_are_copied_beyond_the_limit() {
    for (link, few, many) in [(Link::Contiguous, 10, 4), (Link::Fabric, 1, 4)] {
        let a = arena();
        let (c, s) = configs(1024);
        let (client, server) = connected(link, &a, c, s).await;
        let reads = || server.stats.snapshot().reads;
        echo(&client, &a, Ask { send: 10 * PIECE, ..Ask::default() }).await;
        assert_eq!(reads(), few, "{link:?}");
        // A header has at most 16 segments; RDMA Reads of at most 1 MiB then read one region.
        echo(&client, &a, Ask { send: 60 * PIECE, ..Ask::default() }).await;
        assert_eq!(reads() - few, many, "{link:?}");
        // A call whose head does not fit inline either.
        echo(&client, &a, Ask { send: 5 * PIECE, head: 3000, ..Ask::default() }).await;
        finish(client, server, &a).await;
    }
}

#[tokio::test]
async fn hundreds_of_calls_share_a_few_credits() {
    for link in Link::all() {
        let a = arena();
        let (c, s) = configs(1024);
        let (client, server) = connected(link, &a, c, ResponderConfig { credits: 3, ..s }).await;
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
}

#[tokio::test]
async fn peers_without_private_data_use_1024_bytes_and_no_remote_invalidation() {
    for link in Link::providers() {
        let a = arena();
        let (c, s) = configs(4096);
        let (qc, qs) = queue_pairs(link, &a, Default::default(), Default::default()).await;
        let server = support::serve(qs, &a, s);
        let client = Requester::from_queue_pair(qc, support::rt(), a.clone(), c).unwrap();
        assert_eq!((client.thresholds().send, client.thresholds().receive), (1024, 1024));
        for n in [0, 900, 1000, 5000] {
            echo(&client, &a, Ask { send: n, receive: n, ..Ask::default() }).await;
        }
        assert_eq!(server.stats.snapshot().remote_invalidations, 0);
        finish(client, server, &a).await;
    }
}

#[tokio::test]
async fn remote_invalidation_needs_both_ends() {
    let cases = [(true, false), (false, true), (false, false), (true, true)];
    for (link, (ours, theirs)) in Link::providers().into_iter().flat_map(|l| cases.map(|c| (l, c))) {
        let a = arena();
        let (c, s) = configs(4096);
        let c = RequesterConfig { remote_invalidate: ours, ..c };
        let s = ResponderConfig { remote_invalidate: theirs, ..s };
        let (client, server) = connected(link, &a, c, s).await;
        echo(&client, &a, Ask { receive: 9000, ..Ask::default() }).await;
        let invalidated = ours && theirs && link.can_be_invalidated();
        assert_eq!(client.stats().remote_invalidations, u64::from(invalidated));
        finish(client, server, &a).await;
    }
}

#[tokio::test]
async fn callers_on_several_threads_share_a_connection() {
    let a = arena();
    let (c, s) = configs(4096);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let arena = a.clone();
    let work = runtime.spawn(async move {
        let (client, server) = connected(Link::Tcp, &arena, c, ResponderConfig { credits: 7, ..s }).await;
        let callers: Vec<_> = (0..8_usize)
            .map(|i| {
                let (client, arena) = (client.clone(), arena.clone());
                tokio::spawn(async move {
                    for n in 0..40 {
                        let ask =
                            Ask { send: n * 211 * i, receive: n * 307, seed: n as u32, ..Ask::default() };
                        echo(&client, &arena, ask).await;
                    }
                })
            })
            .collect();
        for c in callers {
            c.await.unwrap();
        }
        finish(client, server, &arena).await;
    });
    tokio::task::spawn_blocking(move || runtime.block_on(work).unwrap()).await.unwrap();
}

/// A requester's configuration with a strategy; small pools, so that fallbacks and releases occur.
fn with(
    strategy: Strategy,
    invalidation: Invalidation,
    inline: usize,
) -> (Arc<Registration>, RequesterConfig) {
    let registration = Arc::new(Registration::new(Settings {
        invalidation,
        windows: 3,
        window_bytes: 70_000,
        cache_limit: 1 << 20,
        trust_peer: true,
        ..Settings::new(strategy)
    }));
    (registration.clone(), RequesterConfig { registration, ..configs(inline).0 })
}

#[tokio::test]
async fn every_strategy_transfers_all_payload_sizes_and_revokes_all_memory() {
    let all = Strategy::ALL.map(|s| (s, Invalidation::AtOnce));
    for (strategy, invalidation) in all.into_iter().chain([(Strategy::Fast, Invalidation::Batched(2))]) {
        for link in [Link::Tcp, Link::Memory { segment: 4000, frame: None }] {
            let a = arena();
            let (registration, c) = with(strategy, invalidation, 4096);
            let s = configs(4096).1;
            let (client, server) = connected(link, &a, c, s).await;
            let most = client.max_payload().min(300_000);
            for (i, n) in [0, 5, 4096, 5000, 65_537, 200_000, most].into_iter().enumerate() {
                let seed = i as u32 * 10;
                let asks = [
                    Ask { send: n, seed, ..Ask::default() },
                    Ask { receive: n, seed, ..Ask::default() },
                    Ask { send: n, receive: n, head: 5000, reply_head: 5000, seed, later: true },
                ];
                let calls = asks.map(|ask| echo(&client, &a, ask));
                futures::future::join_all(calls).await;
            }
            let stats = registration.stats();
            match strategy {
                Strategy::Dynamic => assert!(stats.registrations > 0 && stats.hits == 0, "{stats:?}"),
                Strategy::Fast => assert!(stats.hits > 0 && stats.fallbacks > 0, "{stats:?}"),
                Strategy::Cache => assert!(stats.hits > 0 && stats.reclaimed > 0, "{stats:?}"),
                Strategy::AllPhysical => assert!(stats.hits > 0 && stats.registrations == 0, "{stats:?}"),
            }
            assert_eq!(server.stats.snapshot().chunk_errors, 0);
            ended(client, server, &a).await;
            let stats = registration.stats();
            assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");
        }
    }
}

#[tokio::test]
async fn the_cache_reuses_its_buffers_and_copies_once() {
    let a = arena();
    let (registration, c) = with(Strategy::Cache, Invalidation::AtOnce, 4096);
    let (client, server) = connected(Link::Tcp, &a, c, configs(4096).1).await;
    for seed in 0..20 {
        echo(&client, &a, Ask { send: 9000, receive: 9000, seed, ..Ask::default() }).await;
    }
    let stats = registration.stats();
    assert_eq!((stats.registrations, stats.hits, stats.kept_bytes), (2, 38, 2 * 16384), "{stats:?}");
    // The buffers stay exposed, and the responder may not invalidate reused tags.
    assert_eq!((client.exposed(), client.stats().remote_invalidations), ((2, 2 * 16384), 0));
    ended(client, server, &a).await;
}

/// A connection whose responder has these settings.
async fn registering(
    link: Link,
    settings: Settings,
    arena: &Arena,
) -> (Arc<Registration>, Arc<Requester>, Server) {
    let (c, s) = configs(4096);
    let registration = Arc::new(Registration::new(settings));
    let s = ResponderConfig { registration: registration.clone(), ..s };
    let (client, server) = connected(link, arena, c, s).await;
    (registration, client, server)
}

#[tokio::test]
async fn responders_register_local_memory_according_to_the_strategy() {
    for (link, strategy) in Link::registering().into_iter().flat_map(|l| Strategy::ALL.map(|s| (l, s))) {
        let a = arena();
        let (registration, client, server) = registering(link, Settings::new(strategy), &a).await;
        for seed in 0..10 {
            echo(&client, &a, Ask { send: 100_000, receive: 70_000, seed, ..Ask::default() }).await;
            echo(&client, &a, Ask { seed, ..Ask::default() }).await;
        }
        let stats = registration.stats();
        let (regions, bytes) = (stats.registrations, stats.bytes);
        match strategy {
            // Devices with contiguous regions split some replies in two.
            Strategy::Dynamic => assert!(bytes == 1_700_000 && (20..=30).contains(&regions), "{stats:?}"),
            // Spans, of which these calls use a few.
            Strategy::Cache => {
                assert!((1..10).contains(&regions) && stats.hits + regions >= 20, "{stats:?}");
                assert_eq!((stats.kept_bytes, stats.deregistrations), (bytes, 0), "{stats:?}");
            }
            Strategy::Fast | Strategy::AllPhysical => assert_eq!((regions, bytes), (0, 0)),
        }
        if strategy == Strategy::Dynamic && matches!(link, Link::Fabric) {
            assert_eq!(regions, stats.deregistrations, "a reply deregisters the memory of its call");
        }
        ended(client, server, &a).await;
        let stats = registration.stats();
        assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");
    }
}

#[tokio::test]
async fn the_span_cache_is_limited_and_releases_the_least_recently_used_span() {
    const SPAN: u64 = millrace_buffer::SPAN_BYTES as u64;
    for link in Link::registering() {
        let a = arena();
        // The high watermark is between two and three spans.
        let settings =
            Settings { cache_limit: 3 * millrace_buffer::SPAN_BYTES, ..Settings::new(Strategy::Cache) };
        let (registration, client, server) = registering(link, settings, &a).await;
        // Each payload has another size class, and therefore another span: they use more spans than the
        // limit.
        for seed in 0..20 {
            for receive in [20_000, 40_000, 80_000, 160_000, 320_000] {
                echo(&client, &a, Ask { receive, seed, ..Ask::default() }).await;
                assert!(registration.stats().kept_bytes <= 3 * SPAN, "{:?}", registration.stats());
            }
        }
        let stats = registration.stats();
        assert!(stats.reclaimed > 0 && stats.kept_bytes > 0, "{stats:?}");
        ended(client, server, &a).await;
        let stats = registration.stats();
        assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");

        // The limit is below one span: each operation is registered individually.
        let settings = Settings { cache_limit: 1 << 20, ..Settings::new(Strategy::Cache) };
        let (registration, client, server) = registering(link, settings, &a).await;
        echo(&client, &a, Ask { send: 100_000, receive: 70_000, ..Ask::default() }).await;
        let stats = registration.stats();
        assert_eq!((stats.fallbacks, stats.bytes), (stats.registrations, 170_000), "{stats:?}");
        ended(client, server, &a).await;
        let stats = registration.stats();
        assert_eq!(stats.registrations, stats.deregistrations, "{stats:?}");
    }
}

#[tokio::test]
async fn memory_pressure_makes_a_responder_release_cached_registrations() {
    let a = arena();
    let pressure = std::env::temp_dir().join(format!("responder-pressure-{}", std::process::id()));
    let says = |percent| {
        let text = format!("some avg10={percent}.00 avg60=0.00 avg300=0.00 total=1\n");
        std::fs::write(&pressure, text).unwrap();
    };
    for (percent, released) in [(9, false), (10, true)] {
        says(percent);
        let settings = Settings { pressure: pressure.clone(), ..Settings::new(Strategy::Cache) };
        let (registration, client, server) = registering(Link::Fabric, settings, &a).await;
        // More operations than the check interval, so that a check occurs while spans are idle.
        for seed in 0..200 {
            echo(&client, &a, Ask { send: 20_000, receive: 70_000, seed, ..Ask::default() }).await;
        }
        assert_eq!(registration.stats().reclaimed > 0, released, "{:?}", registration.stats());
        ended(client, server, &a).await;
        let stats = registration.stats();
        assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0), "{stats:?}");
    }
    std::fs::remove_file(pressure).unwrap();
}

#[tokio::test]
async fn all_physical_requires_trust() {
    let a = arena();
    let (_, mut c) = with(Strategy::AllPhysical, Invalidation::AtOnce, 4096);
    c.registration = Arc::new(Registration::new(Settings::new(Strategy::AllPhysical)));
    let s = configs(4096).1.connect_params(Default::default());
    let (qc, _qs) = queue_pairs(Link::Tcp, &a, c.connect_params(), s).await;
    let refused = Requester::from_queue_pair(qc, support::rt(), a.clone(), c).err().unwrap();
    assert!(refused.to_string().contains("`trust_server`"), "{refused}");
}

#[tokio::test]
async fn stop_answers_calls_in_progress_and_closes() {
    let a = arena();
    let (c, s) = configs(4096);
    let (qc, qs) = queue_pairs(Link::Tcp, &a, c.connect_params(), s.connect_params(Default::default())).await;
    let (service, stats) = (Arc::new(Echo::default()), Arc::new(ResponderStats::default()));
    let responder = Responder::new(support::accepted(qs, service.clone(), &a), s, stats).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(responder.run_until(async move {
        drop(stopped.await);
    }));
    let client = Requester::from_queue_pair(qc, support::rt(), a.clone(), c).unwrap();
    echo(&client, &a, Ask::default()).await;
    let ask = Ask { receive: 9000, later: true, ..Ask::default() };
    let call = async {
        let reply = echo(&client, &a, ask);
        let mut reply = std::pin::pin!(reply);
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
    support::settled(&a).await;
}

#[test]
fn the_well_known_port_is_that_of_rfc_8267() {
    assert_eq!(NFS_RDMA_PORT, 20049);
}

/// What operators see of a server's exposed memory is measured: here something else than the responder exposes some.
#[tokio::test]
async fn the_exposure_of_a_servers_memory_is_measured_over_its_connections() {
    let (arena, stats) = (arena(), Arc::new(ResponderStats::default()));
    let exposed = || {
        let measured = stats.snapshot().exposure;
        (measured.regions, measured.bytes, measured.peak_bytes)
    };
    let mut connections = Vec::new();
    for bytes in [100, 200] {
        let (requester, responder) = (RequesterConfig::default(), ResponderConfig::default());
        let accept = responder.connect_params(ConnectParams::default());
        let (c, s) = queue_pairs(Link::Fabric, &arena, requester.connect_params(), accept).await;
        let domain = s.domain();
        let memory = Memory::Shared(arena.copy_from(&vec![1; bytes]).unwrap().into());
        let region = domain.expose(RegistrationKind::Region, memory, Access::RemoteRead).unwrap();
        let connection = support::accepted(s, Arc::new(Echo::default()), &arena);
        let task = tokio::spawn(Responder::new(connection, responder, Arc::clone(&stats)).unwrap().run());
        let client = Requester::from_queue_pair(c, support::rt(), arena.clone(), requester).unwrap();
        echo(&client, &arena, Ask::default()).await;
        connections.push((client, task, domain, region));
    }
    assert_eq!(exposed(), (2, 300, 300));
    let (client, _, domain, region) = &connections[0];
    drop(domain.revoke(region.id));
    echo(client, &arena, Ask::default()).await;
    assert_eq!(exposed(), (1, 200, 300));
    for (client, task, ..) in connections {
        client.close();
        task.await.unwrap().unwrap();
    }
    assert_eq!(exposed(), (0, 0, 300));
}

#[tokio::test]
async fn calls_allocate_no_heap_memory() {
    for every in [0, 1, 3] {
        support::allocations::assert_none(&Rfc8166, every).await;
    }
}
