//! Polling for replies (`busy_poll`).

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use super::*;

const CALLS: usize = 100;

/// How often the thread of a client sleeps during calls, and whether it sleeps when the client is gone.
fn sleeps(proto: Proto, busy_poll: Duration) -> (u32, bool) {
    let server = Server::start(config()).unwrap();
    let sleeps = Arc::<AtomicU32>::default();
    let counter = Arc::clone(&sleeps);
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || _ = counter.fetch_add(1, Relaxed))
        .build()
        .unwrap();
    let counts = tokio.block_on(async {
        let url = url(&server, proto, "/data");
        let options = options().nconnect(1).busy_poll(busy_poll);
        let client = Client::connect(TokioRuntime::current(), &url, options).await.unwrap();
        let calls = async || {
            for _ in 0..CALLS {
                client.getattr(client.root()).await.unwrap();
            }
            sleeps.load(Relaxed)
        };
        let before = calls().await;
        let during = calls().await - before;
        client.shutdown().await;
        drop(client);
        let before = sleeps.load(Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        (during, sleeps.load(Relaxed) > before)
    });
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
    counts
}

#[test]
fn a_client_polls_for_replies_until_it_is_dropped() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        assert!(sleeps(proto, Duration::ZERO).0 > 0, "{proto}");
        assert_eq!(sleeps(proto, Duration::from_secs(3600)), (0, true), "{proto}");
    }
}
