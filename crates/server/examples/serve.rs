//! A server in a few lines: `serve TCP_ADDR RDMA_ADDR|- EXPORT...`, for example
//! `serve 127.0.0.1:2049 127.0.0.1:20049 /scratch=memory:2GiB`. Ends at the end of its standard input.

use std::{error::Error, io::Read, time::Duration};

use millrace_server::{Config, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut config = Config::default();
    for list in [&mut config.listen_tcp, &mut config.listen_rdma] {
        match args.next().as_deref() {
            Some("-") => {}
            Some(addr) => list.push(addr.parse()?),
            None => return Err("usage: serve TCP_ADDR|- RDMA_ADDR|- EXPORT...".into()),
        }
    }
    for export in args {
        config.exports.push(export.parse()?);
    }
    let running = Server::start(config)?;
    println!("ready tcp={:?} rdma={:?}", running.tcp_addrs(), running.rdma_addrs());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{:#?}", running.stop_blocking(Duration::from_secs(5)));
    Ok(())
}
