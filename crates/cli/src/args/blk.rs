//! `blk`: disks of iSCSI targets.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use millrace_iscsi_initiator::IscsiName;
use millrace_program::units::ByteSize;

/// Arguments of `millrace blk`.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  millrace blk ls iscsi://HOST
  millrace blk info iscsi://HOST/iqn.2026-01.example.millrace:disk/0
  millrace blk cp disk.img iscsi://HOST/iqn.2026-01.example.millrace:disk/0
  millrace blk attach iscsi://HOST/iqn.2026-01.example.millrace:disk/0 /mnt

URLs, as in libiscsi:
  iscsi://[USER[%SECRET]@]HOST[:PORT]/TARGET/LUN    a disk
  iscsi://[USER[%SECRET]@]HOST[:PORT]               a portal, for ls (default port 3260)
  iser://...                                        the same over RDMA (iSER)")]
pub(crate) struct BlkArgs {
    #[command(subcommand)]
    pub(crate) command: BlkCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum BlkCommand {
    /// List the targets of a portal and their disks
    Ls(BlkLsArgs),
    /// Show a disk: names, size, limits
    Info(BlkInfoArgs),
    /// Copy a disk or an image file to another disk or file
    Cp(BlkCpArgs),
    /// Measure a disk
    Bench(BlkBenchArgs),
    /// Attach a disk to this host: as a file, or for NBD clients
    Attach(BlkAttachArgs),
}

/// Options of connections.
#[derive(Debug, Clone, Args)]
pub(crate) struct BlkOptions {
    /// The iSCSI name of this initiator [default: iqn.2026-01.example.millrace: and the name of the host]
    #[arg(long, value_name = "NAME")]
    pub(crate) initiator: Option<IscsiName>,

    /// The CHAP name of this initiator [default: the user of the URL]
    #[arg(long, value_name = "NAME")]
    pub(crate) chap_user: Option<String>,

    /// File with the CHAP secret of this initiator, 12 to 255 bytes; also the variable MILLRACE_CHAP_SECRET
    #[arg(long, value_name = "FILE")]
    pub(crate) chap_secret_file: Option<PathBuf>,

    /// The CHAP name of the target, which then has to authenticate (mutual CHAP)
    #[arg(long, value_name = "NAME")]
    pub(crate) target_user: Option<String>,

    /// File with the CHAP secret of the target; also the variable MILLRACE_TARGET_CHAP_SECRET
    #[arg(long, value_name = "FILE", requires = "target_user")]
    pub(crate) target_secret_file: Option<PathBuf>,

    /// Require CRC32C digests of headers and data
    #[arg(long)]
    pub(crate) digests: bool,

    /// Time without progress after which an operation fails, in seconds; reconnects are part of it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,
}

/// Arguments of `millrace blk ls`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace blk ls iscsi://127.0.0.1
  millrace blk ls --json iscsi://127.0.0.1 | jq -r .url")]
pub(crate) struct BlkLsArgs {
    /// The portal; with a target, only its disks
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Print one JSON object per disk
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) options: BlkOptions,
}

/// Arguments of `millrace blk info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace blk info iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0
  millrace blk info --json iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0 | jq .capacity")]
pub(crate) struct BlkInfoArgs {
    /// The disk (default LUN 0)
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) options: BlkOptions,
}

/// Arguments of `millrace blk cp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace blk cp disk.img iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0
  millrace blk cp iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0 backup.img
  zstd -dc disk.img.zst | millrace blk cp - iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0
  millrace blk cp iscsi://one/iqn.2026-01.example.millrace:a/0 iscsi://two/iqn.2026-01.example.millrace:b/0

The whole source is copied, byte by byte. A disk as target must be at least as large; the rest of it keeps its
content. The copy is on stable storage when the command ends. `-` is standard input or output; pipes and
devices are read to their end.")]
pub(crate) struct BlkCpArgs {
    /// The source: a file, `-` or a URL
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,

    /// The target: a file, `-` or a URL
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,

    /// Maximum number of transfers of 1 MiB in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) outstanding: u16,

    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) options: BlkOptions,
}

/// The access pattern of `millrace blk bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlkTest {
    /// Read in order
    Read,
    /// Write in order
    Write,
    /// Read at random
    Randread,
    /// Write at random
    Randwrite,
}

/// Arguments of `millrace blk bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace blk bench iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0
  millrace blk bench --test read --block 1M --depth 8 iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0
  millrace blk bench --test randwrite --destroy-data iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0

Writes are flushed at the end, within the measured time. 1 MB is 10^6 bytes. JSON keys: test, block, depth,
seconds, operations, iops, mb_per_s, mean_us, p50_us, p99_us, p999_us.")]
pub(crate) struct BlkBenchArgs {
    /// The disk (default LUN 0)
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// What to measure
    #[arg(long, value_name = "TEST", default_value = "randread")]
    pub(crate) test: BlkTest,

    /// Bytes of one operation
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub(crate) block: ByteSize,

    /// Operations in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) depth: u16,

    /// Duration
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) seconds: u64,

    /// Use only the first bytes of the disk [default: all]
    #[arg(long, value_name = "SIZE")]
    pub(crate) span: Option<ByteSize>,

    /// Permit tests that write: they overwrite the content of the disk
    #[arg(long)]
    pub(crate) destroy_data: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) options: BlkOptions,
}

/// Arguments of `millrace blk attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace blk attach iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0 /mnt
  millrace blk attach --daemon iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0 /mnt
  millrace blk attach --nbd disk.sock iscsi://127.0.0.1/iqn.2026-01.example.millrace:disk/0

In the directory, the disk is the file `disk`, through FUSE. With --nbd, clients such as QEMU, nbdcopy and fio use the
disk on a Unix socket, which needs no privilege. Writes are durable after fsync or a flush.

The command stays in the foreground and prints a line on standard output when the disk is usable: `ready`, the file and
the URI of the socket. At SIGTERM or SIGINT it unmounts the directory, disconnects the clients and flushes the disk; a
second signal ends it immediately. `umount /mnt` also ends it.")]
pub(crate) struct BlkAttachArgs {
    /// The disk (default LUN 0)
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// The mount point, an empty directory
    #[arg(value_name = "DIR", required_unless_present = "nbd")]
    pub(crate) dir: Option<PathBuf>,

    /// Serve NBD on this Unix socket, which is created
    #[arg(long, value_name = "SOCKET")]
    pub(crate) nbd: Option<PathBuf>,

    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Continue in the background when the disk is attached; log to the system log
    #[arg(long)]
    pub(crate) daemon: bool,

    #[command(flatten)]
    pub(crate) options: BlkOptions,
}
