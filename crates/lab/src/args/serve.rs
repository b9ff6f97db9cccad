//! Arguments of `millrace-lab serve`.

use std::net::SocketAddr;

use clap::Args;

/// Arguments of `millrace-lab serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab serve --export /x=memory:1GiB --design read-read --i-accept-exposed-buffers
  millrace-lab serve --export /x=memory:1GiB --registration all-physical --metrics 127.0.0.1:9100

For experiments only: `millrace serve` is the server to use. When the server can be used, it prints one line on standard
output, with the real ports. SIGTERM or SIGINT ends it at once.")]
pub(crate) struct ServeArgs {
    /// Offer NAME: /NAME=local:DIRECTORY or /NAME=memory:SIZE. May be given several times
    #[arg(long = "export", value_name = "/NAME=BACKEND", required = true)]
    pub(crate) exports: Vec<String>,

    /// Where NFS over RDMA listens; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:20049")]
    pub(crate) listen_rdma: SocketAddr,

    /// Where NFS over TCP listens (MOUNT too); port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:2049")]
    pub(crate) listen_tcp: SocketAddr,

    /// Serve Prometheus metrics over HTTP at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,

    /// With --design read-read: accept that clients can read the server's exposed buffers and hold its memory. Given
    /// once, RDMA listens on loopback addresses only; given twice, on any
    #[arg(long, action = clap::ArgAction::Count)]
    pub(crate) i_accept_exposed_buffers: u8,
}
