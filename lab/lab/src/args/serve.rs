//! Arguments of `millrace-lab serve`.

use std::net::SocketAddr;

use clap::Args;
use millrace_daemon::listening_address;

/// Arguments of `millrace-lab serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab serve --export /x=memory:1GiB --design read-read --i-accept-exposed-buffers
  millrace-lab serve --export /x=memory:1GiB --registration all-physical --metrics 127.0.0.1:9100

For experiments only; use `millrace serve` otherwise. When the server is ready, it prints one line on standard
output, with the actual ports. SIGTERM or SIGINT ends it immediately.")]
pub(crate) struct ServeArgs {
    /// Export: /NAME=local:DIRECTORY or /NAME=memory:SIZE. May be repeated
    #[arg(long = "export", value_name = "/NAME=BACKEND", required = true)]
    pub(crate) exports: Vec<String>,

    /// Address for NFS over RDMA; port 0 selects a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:20049", value_parser = listening_address)]
    pub(crate) listen_rdma: SocketAddr,

    /// Address for NFS over TCP, and for MOUNT; port 0 selects a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:2049", value_parser = listening_address)]
    pub(crate) listen_tcp: SocketAddr,

    /// Address at which Prometheus metrics are served over HTTP
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// With --design read-read: accept that clients can read the server's exposed buffers and retain its
    /// memory. Specified once, RDMA may listen on loopback addresses only; specified twice, on any address
    #[arg(long, action = clap::ArgAction::Count)]
    pub(crate) i_accept_exposed_buffers: u8,
}
