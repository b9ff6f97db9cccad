//! Extended attributes of users, and what copies do not keep.

use std::{fs, path::Path};

use millrace_client::{Client, TokioRuntime, Url, Version, handles, ops::FileHandle};
use millrace_copy::{Item, LocalTree, Options, Preserve, RemoteTree, Report, TreeCopy};
use millrace_nfs::v4::Operation;
use millrace_server::{Config, Running, Server};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use tokio::runtime::Runtime;

/// One file fits in one WRITE, the other one does not.
const FILES: [(&str, usize); 2] = [("small", 100), ("large", 50_000)];

fn server() -> Running {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

async fn connect(server: &Running, version: Version) -> handles::Client {
    let at = server.tcp_addr().unwrap();
    let url: Url = format!("nfs://{at}/data?proto=tcp&vers={version}&wsize=16K").parse().unwrap();
    handles::Client::connect(TokioRuntime::current(), &url, Default::default()).await.unwrap()
}

fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    let set = setxattr(path, name, value, XattrFlags::empty());
    if let Err(e) = set {
        eprintln!("SKIPPED, NOTHING WAS TESTED: {name} of {} cannot be set: {e}", path.display());
    }
    set.is_ok()
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 1000];
    getxattr(path, name, &mut value[..]).ok().map(|size| value[..size].to_vec())
}

/// A directory with files, and with attributes of each and of a file of the server; `None` if the file system has none.
fn tree() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let mut all = vec![dir.path().to_owned()];
    for (name, size) in FILES {
        let path = dir.path().join(name);
        fs::write(&path, vec![7; size]).unwrap();
        all.push(path);
    }
    let has = all.iter().all(|path| set(path, "user.k", b"\0value") && set(path, "user.empty", b""));
    (has && set(&all[1], "user.millrace.own", b"of a server")).then_some(dir)
}

fn with_xattrs() -> Options {
    Options { preserve: Preserve { xattrs: true, ..Preserve::default() }, ..Options::default() }
}

async fn to_server(from: &Path, client: &handles::Client, options: Options) -> Report {
    let (local, remote) = (LocalTree::new(client.arena().clone()), RemoteTree::new(client.clone()));
    let items = vec![Item::local(from, "copy").unwrap()];
    TreeCopy::new(&local, &remote, options).run(items, client.root()).await
}

async fn item(client: &handles::Client, path: &str, name: &str) -> Item<FileHandle> {
    let (node, attributes) = client.resolve(path).await.unwrap();
    Item { path: path.into(), name: name.into(), node, meta: (&attributes).into() }
}

fn assert_complete(report: &Report) {
    assert!(report.failed.is_empty() && report.files == 2, "{report:?}");
    assert_eq!((report.without_xattrs, report.without_acl), (0, 0));
}

async fn assert_server_has(client: &handles::Client, dir: &str) {
    let paths = Client::from(client.clone());
    for path in [dir.to_owned(), format!("{dir}/small"), format!("{dir}/large")] {
        let mut names = paths.list_xattrs(&path).await.unwrap();
        names.sort();
        assert_eq!(names, [&b"empty"[..], b"k"], "{path}");
        assert_eq!(paths.xattr(&path, "k").await.unwrap().as_deref(), Some(&b"\0value"[..]), "{path}");
    }
}

#[test]
fn attributes_are_kept_in_all_directions() {
    let Some(from) = tree() else { return };
    let (one, other) = (server(), server());
    Runtime::new().unwrap().block_on(async {
        let (client, far) = (connect(&one, Version::V4_2).await, connect(&other, Version::V4_2).await);
        assert_complete(&to_server(from.path(), &client, with_xattrs()).await);
        assert_server_has(&client, "copy").await;
        // Existing files get the attributes, too.
        Client::from(client.clone()).remove_xattr("copy/small", "k").await.unwrap();
        assert_complete(&to_server(from.path(), &client, with_xattrs()).await);
        assert_server_has(&client, "copy").await;

        let source = RemoteTree::new(client.clone());
        for to in [&client, &far] {
            let into = RemoteTree::new(to.clone());
            let items = vec![item(&client, "copy", "again").await];
            let report = TreeCopy::new(&source, &into, with_xattrs()).run(items, to.root()).await;
            assert_complete(&report);
            assert_server_has(to, "again").await;
        }

        let back = tempfile::tempdir().unwrap();
        let local = LocalTree::new(client.arena().clone());
        for _ in ["new files", "existing files"] {
            let items = vec![item(&client, "copy", "back").await];
            let copy = TreeCopy::new(&source, &local, with_xattrs());
            assert_complete(&copy.run(items, back.path().to_owned()).await);
        }
        for path in ["back", "back/small", "back/large"] {
            let path = back.path().join(path);
            assert_eq!(get(&path, "user.k").as_deref(), Some(&b"\0value"[..]), "{}", path.display());
            assert_eq!(get(&path, "user.empty").as_deref(), Some(&b""[..]), "{}", path.display());
        }
    });
}

#[test]
fn without_the_option_the_report_counts_local_objects_and_the_server_is_not_asked() {
    let Some(from) = tree() else { return };
    let server = server();
    Runtime::new().unwrap().block_on(async {
        let client = connect(&server, Version::V4_2).await;
        let report = to_server(from.path(), &client, Options::default()).await;
        assert!(report.failed.is_empty() && report.files == 2, "{report:?}");
        assert_eq!((report.without_xattrs, report.without_acl), (3, 0));
        assert!(Client::from(client.clone()).list_xattrs("copy/small").await.unwrap().is_empty());
        let (source, local) = (RemoteTree::new(client.clone()), LocalTree::new(client.arena().clone()));
        let back = tempfile::tempdir().unwrap();
        let items = vec![item(&client, "copy", "back").await];
        TreeCopy::new(&source, &local, Options::default()).run(items, back.path().to_owned()).await;
        let stats = server.stats();
        let asked = stats.operations_of(Operation::Getxattr) + stats.operations_of(Operation::Setxattr);
        // One list by this test.
        assert_eq!((asked, stats.operations_of(Operation::Listxattrs)), (0, 1));
    });
}

#[test]
fn a_target_without_attributes_is_reported() {
    let Some(from) = tree() else { return };
    let server = server();
    Runtime::new().unwrap().block_on(async {
        let client = connect(&server, Version::V3).await;
        let report = to_server(from.path(), &client, with_xattrs()).await;
        assert!(report.failed.is_empty() && report.files == 2, "{report:?}");
        assert_eq!(report.without_xattrs, 3);
    });
}

#[test]
fn access_control_lists_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();
    // Version 2; entries of the owner, the user 1234, the group, the mask and others: tag, rights, ID.
    let entries =
        [(1_u16, 6_u16, u32::MAX), (2, 4, 1234), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 4, u32::MAX)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(rights.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    if !set(&path, "system.posix_acl_access", &acl) {
        return;
    }
    let server = server();
    Runtime::new().unwrap().block_on(async {
        let client = connect(&server, Version::V4_2).await;
        for options in [Options::default(), with_xattrs()] {
            let report = to_server(&path, &client, options).await;
            assert!(report.failed.is_empty() && report.files == 1, "{report:?}");
            assert_eq!((report.without_xattrs, report.without_acl), (0, 1));
        }
    });
}
