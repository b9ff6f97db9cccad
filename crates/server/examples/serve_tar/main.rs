//! Serves tar archives read-only: `serve_tar TCP_ADDR RDMA_ADDR EXPORT...`, for example
//! `serve_tar 127.0.0.1:2049 127.0.0.1:20049 /sources=local:sources.tar`. Exports that are not archives are served as
//! usual. Ends at the end of its standard input.

mod tar_fs;

use std::{error::Error, io, io::Read as _, sync::Arc, time::Duration};

use millrace_server::{Backend, Config, ExportConfig, Resources, Server};
use millrace_vfs::FileSystemRef;
use tar_fs::TarFs;

/// Opens an export: an archive if its path is a file.
fn open(export: &ExportConfig, with: &Resources<'_>) -> Result<FileSystemRef, String> {
    match &export.backend {
        Backend::Local { path } if path.is_file() => match TarFs::open(path, with.arena) {
            Ok(fs) => Ok(Arc::new(fs)),
            Err(e) => Err(format!("cannot read {}: {e}", path.display())),
        },
        _ => millrace_server::open(export, with),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(tcp), Some(rdma)) = (args.next(), args.next()) else {
        return Err("usage: serve_tar TCP_ADDR RDMA_ADDR EXPORT...".into());
    };
    let exports = args.map(|export| export.parse()).collect::<Result<_, _>>()?;
    let (listen_tcp, listen_rdma) = (vec![tcp.parse()?], vec![rdma.parse()?]);
    let running = Server::start_with(Config { exports, listen_tcp, listen_rdma, ..Config::default() }, open)?;
    println!("ready tcp={:?} rdma={:?}", running.tcp_addrs(), running.rdma_addrs());
    io::stdin().read_to_end(&mut Vec::new())?;
    running.stop_blocking(Duration::from_secs(5));
    Ok(())
}
