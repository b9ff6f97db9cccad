//! `certs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `millrace certs`.
#[derive(Debug, Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    pub(crate) command: CertsCommand,
}

/// Commands of `millrace certs`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Make an authority, and certificates and keys of a server and of a client
    Init(CertsInitArgs),
}

/// Arguments of `millrace certs init`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace certs init /etc/millrace/tls --host nfs.example --host 192.0.2.7 > tls.toml

Writes ca.pem and ca.key (the authority, valid for ten years), server.pem and server.key (valid for a year,
for the names of the server) and client.pem and client.key (valid for a year), and prints the table [tls] of
the server's configuration. Keys can be read by their owner only; the server's user must be able to read
server.key. Existing files are not replaced. Who has ca.key can make certificates: keep it in a safe place.")]
pub(crate) struct CertsInitArgs {
    /// The directory, which is made if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// A name or address of the server, as clients state it; may be repeated
    #[arg(long = "host", value_name = "NAME", required = true)]
    pub(crate) hosts: Vec<String>,
}
