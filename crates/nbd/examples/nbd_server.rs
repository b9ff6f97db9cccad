//! Serves the disk of an iSCSI URL with NBD on a Unix socket until it is interrupted:
//! `cargo run -p millrace-nbd --example nbd_server -- iscsi://HOST/TARGET/LUN disk.sock`, then
//! `qemu-img info 'nbd+unix:///?socket=disk.sock'`.

use std::env::args;

use millrace_iscsi_initiator::{BlockDevice, Url};
use millrace_nbd::{Options, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (Some(url), Some(path)) = (args().nth(1), args().nth(2)) else {
        return Err("usage: nbd_server URL SOCKET".into());
    };
    let url: Url = url.parse()?;
    let disk = BlockDevice::connect(&url, &millrace_iscsi_initiator::Options::default()).await?;
    let server = Server::bind(path, disk.clone(), Options::default())?;
    println!("{}: {} bytes at {}", disk.identity(), disk.capacity(), server.uri());
    // Without a handler of the signal, the server continues.
    let interrupted = async { drop(tokio::signal::ctrl_c().await) };
    server.serve(interrupted).await?;
    disk.close().await;
    Ok(())
}
