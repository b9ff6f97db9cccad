//! The client against the real server, in one process, over both transports.

use std::{net::SocketAddr, time::Duration};

use millrace_client::{
    Error, Options, Proto, ProviderChoice, RetryPolicy, Url, Version,
    handles::Client,
    ops::{CreateHow, FileType, SetAttributes, SetTime, StableHow, Status, access},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server};

use crate::common::{VERSIONS, rdma_at};

mod attributes_before;
mod busy_poll;
mod copies;

fn config() -> Config {
    let (at, provider) = rdma_at();
    Config {
        exports: vec!["/data=memory:256MiB".parse().unwrap(), "/data/deep=memory:16MiB".parse().unwrap()],
        listen_rdma: vec![SocketAddr::new(at, 0)],
        provider,
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    }
}

fn url(server: &Running, proto: Proto, path: &str) -> Url {
    let addr = match proto {
        Proto::Rdma => server.rdma_addr().unwrap(),
        Proto::Tcp => server.tcp_addr().unwrap(),
    };
    Url { port: Some(addr.port()), proto: Some(proto), ..Url::new(addr.ip().to_string(), path) }
}

fn options() -> Options {
    Options::default()
        .nconnect(2)
        .timeout(Duration::from_secs(20))
        .retry(RetryPolicy { max_elapsed: Duration::from_secs(20), ..RetryPolicy::default() })
}

/// Runs `test` on a fresh server with each version, over TCP and RDMA.
fn on_all<F: Future<Output = ()>>(test: impl Fn(Client) -> F) {
    for (proto, version) in [Proto::Tcp, Proto::Rdma]
        .into_iter()
        .flat_map(|proto| [Version::V3, Version::V4_1, Version::V4_2].map(|v| (proto, v)))
    {
        let server = Server::start(config()).unwrap();
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        tokio.block_on(async {
            let options = options().vers(Some(version));
            let url = url(&server, proto, "/data");
            let client = Client::connect(TokioRuntime::current(), &url, options).await.unwrap();
            test(client.clone()).await;
            client.close();
        });
        drop(tokio);
        server.stop_blocking(Duration::from_secs(1));
    }
}

/// Bytes with a pattern that reveals displaced or missing parts.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn objects_are_created_found_changed_and_removed() {
    on_all(|c| async move {
        let root = c.root();
        let dir = c
            .mkdir(root, "dir", SetAttributes { mode: Some(0o755), ..SetAttributes::default() })
            .await
            .unwrap();
        assert_eq!((dir.attributes.file_type, dir.attributes.mode & 0o777), (FileType::Directory, 0o755));
        let how = CreateHow::Guarded(SetAttributes { mode: Some(0o640), ..SetAttributes::default() });
        let file = c.create(dir.handle, "file", how).await.unwrap();
        let again = c.create(dir.handle, "file", how).await.unwrap_err();
        assert_eq!(again.status(), Some(Status::Exist));
        assert_eq!(again.to_string(), "CREATE \"file\": the file exists (NFSERR_EXIST)");

        c.symlink(dir.handle, "link", "../dir/file", SetAttributes::default()).await.unwrap();
        let (found, _) = c.resolve("dir/link").await.unwrap();
        assert_eq!(found, file.handle);
        let (link, attributes) = c.resolve_link("/dir/./link").await.unwrap();
        assert_eq!(attributes.file_type, FileType::Symlink);
        assert_eq!(c.readlink(link).await.unwrap(), b"../dir/file");

        c.link(file.handle, root, "hard").await.unwrap();
        assert_eq!(c.getattr(file.handle).await.unwrap().nlink, 2);
        c.rename(root, "hard", dir.handle, "renamed").await.unwrap();
        assert!(c.lookup(root, "hard").await.unwrap_err().is_not_found());

        let set = SetAttributes {
            mode: Some(0o600),
            size: Some(7),
            mtime: SetTime::ServerTime,
            ..SetAttributes::default()
        };
        c.setattr(file.handle, set, None).await.unwrap();
        let now = c.getattr(file.handle).await.unwrap();
        assert_eq!((now.size, now.mode & 0o777), (7, 0o600));
        assert_eq!(c.access(file.handle, access::READ).await.unwrap(), access::READ);

        assert_eq!(c.rmdir(root, "dir").await.unwrap_err().status(), Some(Status::NotEmpty));
        for name in ["file", "link", "renamed"] {
            c.remove(dir.handle, name).await.unwrap();
        }
        c.rmdir(root, "dir").await.unwrap();
        assert!(c.fsstat(root).await.unwrap().total_bytes >= 256 << 20);
        assert!(c.pathconf(root).await.unwrap().name_max >= 255);
    });
}

#[test]
fn data_of_every_size_is_read_as_written() {
    on_all(|c| async move {
        let file = c.create_file("f", 0o644).await.unwrap();
        for len in [0, 1, 3, 511, 4095, 4097, 65_536, 1_048_577, 3_000_001] {
            let data = pattern(len);
            let h = file.handle();
            c.setattr(h, SetAttributes { size: Some(0), ..SetAttributes::default() }, None).await.unwrap();
            let w = c.write(h, 5, &data, StableHow::FileSync).await.unwrap();
            assert_eq!((w.count, w.committed), (len, StableHow::FileSync));
            let mut back = vec![0xaa; len + 10];
            let n = c.read(h, 5, &mut back).await.unwrap();
            assert_eq!(n, len);
            assert!(back[..n] == data, "{len} bytes differ");
        }
    });
}

#[test]
fn a_read_returns_the_given_buffer() {
    on_all(|c| async move {
        let data = pattern(300_000);
        let file = c.create_file("f", 0o644).await.unwrap();
        c.write(file.handle(), 0, &data, StableHow::FileSync).await.unwrap();
        let buffer = c.buffer(262_144).unwrap();
        let address = buffer.address();
        let r = c.read_into(file.handle(), 100_000, buffer).await.unwrap();
        assert_eq!((r.count, r.eof, r.buffer.len()), (200_000, true, 200_000));
        assert!(r.buffer[..] == data[100_000..]);
        if c.options().proto == Some(Proto::Rdma) {
            assert_eq!(r.buffer.address(), address);
        }
        let past = c.read_into(file.handle(), 1 << 40, c.buffer(100).unwrap()).await.unwrap();
        assert_eq!((past.count, past.eof), (0, true));
    });
}

#[test]
fn streams_transfer_a_whole_file_in_order() {
    on_all(|c| async move {
        let data = pattern(10_000_019);
        let file = c.create_file("big", 0o644).await.unwrap();
        let mut at = 0;
        let written = file
            .write_stream(0, 8, |max| {
                if at == data.len() {
                    return Ok(None);
                }
                let n = max.min(data.len() - at).min(700_001);
                let view = c.arena().copy_from(&data[at..at + n]).unwrap();
                at += n;
                Ok(Some(view.into()))
            })
            .await
            .unwrap();
        assert_eq!((written, file.retained_bytes()), (data.len() as u64, 0));
        let mut back = Vec::new();
        let n = c
            .open("/big")
            .await
            .unwrap()
            .read_stream(0, u64::MAX, 8, |offset, views| {
                assert_eq!(offset, back.len() as u64);
                back.extend(views.to_vec());
            })
            .await
            .unwrap();
        assert_eq!(n, data.len() as u64);
        assert!(back == data);
        let mut part = Vec::new();
        file.read_stream(1234, 3_000_000, 3, |_, v| part.extend(v.to_vec())).await.unwrap();
        assert!(part == data[1234..3_001_234]);
        let mut pieces = 0;
        file.read_stream(0, u64::MAX, 4, |_, _| {
            pieces += 1;
            std::ops::ControlFlow::Break(())
        })
        .await
        .unwrap();
        assert_eq!(pieces, 1);
        let mut taken = 0;
        let full = file.read_stream(0, u64::MAX, 4, |_, v| {
            taken += v.len();
            if taken > 2_000_000 { Err(std::io::Error::other("the shelf is full")) } else { Ok(()) }
        });
        let e = full.await.unwrap_err();
        assert!(matches!(e, Error::Sink(_)) && e.to_string().contains("the shelf is full"), "{e}");
    });
}

#[test]
fn a_large_directory_is_listed_completely() {
    on_all(|c| async move {
        let dir = c.mkdir(c.root(), "many", SetAttributes::default()).await.unwrap().handle;
        let how = CreateHow::Unchecked(SetAttributes::default());
        let names: Vec<String> = (0..1200).map(|n| format!("file-with-a-long-name-{n:05}")).collect();
        for chunk in names.chunks(50) {
            let calls = chunk.iter().map(|n| c.create(dir, n, how));
            futures::future::try_join_all(calls).await.unwrap();
        }
        let entries = c.readdir(dir).await.unwrap();
        let mut found: Vec<_> =
            entries.iter().filter(|e| !e.is_dot()).map(|e| e.name_lossy().into_owned()).collect();
        found.sort();
        assert_eq!(found, names);
        let some = entries.iter().find(|e| e.name == b"file-with-a-long-name-00007").unwrap();
        let looked_up = c.lookup(dir, &some.name).await.unwrap();
        assert_eq!(some.handle, Some(looked_up.handle));
        assert_eq!(some.fileid, looked_up.attributes.fileid);
    });
}

#[test]
fn the_longest_export_that_contains_the_path_is_mounted() {
    for (proto, version) in [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| VERSIONS.map(|v| (p, v))) {
        let server = Server::start(config()).unwrap();
        let connect = |path: &str| {
            let url = url(&server, proto, path);
            millrace_client::handles::blocking::Client::connect(&url, options().vers(Some(version)))
        };
        for (path, export, rest) in [
            ("/data", "/data", ""),
            ("/data/a/b", "/data", "a/b"),
            ("/data/deep/x/", "/data/deep", "x"),
            ("//data/./deeper", "/data", "deeper"),
        ] {
            let c = connect(path).unwrap();
            assert_eq!((c.inner().export(), c.path_in_export()), (export, rest.as_bytes()), "{path}");
        }
        let e = connect("/other").map(drop).unwrap_err();
        assert!(matches!(e, Error::UnknownExport { .. }), "{e}");
        // An NFSv4 server shows the exports in a tree: the first components of their names.
        let names = if version == Version::V3 { "/data, /data/deep" } else { "/data" };
        assert!(e.to_string().contains(names), "{e}");
        let list = millrace_client::blocking::exports(&url(&server, proto, "/"), &options()).unwrap();
        assert_eq!(
            list.iter().map(|(n, _)| n.to_str().unwrap()).collect::<Vec<_>>(),
            ["/data", "/data/deep"]
        );
        server.stop_blocking(Duration::from_secs(1));
    }
}

#[test]
fn a_path_with_a_loop_or_out_of_the_export_is_rejected() {
    on_all(|c| async move {
        let root = c.root();
        c.symlink(root, "loop", "loop", SetAttributes::default()).await.unwrap();
        c.symlink(root, "out", "/etc/passwd", SetAttributes::default()).await.unwrap();
        c.symlink(root, "in", "/data/dir", SetAttributes::default()).await.unwrap();
        c.symlink(root, "up", "../../../dir", SetAttributes::default()).await.unwrap();
        let dir = c.mkdir(root, "dir", SetAttributes::default()).await.unwrap();
        let e = c.resolve("loop/x").await.unwrap_err().to_string();
        assert!(e.contains("too many levels of symbolic links"), "{e}");
        let e = c.resolve("out").await.unwrap_err().to_string();
        assert!(e.contains("/etc/passwd leads outside the export"), "{e}");
        assert_eq!(c.resolve("in").await.unwrap().0, dir.handle);
        assert_eq!(c.resolve("up").await.unwrap().0, dir.handle);
        assert_eq!(c.resolve("../..").await.unwrap().0, root);
        let e = c.resolve("dir/none/x").await.unwrap_err().to_string();
        assert_eq!(e, "LOOKUP dir/none/x: no such file or directory (NFSERR_NOENT)");
        let e = c.open("dir").await.unwrap_err().to_string();
        assert_eq!(e, "dir: not a regular file but a directory");
    });
}

#[test]
fn the_error_of_a_refused_connection_has_address_and_remedy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for proto in [Proto::Tcp, Proto::Rdma] {
        let url = Url { port: Some(port), proto: Some(proto), ..Url::new("127.0.0.1", "/data") };
        let e = millrace_client::handles::blocking::Client::connect(&url, options()).map(drop).unwrap_err();
        let text = e.to_string();
        assert!(matches!(e, Error::Connect { .. }), "{text}");
        assert!(text.contains(&format!("127.0.0.1:{port} over {proto}")), "{text}");
    }
    let e = millrace_client::handles::blocking::Client::connect(
        &Url::new("no-such-host.invalid", "/"),
        options(),
    )
    .map(drop);
    assert!(matches!(e.unwrap_err(), Error::Resolve { .. } | Error::Connect { .. }));
}

#[test]
fn the_client_reconnects_to_a_restarted_server() {
    for (proto, version) in [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| VERSIONS.map(|v| (p, v))) {
        // Not at 127.0.0.1, where another connection may get the free port as its local one.
        let own = "127.0.0.2:0".parse().unwrap();
        let at = Config {
            listen_rdma: vec![own],
            listen_tcp: vec![own],
            provider: ProviderChoice::Iwarp,
            ..config()
        };
        let first = Server::start(at.clone()).unwrap();
        let url = url(&first, proto, "/data");
        let options = options().vers(Some(version));
        let c = millrace_client::handles::blocking::Client::connect(&url, options).unwrap();
        c.getattr(c.root()).unwrap();
        let again =
            Config { listen_rdma: first.rdma_addrs().to_vec(), listen_tcp: first.tcp_addrs().to_vec(), ..at };
        first.stop_blocking(Duration::ZERO);
        let reader = {
            let c = c.clone();
            std::thread::spawn(move || c.getattr(c.root()))
        };
        let second = Server::start(again).unwrap();
        // The memory export is new and has the same key, so the handle of its root is valid.
        let attributes = reader.join().unwrap();
        assert!(attributes.is_ok() || attributes.as_ref().unwrap_err().status() == Some(Status::Stale));
        assert!(c.stats().reconnects >= 1);
        second.stop_blocking(Duration::ZERO);
    }
}

#[test]
fn a_secure_export_requires_rdma_or_a_reserved_port() {
    let secure = Config { exports: vec!["/low=memory:8MiB,secure".parse().unwrap()], ..config() };
    let server = Server::start(secure).unwrap();
    let may = (665..1024).any(|p| std::net::TcpListener::bind(("127.0.0.1", p)).is_ok());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        for (proto, resvport) in
            [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| [(p, None), (p, Some(false))])
        {
            // With NFSv4 such an export does not exist for the client; MNT then gives the reason.
            let url = Url { resvport, ..url(&server, proto, "/low") };
            match Client::connect(TokioRuntime::current(), &url, options()).await {
                Ok(c) => {
                    assert!(proto == Proto::Rdma || (may && resvport.is_none()), "{url}");
                    assert_eq!(c.version(), Version::V4_2);
                    c.getattr(c.root()).await.unwrap();
                }
                Err(e) => {
                    assert!(proto == Proto::Tcp && (!may || resvport == Some(false)), "{url}: {e}");
                    assert!(e.to_string().contains("`insecure`"), "{e}");
                }
            }
        }
    });
}
