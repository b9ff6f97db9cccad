//! Counts the lines of a file, with concurrent reads into memory of this program, without a copy.
//!
//! ```sh
//! millrace serve --export /data=memory:1GiB                 # in another terminal
//! cargo run --example copy -- Cargo.lock nfs://127.0.0.1/data/lock
//! cargo run --example parallel_read -- nfs://127.0.0.1/data/lock
//! ```
//!
//! The memory comes from the client's arena, because an RDMA peer can only write to registered memory. Each
//! reader has one buffer. `read_into` takes it *by value*, so that the compiler prevents access while the
//! server may write to it, and returns it with the data, which the server has placed by RDMA Write.

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_client::{
    Options, TokioRuntime,
    handles::{Client, File},
};
use tokio::task::JoinSet;

/// Number of concurrent reads, and of buffers.
const READERS: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("usage: parallel_read nfs://HOST/EXPORT/PATH");
        return ExitCode::from(2);
    };
    if let Err(e) = count(&url).await {
        eprintln!("parallel_read: {e}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn count(url: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(TokioRuntime::current(), &url.parse()?, Options::default()).await?;
    let file = client.open(client.path_in_export()).await?;
    let size = file.attributes().await?.size;
    let next = Arc::new(AtomicU64::new(0));
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        readers.spawn(read(file.clone(), size, Arc::clone(&next)));
    }
    let mut lines = 0;
    while let Some(counted) = readers.join_next().await {
        lines += counted??;
    }
    let stats = client.stats();
    println!("{lines} lines, {} bytes", stats.bytes_read);
    let placed: u64 = stats.connections.iter().filter_map(|c| c.queue_pair).map(|q| q.tagged_bytes_in).sum();
    println!("{placed} bytes were placed by the server's RDMA Writes");
    Ok(())
}

/// Reads pieces of the file until all have been read, and counts their lines.
async fn read(file: File, size: u64, next: Arc<AtomicU64>) -> Result<usize, millrace_client::Error> {
    let piece = u64::from(file.client().rsize());
    let mut memory = file.client().buffer(piece as usize)?;
    let mut lines = 0;
    loop {
        let mut at = next.fetch_add(piece, Ordering::Relaxed);
        let end = at.saturating_add(piece).min(size);
        if at >= end {
            return Ok(lines);
        }
        // A server may return less data than requested.
        while at < end {
            memory.set_len((end - at) as usize);
            let read = file.read_into(at, memory).await?;
            memory = read.buffer;
            lines += memory.iter().filter(|byte| **byte == b'\n').count();
            at += read.count as u64;
            if read.eof {
                break;
            }
        }
    }
}
