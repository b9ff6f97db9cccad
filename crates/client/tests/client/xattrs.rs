//! Extended attributes through paths, files and handles, over both transports.

use std::{collections::BTreeMap, io::ErrorKind};

use millrace_client::{Client, Error, Proto, SetxattrOption, Version};
use millrace_nfs::v4::Status;
use millrace_server::{Config, Running, Server};

use crate::common;

/// A server with a memory export and a local one.
fn server(dir: &std::path::Path) -> Running {
    let local = format!("/local=local:{},squash=none", dir.display());
    let config = Config {
        exports: vec!["/memory=memory:64MiB".parse().unwrap(), local.parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

fn run(test: impl AsyncFn(Client)) {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (proto, export) in
        [(Proto::Tcp, "memory"), (Proto::Rdma, "memory"), (Proto::Tcp, "local"), (Proto::Rdma, "local")]
    {
        tokio.block_on(async {
            let client = Client::connect(common::url(&server, proto, export)).await.unwrap();
            assert!(client.by_handle().has_xattrs());
            test(client.clone()).await;
            client.shutdown().await;
        });
    }
}

async fn all(client: &Client, path: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in client.list_xattrs(path).await.unwrap() {
        let value = client.xattr(path, &name).await.unwrap().unwrap();
        all.insert(name, value);
    }
    all
}

#[test]
fn attributes_of_files_and_directories_equal_a_model() {
    run(async |client| {
        client.write("file", "content").await.unwrap();
        let _ = client.create_dir("dir").await;
        for path in ["file", "dir"] {
            let mut model = BTreeMap::new();
            for n in 0..20_u8 {
                let (name, value) = (format!("name {n}").into_bytes(), vec![n; usize::from(n) * 11]);
                client.set_xattr(path, &name, &value).await.unwrap();
                model.insert(name, value);
            }
            client.set_xattr(path, "name 3", "replaced").await.unwrap();
            model.insert(b"name 3".to_vec(), b"replaced".to_vec());
            client.remove_xattr(path, "name 4").await.unwrap();
            model.remove(&b"name 4"[..]);
            assert_eq!(all(&client, path).await, model, "{path}");
            assert_eq!(client.xattr(path, "name 4").await.unwrap(), None);
            let again = client.remove_xattr(path, "name 4").await.unwrap_err();
            assert_eq!(again.kind(), ErrorKind::NotFound);
            assert_eq!(
                again.to_string(),
                format!("REMOVEXATTR user.name 4 of {path}: the attribute does not exist")
            );
        }
    });
}

#[test]
fn open_files_have_the_attributes_of_their_paths() {
    run(async |client| {
        let file = client.create("f").await.unwrap();
        file.set_xattr("k", "v").await.unwrap();
        assert_eq!(client.xattr("f", "k").await.unwrap().as_deref(), Some(&b"v"[..]));
        assert_eq!(file.list_xattrs().await.unwrap(), [b"k"]);
        client.set_xattr("f", "k", "w").await.unwrap();
        assert_eq!(file.xattr("k").await.unwrap().as_deref(), Some(&b"w"[..]));
        file.remove_xattr("k").await.unwrap();
        assert!(client.list_xattrs("f").await.unwrap().is_empty());
    });
}

#[test]
fn options_of_setxattr_decide_whether_it_creates_or_replaces() {
    run(async |client| {
        let _ = client.remove_file("f").await; // Of the other transport.
        client.write("f", "").await.unwrap();
        let (protocol, file) = (client.by_handle(), client.by_handle().resolve("f").await.unwrap().0);
        let set = async |value: &str, option| {
            protocol.set_xattr(file, "k", value.as_bytes(), option).await.map(|wcc| wcc.after)
        };
        let status = |e: Error| match e {
            Error::Xattr { status, .. } => status,
            e => panic!("{e}"),
        };
        let none = set("1", SetxattrOption::Replace).await.unwrap_err();
        assert_eq!(status(none), Status::NoXattr);
        let after = set("1", SetxattrOption::Create).await.unwrap();
        assert!(after.is_some(), "the attributes after the change");
        assert_eq!(status(set("2", SetxattrOption::Create).await.unwrap_err()), Status::Exist);
        set("3", SetxattrOption::Replace).await.unwrap();
        assert_eq!(client.xattr("f", "k").await.unwrap().as_deref(), Some(&b"3"[..]));
    });
}

#[test]
fn long_values_pass_and_too_long_values_fail() {
    run(async |client| {
        client.write("f", "").await.unwrap();
        let is_memory = client.by_handle().export().contains("memory");
        for len in [0, 1, 3000, 64 << 10] {
            let value: Vec<u8> = (0..len).map(|i: usize| (i * 7 % 251) as u8).collect();
            match client.set_xattr("f", "k", &value).await {
                Ok(()) => assert!(client.xattr("f", "k").await.unwrap().unwrap() == value, "{len} bytes"),
                Err(e) => assert!(len > 3000 && !is_memory, "{len} bytes: {e}"),
            }
        }
        let longer = client.set_xattr("f", "k", vec![1; (64 << 10) + 1]).await.unwrap_err();
        assert_eq!(longer.kind(), ErrorKind::ArgumentListTooLong);
        assert_eq!(longer.to_string(), "SETXATTR user.k of f: the value is too long for the server");
    });
}

#[test]
fn long_lists_are_read_page_by_page() {
    run(async |client| {
        if !client.by_handle().export().contains("memory") {
            return; // Few local file systems store 50 KiB of names.
        }
        client.write("f", "").await.unwrap();
        let mut names: Vec<_> = (0..220_u32).map(|n| format!("{n:0240}").into_bytes()).collect();
        for name in &names {
            client.set_xattr("f", name, "").await.unwrap();
        }
        let mut listed = client.list_xattrs("f").await.unwrap();
        listed.sort();
        names.sort();
        assert!(listed == names, "{} names", listed.len());
    });
}

#[test]
fn earlier_versions_have_no_extended_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        for version in [Version::V3, Version::V4_1] {
            let url = common::url(&server, Proto::Tcp, "memory");
            let client = Client::builder(&url).vers(Some(version)).connect().await.unwrap();
            client.write("f", "").await.unwrap();
            assert!(!client.by_handle().has_xattrs());
            for error in [
                client.xattr("f", "k").await.unwrap_err(),
                client.set_xattr("f", "k", "v").await.unwrap_err(),
                client.list_xattrs("f").await.unwrap_err(),
                client.remove_xattr("f", "k").await.unwrap_err(),
            ] {
                assert_eq!(
                    error.to_string(),
                    "access to extended attributes requires NFSv4.2; mount with vers=4.2"
                );
                assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
            client.shutdown().await;
        }
    });
}
