//! The server decodes each call once and looks up its export once. This test has its own process, because it
//! reads process-wide counters.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use millrace_client::{Options, Proto, Url, Version, handles::Client, ops::StableHow};
use millrace_nfs::call_counts::HANDLES_DECODED;
use millrace_oncrpc::call_counts::HEADERS_DECODED;
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{
    Config, Server,
    call_counts::{EXPORT_LOOKUPS, TABLE_LOADS},
};

const CALLS: u64 = 20;
/// Sizes that are sent inline and in chunks over RDMA.
const LENGTHS: [usize; 2] = [512, 256 << 10];

fn counts() -> [u64; 4] {
    let counters: [&AtomicU64; 4] = [&HEADERS_DECODED, &HANDLES_DECODED, &TABLE_LOADS, &EXPORT_LOOKUPS];
    counters.map(|counter| counter.load(Ordering::Relaxed))
}

/// Increase of the counters by `CALLS` calls.
async fn counted(mut call: impl AsyncFnMut()) -> [u64; 4] {
    let before = counts();
    for _ in 0..CALLS {
        call().await;
    }
    let after = counts();
    std::array::from_fn(|n| after[n] - before[n])
}

#[test]
fn a_call_decodes_one_header_and_one_handle_and_looks_up_one_export() {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/local=local:{},squash=none", dir.path().display());
    let config = Config {
        exports: vec!["/memory=memory:64MiB".parse().unwrap(), local.parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let ports = [(Proto::Tcp, server.tcp_addr()), (Proto::Rdma, server.rdma_addr())];
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for export in ["/memory", "/local"] {
        for (proto, addr) in ports {
            let port = Some(addr.unwrap().port());
            let url = Url { port, proto: Some(proto), ..Url::new("127.0.0.1", export) };
            tokio.block_on(async {
                let client = Client::connect(
                    TokioRuntime::current(),
                    &url,
                    Options::default().vers(Some(Version::V3)),
                )
                .await
                .unwrap();
                let file = client.create_file("f", 0o600).await.unwrap().handle();
                for len in LENGTHS {
                    let data = client.buffer(len).unwrap().freeze();
                    let write = counted(async || {
                        client.write_from(file, 0, data.clone().into(), StableHow::Unstable).await.unwrap();
                    });
                    // Over TCP the position of the data in a large call is found before the call is complete.
                    let headers = if proto == Proto::Tcp && len > 64 << 10 { 2 * CALLS } else { CALLS };
                    assert_eq!(
                        write.await,
                        [headers, CALLS, CALLS, CALLS],
                        "WRITE of {len} bytes to {export}, {proto:?}"
                    );
                    let read = counted(async || {
                        client.read_into(file, 0, client.buffer(len).unwrap()).await.unwrap();
                    });
                    assert_eq!(read.await, [CALLS; 4], "READ of {len} bytes from {export}, {proto:?}");
                }
            });
        }
    }
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}
