//! A client whose memory is smaller than what its calls would use together.

use std::{sync::LazyLock, time::Duration};

use futures::{
    FutureExt,
    future::{join_all, try_join_all},
};
use millrace_client::{
    Error, Options, Proto, Url,
    handles::{Client, File},
};
use millrace_runtime::tokio_rt::TokioRuntime;

use crate::common::{on_all, server, url};

const MIB: usize = 1 << 20;

async fn connect(url: &str) -> Client {
    let options = Options::default().arena_limit(16 * MIB);
    Client::connect(TokioRuntime::current(), &url.parse::<Url>().unwrap(), options).await.unwrap()
}

async fn create(client: &Client, n: usize) -> File {
    client.create_file(format!("f{n}"), 0o600).await.unwrap()
}

/// The content of all files, each from another offset.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| (0..4 * MIB).map(|i| (i / 251) as u8).collect());

fn content(n: usize) -> &'static [u8] {
    &CONTENT[1000 * n..][..3 * MIB]
}

/// The files would retain 48 MiB of unstable data, and the reads use as much at the same time.
#[test]
fn concurrent_transfers_share_little_memory() {
    on_all(async |url| {
        let client = connect(&url("data")).await;
        let files = join_all((0..16).map(|n| create(&client, n))).await;
        let writes = files.iter().enumerate().map(|(n, file)| async move { file.write(0, content(n)).await });
        try_join_all(writes).await.unwrap();
        let retained: usize = files.iter().map(|f| f.retained_bytes()).sum();
        assert!(retained <= 8 * MIB + 16 * MIB / 16, "{retained} bytes are retained");
        try_join_all(files.iter().map(|f| f.commit())).await.unwrap();

        let reads = files.iter().enumerate().flat_map(|(n, file)| (0..3).map(move |part| (n, file, part)));
        let reads = reads.map(|(n, file, part)| async move {
            let mut data = vec![0; MIB];
            assert_eq!(file.read((part * MIB) as u64, &mut data).await.unwrap(), MIB);
            assert!(data == content(n)[part * MIB..][..MIB]);
        });
        join_all(reads).await;
    });
}

#[test]
fn a_buffer_of_impossible_length_is_an_error_at_once() {
    let server = server();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = connect(&url(&server, Proto::Tcp, "data")).await;
        for (length, what) in [(64 * MIB, "more than the arena"), (8 * MIB, "more than a buffer")] {
            let result = client.wait_for_buffer(length).now_or_never();
            assert!(matches!(result, Some(Err(Error::OutOfMemory(_)))), "{what}: {result:?}");
        }
    });
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}
