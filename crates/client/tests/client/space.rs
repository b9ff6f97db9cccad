//! Space and holes of files, with unstable data of the same client.

use std::ops::Range;

use millrace_client::{
    Error, Options, Proto, TokioRuntime, Version,
    handles::{Client, File, SeekTarget},
    ops::SpaceChange,
};
use millrace_server::{Config, Server};

use crate::common::{self, run};

/// A multiple of the blocks of file systems, in bytes.
const BLOCK: u64 = 64 << 10;

async fn read(file: &File, range: Range<u64>) -> Vec<u8> {
    let mut data = vec![1; (range.end - range.start) as usize];
    let len = file.read(range.start, &mut data).await.unwrap();
    data.truncate(len);
    data
}

#[test]
fn changes_replace_unstable_data() {
    let dir = tempfile::tempdir().unwrap();
    let export = format!("/data=local:{},squash=none", dir.path().display());
    let config = Config {
        exports: vec![export.parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    run(async {
        for proto in [Proto::Tcp, Proto::Rdma] {
            let url = common::url(&server, proto, "data").parse().unwrap();
            let client = Client::connect(TokioRuntime::current(), &url, Options::default()).await.unwrap();
            let file = client.create_file("f", 0o644).await.unwrap();
            let change = async |range, change| client.change_space(file.handle(), range, change).await;
            let seek = async |at, target| client.seek(file.handle(), at, target).await.unwrap();
            file.write(0, &vec![7; 3 * BLOCK as usize]).await.unwrap();
            assert!(file.retained_bytes() > 0);
            change(BLOCK..2 * BLOCK, SpaceChange::Deallocate).await.unwrap();
            assert_eq!(file.retained_bytes(), 0, "the data is stable or deallocated");
            file.write(2 * BLOCK, b"newer").await.unwrap();
            let mut expected = [vec![7; BLOCK as usize], vec![0; BLOCK as usize], b"newer".to_vec()].concat();
            expected.resize(3 * BLOCK as usize, 7);
            assert_eq!(read(&file, 0..4 * BLOCK).await, expected);
            assert_eq!(seek(0, SeekTarget::Hole).await, Some(BLOCK));
            assert_eq!(seek(BLOCK, SeekTarget::Data).await, Some(2 * BLOCK));
            assert_eq!(seek(2 * BLOCK, SeekTarget::Hole).await, Some(3 * BLOCK));
            assert_eq!(seek(3 * BLOCK, SeekTarget::Data).await, None);
            change(2 * BLOCK..5 * BLOCK, SpaceChange::Zero).await.unwrap();
            assert_eq!(read(&file, 2 * BLOCK..6 * BLOCK).await, vec![0; 3 * BLOCK as usize]);
            change(0..6 * BLOCK, SpaceChange::Allocate).await.unwrap();
            assert_eq!(file.attributes().await.unwrap().size, 6 * BLOCK);
            assert_eq!(read(&file, 0..1).await, [7]);
            let empty = change(5..5, SpaceChange::Zero).await.unwrap_err();
            assert!(matches!(empty, Error::InvalidInput(_)), "{empty}");
            client.shutdown().await;
        }
    });
}

#[test]
fn earlier_versions_have_no_such_operations() {
    let server = common::server();
    run(async {
        for version in [Version::V3, Version::V4_1] {
            let url = common::url(&server, Proto::Tcp, "data").parse().unwrap();
            let options = Options::default().vers(Some(version));
            let client = Client::connect(TokioRuntime::current(), &url, options).await.unwrap();
            let file = client.create_file("f", 0o644).await.unwrap().handle();
            let changed = client.change_space(file, 0..1, SpaceChange::Allocate).await.unwrap_err();
            let found = client.seek(file, 0, SeekTarget::Data).await.unwrap_err();
            assert_eq!(changed.to_string(), "ALLOCATE requires NFSv4.2; mount with vers=4.2");
            assert_eq!(found.kind(), std::io::ErrorKind::Unsupported);
            client.shutdown().await;
        }
    });
}
