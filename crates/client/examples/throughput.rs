//! Reads a file repeatedly, and prints the client's counters every second.
//!
//! ```sh
//! millrace serve --export /data=memory:1GiB                 # in another terminal
//! millrace put target/debug/millrace nfs://127.0.0.1/data/large
//! cargo run --release --example throughput -- 'nfs://127.0.0.1/data/large?nconnect=2' 10
//! ```
//!
//! Any task with a clone of the client can read the counters, at negligible cost.

use std::{error::Error, process::ExitCode, time::Duration};

use millrace_client::{Options, Stats, TokioRuntime, handles::Client};
use tokio::time::Instant;

/// Maximum number of calls in flight.
const DEPTH: usize = 16;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.get(1).map_or(Ok(10), |text| text.parse());
    let ([url] | [url, _], Ok(seconds)) = (args.as_slice(), seconds) else {
        eprintln!("usage: throughput nfs://HOST/EXPORT/PATH [SECONDS]");
        return ExitCode::from(2);
    };
    match run(url, seconds).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("throughput: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(url: &str, seconds: u32) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(TokioRuntime::current(), &url.parse()?, Options::default()).await?;
    let file = client.open(client.path_in_export()).await?;
    let reading = async {
        loop {
            // The data is in memory to which the server has written it; this program discards it.
            file.read_stream(0, u64::MAX, DEPTH, |_offset, _data| ()).await?;
        }
    };
    tokio::select! {
        failed = reading => failed,
        () = watch(&client, seconds) => Ok(()),
    }
}

/// Prints the rates of each second.
async fn watch(client: &Client, seconds: u32) {
    println!("  s     MB/s  calls/s  connections  reconnects  retransmissions");
    let (mut last, mut then) = (client.stats(), Instant::now());
    for second in 1..=seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (stats, now) = (client.stats(), Instant::now());
        let per_second = |of: fn(&Stats) -> u64| (of(&stats) - of(&last)) as f64 / (now - then).as_secs_f64();
        let (mb, calls) = (per_second(|s| s.bytes_read) / 1e6, per_second(|s| s.calls));
        let Stats { reconnects, retransmits, .. } = &stats;
        let up = stats.connections.len();
        println!("{second:3} {mb:8.0} {calls:8.0} {up:12} {reconnects:11} {retransmits:16}");
        (last, then) = (stats, now);
    }
}
