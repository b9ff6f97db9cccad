//! What `bench.py` compares the Python package with: the same reads by the Rust client, which does not copy the data.
//!
//! Arguments: the URL of an export, and a path in it. For each line `ranges` (64 ranges of 1 MiB) or `whole` (the file) of
//! the standard input it reads once, and prints the time in seconds.

use std::{error::Error, io::BufRead, time::Instant};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_client::{Client, handles::File};

/// Number of READs in flight, as in the Python package.
const DEPTH: usize = 16;
const RANGES: u64 = 64;
const LEN: usize = 1 << 20;

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: baseline URL PATH".into());
    };
    let client = Client::connect(url.as_str()).await?;
    for line in std::io::stdin().lock().lines() {
        let start = Instant::now();
        let (handle, attributes) = client.by_handle().resolve(&path).await?;
        let file = File::new(client.by_handle().clone(), handle);
        let bytes = match line?.as_str() {
            "ranges" => {
                // From the end to the beginning, as in bench.py.
                let offset = |n: u64| attributes.size / RANGES * (RANGES - 1 - n);
                let reads = stream::iter((0..RANGES).map(|n| file.read_shared(offset(n), LEN)));
                let lens = reads.buffer_unordered(DEPTH).map_ok(|data| data.len() as u64);
                lens.try_fold(0, async |sum, len| Ok(sum + len)).await?
            }
            "whole" => file.read_stream(0, u64::MAX, DEPTH, |_, _| ()).await?,
            other => return Err(format!("unknown command {other:?}").into()),
        };
        println!("{} {bytes}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
