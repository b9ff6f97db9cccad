//! Copies a file to a server or from one, with many calls in flight and without holding the file in memory.
//!
//! ```sh
//! millrace serve --export /data=memory:1GiB                 # in another terminal
//! cargo run --example copy -- Cargo.lock nfs://127.0.0.1/data/lock
//! cargo run --example copy -- nfs://127.0.0.1/data/lock /tmp/lock
//! ```
//!
//! A copy that fails leaves a part of the file; `millrace cp` uses a temporary name until it is complete.

use std::{
    error::Error,
    fs, io,
    io::{Read, Write},
    process::ExitCode,
};

use millrace_client::{Options, TokioRuntime, nfs3::Client};

/// Calls in flight.
const DEPTH: usize = 16;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let copied = match args.as_slice() {
        [from, to] if from.starts_with("nfs://") && !to.starts_with("nfs://") => get(from, to).await,
        [from, to] if to.starts_with("nfs://") && !from.starts_with("nfs://") => put(from, to).await,
        _ => {
            eprintln!("usage: copy FILE nfs://HOST/EXPORT/PATH, or copy nfs://HOST/EXPORT/PATH FILE");
            return ExitCode::from(2);
        }
    };
    match copied {
        Ok(bytes) => println!("{bytes} bytes copied"),
        Err(e) => {
            eprintln!("copy: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The client of a URL. It mounts the export; what is left of the path is its `path_in_export`.
async fn connect(url: &str) -> Result<Client, millrace_client::Error> {
    Client::connect(TokioRuntime::current(), &url.parse()?, Options::default()).await
}

async fn get(url: &str, path: &str) -> Result<u64, Box<dyn Error>> {
    let client = connect(url).await?;
    let file = client.open(client.path_in_export()).await?;
    let mut local = fs::File::create(path).map_err(|e| format!("{path}: {e}"))?;
    // The data comes in order, in the memory where the server put it; an error of `write_all` ends the reading.
    let write =
        |_offset, data: millrace_client::Views| data.iter().try_for_each(|piece| local.write_all(piece));
    let bytes = file.read_stream(0, u64::MAX, DEPTH, write).await?;
    local.sync_all()?;
    Ok(bytes)
}

async fn put(path: &str, url: &str) -> Result<u64, Box<dyn Error>> {
    let mut local = fs::File::open(path).map_err(|e| format!("{path}: {e}"))?;
    let client = connect(url).await?;
    let file = client.create_file(client.path_in_export(), 0o644).await?;
    // Each piece is read into memory that the server then fetches it from.
    let next = |wanted| {
        let mut memory = client.buffer(wanted).map_err(io::Error::other)?;
        let len = local.read(&mut memory)?;
        memory.set_len(len);
        Ok((len > 0).then(|| memory.freeze().into()))
    };
    // When it returns, everything is on stable storage: it commits at the end.
    Ok(file.write_stream(0, DEPTH, next).await?)
}
