//! The server decodes each call once and looks up its export once. This test has its own process, because it
//! reads process-wide counters.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use millrace_client::{Options, Proto, Url, Version, handles::Client, ops::StableHow};
use millrace_nfs::call_counts::{COMPOUNDS_DECODED, HANDLES_DECODED, OPERATIONS_DECODED};
use millrace_oncrpc::call_counts::{HEADERS_DECODED, PROGRAM_LOOKUPS};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{
    Config, Server,
    call_counts::{EXPORT_LOOKUPS, TABLE_LOADS},
};

const CALLS: u64 = 20;
/// Sizes that are sent inline and in chunks over RDMA.
const LENGTHS: [usize; 2] = [512, 256 << 10];

/// The work for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Work {
    headers: u64,
    programs: u64,
    compounds: u64,
    operations: u64,
    handles: u64,
    tables: u64,
    exports: u64,
}

impl Work {
    /// The work for a call of NFSv3.
    const V3: Self =
        Self { headers: 1, programs: 1, compounds: 0, operations: 0, handles: 1, tables: 1, exports: 1 };

    /// The work for a COMPOUND of this many operations on one file.
    const fn of_compound(operations: u64) -> Self {
        Self { compounds: 1, operations, ..Self::V3 }
    }

    /// What is added by finding the position of the data in a large call over TCP before it is complete, from its header
    /// and this many operations.
    fn and_of_prefix(self, proto: Proto, len: usize, operations: u64) -> Self {
        if proto != Proto::Tcp || len <= 64 << 10 {
            return self;
        }
        Self {
            headers: self.headers + 1,
            programs: self.programs + 1,
            compounds: 2 * self.compounds,
            operations: self.operations + operations,
            ..self
        }
    }
}

/// The work for each of `CALLS` calls.
async fn counted(mut call: impl AsyncFnMut()) -> Work {
    let counters: [&AtomicU64; 7] = [
        &HEADERS_DECODED,
        &PROGRAM_LOOKUPS,
        &COMPOUNDS_DECODED,
        &OPERATIONS_DECODED,
        &HANDLES_DECODED,
        &TABLE_LOADS,
        &EXPORT_LOOKUPS,
    ];
    let counts = || counters.map(|counter| counter.load(Ordering::Relaxed));
    let before = counts();
    for _ in 0..CALLS {
        call().await;
    }
    let after = counts();
    let [headers, programs, compounds, operations, handles, tables, exports] = std::array::from_fn(|n| {
        let increase = after[n] - before[n];
        assert_eq!(increase % CALLS, 0, "counter {n} for {CALLS} equal calls");
        increase / CALLS
    });
    Work { headers, programs, compounds, operations, handles, tables, exports }
}

#[test]
fn a_call_is_decoded_once_and_looks_up_one_export() {
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
                // SEQUENCE, PUTFH, READ; SEQUENCE, PUTFH, WRITE, GETATTR. In the large WRITE the first three are found.
                check(&url, Version::V3, [Work::V3, Work::V3], 0).await;
                check(&url, Version::V4_2, [Work::of_compound(3), Work::of_compound(4)], 3).await;
            });
        }
    }
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}

/// Checks the work for READ and WRITE. `in_prefix` is the number of operations up to the data of WRITE.
async fn check(url: &Url, version: Version, [read_work, write_work]: [Work; 2], in_prefix: u64) {
    let client =
        Client::connect(TokioRuntime::current(), url, Options::default().vers(Some(version))).await.unwrap();
    let (export, proto) = (url.path.display(), url.proto.unwrap());
    let file = client.create_file("f", 0o600).await.unwrap().handle();
    for len in LENGTHS {
        let data = client.buffer(len).unwrap().freeze();
        let write = counted(async || {
            client.write_from(file, 0, data.clone().into(), StableHow::Unstable).await.unwrap();
        });
        assert_eq!(
            write.await,
            write_work.and_of_prefix(proto, len, in_prefix),
            "{version:?}: WRITE of {len} bytes to {export}, {proto:?}"
        );
        let read = counted(async || {
            client.read_into(file, 0, client.buffer(len).unwrap()).await.unwrap();
        });
        assert_eq!(read.await, read_work, "{version:?}: READ of {len} bytes from {export}, {proto:?}");
    }
}
