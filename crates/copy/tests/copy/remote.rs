//! Copies to a server, with each version of NFS.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use millrace_client::{Client, Proto, TokioRuntime, Url, Version, handles};
use millrace_copy::{
    Directory, Error, Item, LocalTree, Metadata, Options, RemoteTree, Replace, Report, TreeCopy,
};
use millrace_server::{Config, Running, Server};

const FILES: u64 = 40;

fn server() -> Running {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap(), "/small=memory:1MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

fn url(server: &Running, proto: Proto, version: Version, export: &str) -> Url {
    let at = match proto {
        Proto::Rdma => server.rdma_addr().unwrap(),
        Proto::Tcp => server.tcp_addr().unwrap(),
    };
    format!("nfs://{at}/{export}?proto={proto}&vers={version}&wsize=16K").parse().unwrap()
}

/// Creates files of up to 12,000 bytes, and one above the size of one WRITE. Returns their contents.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let sizes = (0..FILES).map(|n| 1 + n * 300).chain([50_000]);
    let file = |(n, size): (usize, u64)| {
        let content: Vec<u8> = (0..size).map(|i| (i * 7 + n as u64) as u8).collect();
        let path = dir.join(format!("file-{n}"));
        fs::write(&path, &content).unwrap();
        let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_000 + n as u64, 5000);
        fs::File::open(path).unwrap().set_modified(time).unwrap();
        (format!("file-{n}"), content)
    };
    sizes.enumerate().map(file).collect()
}

async fn copy(from: &Path, client: &handles::Client) -> Report {
    let (local, remote) = (LocalTree::new(client.arena().clone()), RemoteTree::new(client.clone()));
    let options = Options { recursive: true, ..Options::default() };
    TreeCopy::new(&local, &remote, options).run(vec![Item::local(from, "copy").unwrap()], client.root()).await
}

fn on_all<F: Future<Output = ()>>(test: impl Fn(Box<dyn Fn(&str) -> Url>) -> F) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        for version in [Version::V3, Version::V4_1, Version::V4_2] {
            let server = std::sync::Arc::new(server());
            let tokio =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let at = std::sync::Arc::clone(&server);
            tokio.block_on(test(Box::new(move |export| url(&at, proto, version, export))));
            drop(tokio);
        }
    }
}

#[test]
fn a_tree_is_copied_with_few_calls() {
    let dir = tempfile::tempdir().unwrap();
    let contents = tree(dir.path());
    let (dir, contents) = (&dir, &contents);
    on_all(|url| async move {
        let client = handles::Client::connect(TokioRuntime::current(), &url("data"), Default::default())
            .await
            .unwrap();
        let before = client.stats().calls;
        let report = copy(dir.path(), &client).await;
        let calls = client.stats().calls - before;
        assert!(report.failed.is_empty() && report.files == FILES + 1, "{report:?}");
        // CREATE, WRITE, SETATTR and RENAME for each file, or all of it in one call.
        let each = if client.version() == Version::V3 { 4 } else { 1 };
        assert!((each * FILES..each * FILES + 20).contains(&calls), "{} calls", calls);
        let paths = Client::from(client);
        for (name, content) in contents {
            let path = format!("copy/{name}");
            assert_eq!(&paths.read(&path).await.unwrap(), content, "{name}");
            let (there, here) =
                (paths.metadata(&path).await.unwrap(), fs::metadata(dir.path().join(name)).unwrap());
            assert_eq!(there.modified(), here.modified().unwrap(), "{name}");
            assert_eq!(there.mode(), std::os::unix::fs::MetadataExt::mode(&here) & 0o777, "{name}");
        }
    });
}

#[test]
fn a_full_server_has_no_incomplete_files() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..150 {
        fs::write(dir.path().join(format!("file-{n}")), vec![n as u8; 12_000]).unwrap();
    }
    let dir = &dir;
    on_all(|url| async move {
        let client = handles::Client::connect(TokioRuntime::current(), &url("small"), Default::default())
            .await
            .unwrap();
        let report = copy(dir.path(), &client).await;
        assert!(!report.failed.is_empty() && report.files > 0, "{report:?}");
        let (copies, _) = client.resolve("copy").await.unwrap();
        let entries = client.readdir(copies).await.unwrap();
        let names: Vec<_> = entries.iter().filter(|e| !e.is_dot()).map(|e| e.name_lossy()).collect();
        // The first error stops the copy; a call in flight then may still complete a file.
        assert!(names.len() as u64 >= report.files, "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("file-")), "{names:?}");
        for name in names {
            let (file, attributes) = client.resolve(format!("copy/{name}")).await.unwrap();
            assert_eq!(attributes.size, 12_000, "{name}: {file}");
        }
    });
}

/// The directory `copy` of an export as an object to copy to `name`.
async fn item(client: &handles::Client, path: &str, name: &str) -> Item<millrace_client::ops::FileHandle> {
    let (node, attributes) = client.resolve(path).await.unwrap();
    Item { path: path.into(), name: name.into(), node, meta: (&attributes).into() }
}

#[test]
fn files_of_one_mount_are_copied_by_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let contents = tree(dir.path());
    let (dir, contents) = (&dir, &contents);
    let all: u64 = contents.values().map(|content| content.len() as u64).sum();
    on_all(|url| async move {
        let url = url("data");
        let connect = || handles::Client::connect(TokioRuntime::current(), &url, Default::default());
        let (client, other) = (connect().await.unwrap(), connect().await.unwrap());
        assert!(copy(dir.path(), &client).await.failed.is_empty());
        // Small files are read and written in two calls.
        let by_server = if client.version() == Version::V4_2 { 50_000 } else { 0 };
        for (source, verify, passed) in
            [(&client, false, all - by_server), (&client, true, 2 * all), (&other, false, all)]
        {
            let read = || client.stats().bytes_read + other.stats().bytes_read;
            let before = read();
            let (from, to) = (RemoteTree::new(source.clone()), RemoteTree::new(client.clone()));
            let options = Options { verify, ..Options::default() };
            let items = vec![item(source, "copy", "again").await];
            let report = TreeCopy::new(&from, &to, options).run(items, client.root()).await;
            assert!(report.failed.is_empty() && report.bytes == all, "{report:?}");
            assert_eq!(read() - before, passed, "verify: {verify}");
            let paths = Client::from(client.clone());
            for (name, content) in contents {
                let [one, again] = ["copy", "again"].map(|dir| format!("{dir}/{name}"));
                assert_eq!(&paths.read(&again).await.unwrap(), content, "{name}");
                let times = [paths.metadata(&one).await.unwrap(), paths.metadata(&again).await.unwrap()];
                assert_eq!(times[0].modified(), times[1].modified(), "{name}");
            }
            paths.remove_dir_all("again").await.unwrap();
        }
    });
}

#[test]
fn a_file_that_was_truncated_is_not_copied() {
    on_all(|url| async move {
        let url = url("data");
        let client =
            handles::Client::connect(TokioRuntime::current(), &url, Default::default()).await.unwrap();
        Client::from(client.clone()).write("file", vec![7; 50_000]).await.unwrap();
        let mut item = item(&client, "file", "copy").await;
        item.meta.size += 1;
        let at = RemoteTree::new(client.clone());
        let report = TreeCopy::new(&at, &at, Options::default()).run(vec![item], client.root()).await;
        assert!(matches!(&report.failed[..], [file] if matches!(file.error, Error::Shrunk)), "{report:?}");
        let names = client.readdir(client.root()).await.unwrap();
        assert_eq!(names.iter().filter(|e| !e.is_dot()).count(), 1, "{names:?}");
    });
}

/// NFSv4 has 64 bits for the seconds; NFSv3 has the times of 1970 to 2106.
#[test]
fn times_before_1970_and_after_2106_are_copied_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("from")).unwrap();
    let epoch = std::time::UNIX_EPOCH;
    let times = [
        ("1960", epoch - Duration::new(312_508_800, 5000)),
        ("before", epoch - Duration::from_nanos(1)),
        ("2150", epoch + Duration::new(5_680_281_600, 999_999_999)),
    ];
    for (name, time) in times {
        let file = fs::File::create(dir.path().join("from").join(name)).unwrap();
        file.set_times(fs::FileTimes::new().set_accessed(epoch).set_modified(time)).unwrap();
    }
    let dir = &dir;
    on_all(|url| async move {
        let client = handles::Client::connect(TokioRuntime::current(), &url("data"), Default::default())
            .await
            .unwrap();
        let report = copy(&dir.path().join("from"), &client).await;
        assert!(report.failed.is_empty() && report.files == 3, "{report:?}");
        assert_eq!(report.without_times, if client.version() == Version::V3 { 3 } else { 0 });
        let back = tempfile::tempdir().unwrap();
        let (local, remote) = (LocalTree::new(client.arena().clone()), RemoteTree::new(client.clone()));
        let options = Options { recursive: true, ..Options::default() };
        let items = vec![item(&client, "copy", "back").await];
        let report = TreeCopy::new(&remote, &local, options).run(items, back.path().to_owned()).await;
        assert!(report.failed.is_empty() && report.files == 3 && report.without_times == 0, "{report:?}");
        for (name, time) in times {
            let nearest = time.clamp(epoch, epoch + Duration::from_secs(u32::MAX.into()));
            let expected = if client.version() == Version::V3 { nearest } else { time };
            let copied = fs::metadata(back.path().join("back").join(name)).unwrap();
            assert_eq!(copied.modified().unwrap(), expected, "{name}, {}", client.version());
        }
    });
}

/// Also files whose times the server does not have, with NFSv3, are equal to their copies.
#[test]
fn a_synchronised_server_is_equal_to_its_source_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("sub/below")).unwrap();
    tree(&from.join("sub"));
    let early = std::time::UNIX_EPOCH - Duration::from_nanos(1);
    fs::File::create(from.join("early")).unwrap().set_modified(early).unwrap();
    std::os::unix::fs::symlink("early", from.join("link")).unwrap();
    let from = &from;
    on_all(|url| async move {
        let client = handles::Client::connect(TokioRuntime::current(), &url("data"), Default::default())
            .await
            .unwrap();
        let paths = Client::from(client.clone());
        for dir in ["copy", "copy/extra", "copy/extra/below", "copy/early"] {
            paths.create_dir(dir).await.unwrap();
        }
        for file in ["copy/extra/below/file", "copy/sub", "copy/early/file"] {
            paths.write(file, vec![1; 10]).await.unwrap();
        }
        let (local, remote) = (LocalTree::new(client.arena().clone()), RemoteTree::new(client.clone()));
        let options =
            Options { replace: Replace::Different, delete: true, atomic: true, ..Options::default() };
        let files = FILES + 2;
        for (copied, deleted) in [((files, 1), 6), ((0, 0), 0)] {
            let dry = Options { dry_run: true, ..options.clone() };
            for with in [dry, options.clone()] {
                let items = vec![Item::local(from, "copy").unwrap()];
                let report = TreeCopy::new(&local, &remote, with).run(items, client.root()).await;
                assert!(report.failed.is_empty(), "{report:?}");
                assert_eq!((report.files, report.symlinks), copied, "{report:?}");
                assert_eq!((report.deleted, report.skipped), (deleted, files + 1 - copied.0 - copied.1));
            }
        }
        let back = tempfile::tempdir().unwrap();
        fs::create_dir_all(back.path().join("extra/below")).unwrap();
        let id = Some(Metadata::from(&fs::metadata(back.path()).unwrap()).id);
        for (copied, deleted) in [(files, 2), (0, 0)] {
            let items = vec![item(&client, "copy", "").await];
            let into = Directory { id, ..back.path().to_owned().into() };
            let report = TreeCopy::new(&remote, &local, options.clone()).run(items, into).await;
            assert!(report.failed.is_empty(), "{report:?}");
            assert_eq!((report.files, report.deleted), (copied, deleted), "{report:?}");
        }
        for entry in fs::read_dir(from.join("sub")).unwrap() {
            let (a, name) = (entry.as_ref().unwrap().path(), entry.as_ref().unwrap().file_name());
            let b = back.path().join("sub").join(name);
            assert!(a.is_dir() && b.is_dir() || fs::read(&a).unwrap() == fs::read(b).unwrap(), "{a:?}");
        }
    });
}

#[test]
fn an_existing_file_of_a_server_is_written_in_place_and_a_directory_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["small", "large"] {
        fs::write(dir.path().join(name), name.repeat(10_000)).unwrap();
    }
    let dir = &dir;
    on_all(|url| async move {
        let url = url("data");
        let client =
            handles::Client::connect(TokioRuntime::current(), &url, Default::default()).await.unwrap();
        let paths = Client::from(client.clone());
        paths.create_dir("copy").await.unwrap();
        paths.set_permissions("copy", 0o2775).await.unwrap();
        for (name, other) in [("copy/small", "small"), ("copy/large", "large")] {
            paths.write(name, vec![7; 100_000]).await.unwrap();
            paths.set_permissions(name, 0o664).await.unwrap();
            paths.hard_link(name, other).await.unwrap();
        }
        let (before, _) = client.resolve("copy/small").await.unwrap();
        let report = copy(dir.path(), &client).await;
        assert!(report.failed.is_empty() && report.files == 2, "{report:?}");
        assert_eq!(client.resolve("copy/small").await.unwrap().0, before);
        assert_eq!(paths.metadata("copy").await.unwrap().mode() & 0o7777, 0o2775);
        for name in ["small", "large"] {
            assert!(paths.read(name).await.unwrap() == name.repeat(10_000).as_bytes());
            let there = paths.metadata(name).await.unwrap();
            assert_eq!((there.mode() & 0o7777, there.attributes().nlink), (0o664, 2));
            let here = fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!(there.modified(), here.modified().unwrap());
        }
        // A device of the server is not replaced.
        let what = millrace_client::ops::MknodWhat::Fifo(Default::default());
        client.mknod(client.root(), "fifo", what).await.unwrap();
        let at = RemoteTree::new(client.clone());
        let report = TreeCopy::new(&at, &at, Options::default())
            .run(vec![item(&client, "small", "fifo").await], client.root())
            .await;
        assert!(
            matches!(&report.failed[..], [file] if matches!(file.error, Error::SpecialTarget(_))),
            "{report:?}"
        );
    });
}

#[test]
fn holes_stay_holes_at_a_server_and_on_the_way_back() {
    const SIZE: u64 = 1 << 40;
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("sparse");
    let file = fs::File::create(&from).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 100_000], 1 << 33).unwrap();
    file.set_len(SIZE).unwrap();
    let (dir, from) = (&dir, &from);
    on_all(|url| async move {
        let url = url("data");
        let client =
            handles::Client::connect(TokioRuntime::current(), &url, Default::default()).await.unwrap();
        let report = copy(from, &client).await;
        assert!(report.failed.is_empty() && report.bytes == SIZE, "{report:?}");
        let used = |name: &'static str| {
            let client = client.clone();
            async move {
                let (_, a) = client.resolve(name).await.unwrap();
                assert_eq!(a.size, SIZE);
                a.used
            }
        };
        assert!(used("copy").await <= 1 << 20);
        if client.version() != Version::V4_2 {
            return; // Holes of the server are not known; all of it would be read.
        }
        let at = RemoteTree::new(client.clone());
        let into = |name: &'static str| {
            let client = client.clone();
            async move { vec![item(&client, "copy", name).await] }
        };
        let options = || Options { verify: true, ..Options::default() };
        for options in [Options::default(), options()] {
            let report = TreeCopy::new(&at, &at, options).run(into("again").await, client.root()).await;
            assert!(report.failed.is_empty() && report.bytes == SIZE, "{report:?}");
            assert!(used("again").await <= 1 << 20);
        }
        let local = LocalTree::new(client.arena().clone());
        let to = dir.path().join("back");
        let report =
            TreeCopy::new(&at, &local, options()).run(into("back").await, dir.path().to_owned()).await;
        assert!(report.failed.is_empty() && report.bytes == SIZE, "{report:?}");
        let back = fs::metadata(&to).unwrap();
        assert!(back.len() == SIZE && std::os::unix::fs::MetadataExt::blocks(&back) <= 2048, "{back:?}");
        fs::remove_file(to).unwrap();
    });
}
