//! The cases of OpenDAL's behaviour tests for the capabilities of the service, over TCP and RDMA, with NFSv3 and 4.2, in
//! memory and in a local directory. OpenDAL's tests (`core/tests/behavior` of its repository) are in no published crate,
//! so these are written anew.
//!
//! | module | cases |
//! |---|---|
//! | `files` | stat, create_dir, write, writer (pieces, concurrent, sink, abort, overwrite, metadata), if_not_exists, if_match, read (full, ranges, suffix, streams, reader, missing, directory) |
//! | `names` | copy, copier and rename (new, nested, overwrite, self, missing, directories, if_not_exists), delete (missing, empty directory, iterator, recursive) |
//! | `lists` | lists of directories, prefixes, files, empty and missing directories, nested, recursive, root |

#![allow(clippy::unwrap_used, clippy::panic)] // Tests, not input from a peer.

mod files;
mod lists;
mod names;

use std::time::Duration;

use millrace_opendal::Operator;
use millrace_server::{Config, ExportConfig, Server, Squash};
use opendal_core::{Error, ErrorKind};

/// Each transport with each version of NFS on a memory export, and each transport on a local directory.
const PLACES: [(&str, &str, bool); 6] = [
    ("tcp", "3", false),
    ("tcp", "4.2", false),
    ("rdma", "3", false),
    ("rdma", "4.2", false),
    ("tcp", "4.2", true),
    ("rdma", "3", true),
];

/// Runs `test` in all places, on an empty directory of a new server.
fn on_all<F: Future<Output = ()>>(test: impl Fn(Operator) -> F) {
    for (proto, version, local) in PLACES {
        let directory = tempfile::tempdir().unwrap();
        let backend =
            if local { format!("local:{}", directory.path().display()) } else { "memory:256MiB".into() };
        let export = ExportConfig { squash: Squash::None, ..format!("/data={backend}").parse().unwrap() };
        let config = Config {
            exports: vec![export],
            listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
            listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
            shards: Some(1),
            ..Config::default()
        };
        let server = Server::start(config).unwrap();
        let address = if proto == "tcp" { server.tcp_addr() } else { server.rdma_addr() }.unwrap();
        let url = format!("nfs://{address}/data/store?proto={proto}&vers={version}");
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tokio.block_on(async {
            let op = millrace_opendal::connect(&url).await.unwrap();
            // NFSv3 has no locks.
            assert_eq!(op.info().capability().write_with_if_match, version != "3");
            test(op).await;
        });
        drop(tokio);
        server.stop_blocking(Duration::from_secs(1));
    }
}

/// The kind of the error of an operation that must fail.
fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.err().unwrap().kind()
}

/// Bytes that differ at all distances up to 2^24.
fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8 ^ seed).collect()
}

/// Asserts the content of a file.
async fn assert_content(op: &Operator, path: &str, expected: &[u8]) {
    let read = op.read(path).await.unwrap().to_vec();
    assert!(read == expected, "{path}: {} bytes instead of {}", read.len(), expected.len());
}
