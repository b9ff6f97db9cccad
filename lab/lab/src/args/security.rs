//! Arguments of `millrace-lab security`.

use clap::Args;

/// Arguments of `millrace-lab security`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab security              200 guessed tags for each attack
  millrace-lab security --tries 5000

Servers and clients run in this process, on the loopback address. The exit code is 1 if an attack has obtained or
changed a byte without the right to. docs/security.md states the guarantees and their limits.")]
pub(crate) struct SecurityArgs {
    /// Number of tags to guess in each attack; each guess takes a connection
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) tries: u64,
}
