//! READs and WRITEs of 4 KiB, and WRITEs of 1 MiB, over RDMA in one process: the client on the main thread, the server on a second
//! thread.
//!
//! `.ci/instructions` runs it under callgrind with two numbers of calls, and divides the difference of each
//! thread's instructions by the difference of the calls. `read-16` keeps 16 READs in flight on one connection. The
//! `files` creates, writes, looks up, reads and removes a small file with the options of a mount. The version is NFSv3,
//! or NFSv4.2 with the suffix `-4.2`.
//!
//! ```text
//! instructions read|read-16|write|write-1m|files|read-4.2|read-16-4.2|write-4.2|write-1m-4.2|files-4.2 CALLS
//! ```

use std::{error::Error, time::Duration};

use futures::{TryStreamExt, stream::FuturesUnordered};
use millrace_client::{
    Options, Proto, Url, Version,
    handles::Client,
    ops::{CreateHow, FileHandle, SetAttributes, StableHow},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Limits, Server};

const BYTES: usize = 4 << 10;
/// READs in flight of `read-16`.
const IN_FLIGHT: u32 = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(operation), Some(calls)) = (arguments.next(), arguments.next()) else {
        return Err("usage: instructions OPERATION CALLS".into());
    };
    let calls: u32 = calls.parse()?;
    let config = Config {
        exports: vec!["/data=memory:16MiB".parse()?],
        listen_rdma: vec!["127.0.0.1:0".parse()?],
        shards: Some(1),
        // Fill the duplicate request cache before the measured calls: replacing a reply costs more than
        // inserting into an empty cache.
        limits: Limits { replies_kept: 64, ..Limits::default() },
        ..Config::default()
    };
    let server = Server::start(config)?;
    let port = server.rdma_addr().ok_or("the server does not listen")?.port();
    // The operation without its version.
    let (operation, vers) = match operation.strip_suffix("-4.2") {
        Some(operation) => (operation, Version::V4_2),
        None => (&*operation, Version::V3),
    };
    let url = Url {
        port: Some(port),
        proto: Some(Proto::Rdma),
        vers: Some(vers),
        ..Url::new("127.0.0.1", "/data")
    };
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio.block_on(run(&url, operation, calls))?;
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
    Ok(())
}

async fn run(url: &Url, operation: &str, calls: u32) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(
        TokioRuntime::current(),
        url,
        Options::default().attributes_before(operation == "files"),
    )
    .await?;
    let file = client.create_file("f", 0o600).await?.handle();
    let data = client.buffer(if operation == "write-1m" { 1 << 20 } else { BYTES })?.freeze();
    let mut buffer = client.buffer(BYTES)?;
    client.write_from(file, 0, data.clone().into(), StableHow::Unstable).await?;
    if operation == "read-16" {
        return read_concurrently(&client, file, calls / IN_FLIGHT).await;
    }
    for _ in 0..calls {
        match operation {
            "read" => buffer = client.read_into(file, 0, buffer).await?.buffer,
            "write" | "write-1m" => {
                client.write_from(file, 0, data.clone().into(), StableHow::Unstable).await?;
            }
            "files" => small_file(&client).await?,
            _ => {
                return Err(
                    "the operation is read, read-16, write, write-1m or files, with or without -4.2".into()
                );
            }
        }
    }
    Ok(())
}

/// The life of a small file, as a mount requests it.
async fn small_file(client: &Client) -> Result<(), Box<dyn Error>> {
    const NAME: &str = "small";
    let root = client.root();
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o644), ..SetAttributes::default() });
    let created = client.create(root, NAME, how).await?.handle;
    let data = client.buffer(1000)?.freeze();
    client.write_from(created, 0, data.into(), StableHow::FileSync).await?;
    let found = client.lookup(root, NAME).await?.handle;
    client.read_into(found, 0, client.buffer(1000)?).await?;
    client.remove(root, NAME).await?;
    Ok(())
}

/// Reads with [`IN_FLIGHT`] sequences of `calls` READs each.
async fn read_concurrently(client: &Client, file: FileHandle, calls: u32) -> Result<(), Box<dyn Error>> {
    let sequence = |_| async {
        let mut buffer = client.buffer(BYTES)?;
        for _ in 0..calls {
            buffer = client.read_into(file, 0, buffer).await?.buffer;
        }
        Ok::<(), millrace_client::Error>(())
    };
    // `try_join_all` would poll all sequences at each wake-up.
    Ok((0..IN_FLIGHT).map(sequence).collect::<FuturesUnordered<_>>().try_collect().await?)
}
