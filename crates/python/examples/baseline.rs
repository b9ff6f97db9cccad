//! What `bench.py` compares the Python package with: the same reads by the Rust client, which does not copy the data.
//!
//! Arguments: the URL of an export, and a path in it. For each line of the standard input it reads once, and prints the time
//! in seconds: a number of bytes for ranges of this length, 64 MiB in all, or `whole` for the file.

use std::{error::Error, io::BufRead, time::Instant};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_client::{Client, handles::File};

/// Number of READs in flight, as in the Python package.
const DEPTH: usize = 16;
/// Bytes of all ranges.
const TOTAL: u64 = 64 << 20;

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
            "whole" => file.read_stream(0, u64::MAX, DEPTH, |_, _| ()).await?,
            len => {
                let len: u64 = len.parse()?;
                let ranges = TOTAL / len;
                // From the end to the beginning, as in bench.py.
                let offset = |n: u64| attributes.size / ranges * (ranges - 1 - n);
                let reads = stream::iter((0..ranges).map(|n| file.read_shared(offset(n), len as usize)));
                let lens = reads.buffer_unordered(DEPTH).map_ok(|data| data.len() as u64);
                lens.try_fold(0, async |sum, len| Ok(sum + len)).await?
            }
        };
        println!("{} {bytes}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
