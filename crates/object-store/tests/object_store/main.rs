//! The store on a server in this process, over TCP and RDMA, with NFSv3 and 4.2, in memory and in a local directory.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests, not input from a peer.

mod concurrent;
mod others;
mod semantics;

use std::{sync::Arc, time::Duration};

use millrace_object_store::{Client, NfsStore};
use millrace_server::{Config, Delegations, ExportConfig, Running, Server, Squash};
use object_store::integration;

/// Each transport with each version of NFS on a memory export, and each transport on a local directory.
const PLACES: [(&str, &str, bool); 6] = [
    ("tcp", "3", false),
    ("tcp", "4.2", false),
    ("rdma", "3", false),
    ("rdma", "4.2", false),
    ("tcp", "4.2", true),
    ("rdma", "3", true),
];

/// A server with one export.
fn server(backend: &str, delegations: Delegations) -> Running {
    let export =
        ExportConfig { squash: Squash::None, delegations, ..format!("/data={backend}").parse().unwrap() };
    let config = Config {
        exports: vec![export],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

/// Runs `test` in all places, with a function from a directory to its URL.
fn on_all<F: Future<Output = ()>>(test: impl Fn(Box<dyn Fn(&str) -> String>) -> F) {
    for (proto, version, local) in PLACES {
        let directory = tempfile::tempdir().unwrap();
        let backend = match local {
            true => format!("local:{}", directory.path().display()),
            false => "memory:256MiB".into(),
        };
        let server = server(&backend, Delegations::None);
        let address = if proto == "tcp" { server.tcp_addr() } else { server.rdma_addr() }.unwrap();
        let url =
            move |directory: &str| format!("nfs://{address}/data/{directory}?proto={proto}&vers={version}");
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tokio.block_on(test(Box::new(url)));
        drop(tokio);
        server.stop_blocking(Duration::from_secs(1));
    }
}

/// A store of an empty directory.
async fn store(url: &dyn Fn(&str) -> String, directory: &str) -> NfsStore {
    NfsStore::new(Client::connect(url(directory)).await.unwrap())
}

/// The names of all files of a store, including temporary ones.
async fn files(store: &NfsStore) -> Vec<String> {
    let mut names = Vec::new();
    let mut todo = vec![store.client().path_in_export().to_owned()];
    while let Some(directory) = todo.pop() {
        let mut entries = store.client().read_dir(&directory).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            let path = entry.path().to_str().unwrap().to_owned();
            if entry.metadata().is_dir() { todo.push(path.into()) } else { names.push(path) }
        }
    }
    names.sort();
    names
}

/// The files, when there are `count`: the client removes temporary ones in the background.
async fn files_left(store: &NfsStore, count: usize) -> Vec<String> {
    let mut left = files(store).await;
    for _ in 0..10_000 {
        if left.len() == count {
            break;
        }
        left = files(store).await;
    }
    left
}

/// The tests of object_store for implementations, except those of attributes and of traits that `NfsStore` does not
/// implement (`MultipartStore`, `PaginatedListStore`).
#[test]
fn integration_tests_of_object_store() {
    on_all(|url| async move {
        let url = &*url;
        integration::put_get_delete_list(&store(url, "put_get_delete_list").await).await;
        integration::put_get_attributes(&store(url, "put_get_attributes").await).await;
        integration::get_opts(&store(url, "get_opts").await).await;
        let has_locks = !url("").ends_with("vers=3");
        integration::put_opts(&store(url, "put_opts").await, has_locks).await;
        integration::stream_get(&store(url, "stream_get").await).await;
        integration::list_uses_directories_correctly(&store(url, "directories").await).await;
        integration::list_with_delimiter(&store(url, "list_with_delimiter").await).await;
        integration::list_with_offset_exclusivity(&store(url, "list_with_offset").await).await;
        let missing = integration::get_nonexistent_object(&store(url, "missing").await, None).await;
        assert!(matches!(missing, Err(object_store::Error::NotFound { .. })), "{missing:?}");
        integration::rename_and_copy(&store(url, "rename_and_copy").await).await;
        integration::copy_if_not_exists(&store(url, "copy_if_not_exists").await).await;
        integration::copy_rename_nonexistent_object(&store(url, "copy_nonexistent").await).await;
        integration::multipart_race_condition(&store(url, "multipart_race").await, true).await;
        integration::multipart_out_of_order(&store(url, "multipart_out_of_order").await).await;

        // Nothing is left of all these uploads.
        let everything = files(&store(url, "").await).await;
        assert!(everything.iter().all(|name| !name.contains(".millrace-")), "{everything:?}");
    });
}

/// An `Arc` of the store, as callers share it.
fn shared(store: &NfsStore) -> Arc<dyn object_store::ObjectStore> {
    Arc::new(store.clone())
}
