//! Copies a file to or from a server, with many calls in flight and bounded memory.
//!
//! ```sh
//! millrace serve --export /data=memory:1GiB                 # in another terminal
//! cargo run --example copy -- Cargo.lock nfs://127.0.0.1/data/lock
//! cargo run --example copy -- nfs://127.0.0.1/data/lock /tmp/lock
//! ```
//!
//! A failed copy leaves a partial file; `millrace cp` uses a temporary name until the file is complete.

use std::{
    error::Error,
    fs, io,
    io::{Read, Write},
    process::ExitCode,
};

use millrace_client::{Options, TokioRuntime, handles::Client};

/// Maximum number of calls in flight.
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

/// Connects to the server of a URL and mounts the export. The rest of the path is the client's
/// `path_in_export`.
async fn connect(url: &str) -> Result<Client, millrace_client::Error> {
    Client::connect(TokioRuntime::current(), &url.parse()?, Options::default()).await
}

async fn get(url: &str, path: &str) -> Result<u64, Box<dyn Error>> {
    let client = connect(url).await?;
    let file = client.open(client.path_in_export()).await?;
    let mut local = fs::File::create(path).map_err(|e| format!("{path}: {e}"))?;
    // The data arrives in order, in the memory to which the server wrote it. An error of `write_all` stops
    // the reads.
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
    // Each piece is read into memory from which the server reads it by RDMA.
    let next = |wanted| {
        let mut memory = client.buffer(wanted).map_err(io::Error::other)?;
        let len = local.read(&mut memory)?;
        memory.set_len(len);
        Ok((len > 0).then(|| memory.freeze().into()))
    };
    // The stream commits at the end: on return, all data is on stable storage.
    Ok(file.write_stream(0, DEPTH, next).await?)
}
