//! Copies within the server, compared with a model.

#![allow(clippy::panic)] // Tests fail by panics.

use millrace_client::{Error, Proto, Version, handles::Client};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server};

use super::{config, options, url};

/// Maximum size of a file.
const MAX: u64 = 300_000;
const SEED: u64 = 0x5eed_0018;

async fn client(server: &Running, proto: Proto, path: &str) -> Client {
    let options = options().vers(Some(Version::V4_2)).unstable_limit(64 << 10);
    Client::connect(TokioRuntime::current(), &url(server, proto, path), options).await.unwrap()
}

/// Random writes and copies of two files; some copies have source and destination in one file.
async fn copies_equal_a_model(client: Client, what: &str) {
    let mut random = SEED;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let files =
        [client.create_file("a", 0o600).await.unwrap(), client.create_file("b", 0o600).await.unwrap()];
    let mut models = [Vec::new(), Vec::new()];
    let put = |model: &mut Vec<u8>, at: u64, data: &[u8]| {
        let (start, end) = (at as usize, at as usize + data.len());
        if !data.is_empty() {
            model.resize(model.len().max(end), 0);
            model[start..end].copy_from_slice(data);
        }
    };
    for step in 0..200 {
        let (source, destination) = (next(2) as usize, next(2) as usize);
        let (from, to, len) = (next(MAX), next(MAX), next(60_000));
        let text = format!("seed {SEED:#x}, {what}, step {step}: {source} {from} {destination} {to} {len}");
        if step % 2 == 0 {
            let data = vec![step as u8 + 1; len as usize];
            files[destination].write(to, &data).await.unwrap();
            put(&mut models[destination], to, &data);
        } else {
            let call = files[destination].copy_range(&client, (&files[source], from), to, len).await;
            if source == destination && from < to + len && to < from + len {
                assert!(matches!(call, Err(Error::InvalidInput(_))), "{text}");
                continue;
            }
            let size = models[source].len() as u64;
            let count = call.unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(count, len.min(size.saturating_sub(from)), "{text}");
            let data = models[source][from.min(size) as usize..][..count as usize].to_vec();
            put(&mut models[destination], to, &data);
        }
        for (file, model) in files.iter().zip(&models) {
            let mut data = vec![0; MAX as usize * 2];
            let read = file.read(0, &mut data).await.unwrap();
            assert!(data[..read] == model[..], "{text}: other data");
        }
    }
    // Other clients and the server's storage have the same data.
    for (file, model) in files.iter().zip(&models) {
        file.commit().await.unwrap();
        let mut data = vec![0; MAX as usize * 2];
        let read = client.read(file.handle(), 0, &mut data).await.unwrap();
        assert!(data[..read] == model[..], "{what}");
    }
}

#[test]
fn random_copies_equal_those_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/local=local:{},squash=none", dir.path().display()).parse().unwrap();
    let exports = config().exports.into_iter().chain([local]).collect();
    let server = Server::start(Config { exports, ..config() }).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        for proto in [Proto::Tcp, Proto::Rdma] {
            for path in ["/data", "/local"] {
                let client = client(&server, proto, path).await;
                copies_equal_a_model(client.clone(), &format!("{path} over {proto}")).await;
                client.shutdown().await;
            }
        }
    });
}

#[test]
fn a_copy_of_a_path_passes_through_the_client_only_if_the_server_cannot_copy() {
    super::on_all(|nfs| async move {
        let client = millrace_client::Client::from(nfs.clone());
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 11) as u8).collect();
        client.write("from", &data).await.unwrap();
        let before = nfs.stats();
        assert_eq!(client.copy("from", "to").await.unwrap(), data.len() as u64);
        let passed = nfs.stats().bytes_written - before.bytes_written;
        let expected = if nfs.version() == Version::V4_2 { 0 } else { data.len() as u64 };
        assert_eq!(passed, expected, "{}", nfs.version());
        assert!(client.read("to").await.unwrap() == data);
    });
}

/// The stateids of the opens of locked files are those of COPY.
#[test]
fn locked_files_are_copied() {
    let server = Server::start(config()).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let client = client(&server, Proto::Tcp, "/data").await;
        let from = client.create_file("from", 0o600).await.unwrap();
        let to = client.create_file("to", 0o600).await.unwrap();
        from.write(0, b"locked").await.unwrap();
        from.lock(1, 0..u64::MAX, millrace_client::LockKind::Shared).await.unwrap();
        to.lock(1, 0..u64::MAX, millrace_client::LockKind::Exclusive).await.unwrap();
        assert_eq!(to.copy_range(&client, (&from, 0), 0, 6).await.unwrap(), 6);
        let mut data = [0; 6];
        to.read(0, &mut data).await.unwrap();
        assert_eq!(&data, b"locked");
        client.shutdown().await;
    });
}
