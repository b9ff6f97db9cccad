//! Commands on files: `exports`, `ls`, `stat`, `tree`, `find`, `cat`, `put`, `get`, `cp`, `sync`, `rm`, `mkdir`, `mv`, `ln`,
//! `df`, `du`, `chmod`, `chown`, `touch`, `clean`.

use std::ffi::OsString;

use clap::{ArgAction, Args};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use millrace_client::ops::{FileType, NfsTime};
use millrace_copy::Exclude;
use millrace_program::{args::url, units::ByteSize};

use super::{mode_change::ModeChange, owner::Owner};

/// Arguments of `millrace exports`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace exports nfs://127.0.0.1
  millrace exports 'nfs://server:2049?proto=tcp' --json")]
pub(crate) struct ExportsArgs {
    /// The server; a path is ignored
    #[arg(value_name = "URL", value_parser = url())]
    pub(crate) url: String,

    /// Print one JSON object per export
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace ls`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)] // `-h` is another option, as in ls(1).
#[command(after_help = "\
Examples:
  millrace ls nfs://127.0.0.1/data
  millrace ls -lh nfs://127.0.0.1/data/logs
  millrace ls --json nfs://127.0.0.1/data | jq -r 'select(.size > 1e9).name'")]
pub(crate) struct LsArgs {
    /// Directories or files
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Show kind, mode, links, owner, group, size and local time (TZ) of each entry
    #[arg(short, long)]
    pub(crate) long: bool,

    /// As -l, with the numbers of owners and groups instead of their names on this host
    #[arg(short, long)]
    pub(crate) numeric_uid_gid: bool,

    /// With -l: show sizes as 9.8 KiB
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,

    /// Also show names that begin with a dot
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Sort by modification time, the newest first
    #[arg(short, conflicts_with = "by_size")]
    pub(crate) time: bool,

    /// Sort by size, the largest first
    #[arg(short = 'S')]
    pub(crate) by_size: bool,

    /// Reverse the order
    #[arg(short, long)]
    pub(crate) reverse: bool,

    /// Also list the directories below; symbolic links are not followed
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// Print one JSON object per entry
    #[arg(long)]
    pub(crate) json: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Arguments of `millrace stat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace stat nfs://127.0.0.1/data/file
  millrace stat --json nfs://127.0.0.1/data/file | jq .size")]
pub(crate) struct StatArgs {
    /// Files or directories; symbolic links are not followed
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Print one JSON object per file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace tree`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace tree nfs://127.0.0.1/data
  millrace tree --depth 2 'nfs://server/data?proto=tcp'")]
pub(crate) struct TreeArgs {
    /// The directory
    #[arg(value_name = "URL", value_parser = url())]
    pub(crate) url: String,

    /// Maximum depth, in directory levels
    #[arg(short, long, value_name = "N")]
    pub(crate) depth: Option<usize>,

    /// Also show names that begin with a dot
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Print one JSON object per entry
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace find`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace find nfs://127.0.0.1/data --name '*.log' --type f
  millrace find nfs://127.0.0.1/data --maxdepth 1 --type d --print0 | xargs -0 -n 1 echo

Each line is a path below the URL, or `.` for the object of the URL. As in find(1), one dash is enough, and
symbolic links are not followed.")]
pub(crate) struct FindArgs {
    /// The directory
    #[arg(value_name = "URL", value_parser = url())]
    pub(crate) url: String,

    /// Only objects whose name matches, with *, ?, [...] and \ as in find(1)
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    pub(crate) name: Option<Exclude>,

    /// Only objects of this type: f (file), d (directory), l (symbolic link), b, c, p or s
    #[arg(long = "type", value_name = "TYPE", value_parser = file_type)]
    pub(crate) file_type: Option<FileType>,

    /// Maximum depth: 0 is the object of the URL, and 1 also has the entries of its directory
    #[arg(long, value_name = "N")]
    pub(crate) maxdepth: Option<usize>,

    /// End each path with a NUL byte instead of a newline
    #[arg(long)]
    pub(crate) print0: bool,
}

/// Options of find(1), which have one dash.
const FIND: [&str; 4] = ["-name", "-type", "-maxdepth", "-print0"];

/// Returns the command line with two dashes before the options of `millrace find`.
pub(crate) fn expand_find(mut line: Vec<OsString>) -> Vec<OsString> {
    for word in line.iter_mut().skip_while(|word| *word != "find") {
        if let Some(option) = FIND.iter().find(|option| word == *option) {
            *word = format!("-{option}").into();
        }
    }
    line
}

fn glob(text: &str) -> Result<Exclude, String> {
    match Exclude::new([text]) {
        _ if text.contains('/') => Err("names have no `/`".into()),
        glob => glob.map_err(|e| e.to_string()),
    }
}

fn file_type(text: &str) -> Result<FileType, String> {
    Ok(match text {
        "f" => FileType::Regular,
        "d" => FileType::Directory,
        "l" => FileType::Symlink,
        "b" => FileType::Block,
        "c" => FileType::Character,
        "p" => FileType::Fifo,
        "s" => FileType::Socket,
        _ => return Err("write one of f, d, l, b, c, p and s".into()),
    })
}

/// Arguments of `millrace cat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace cat nfs://127.0.0.1/data/notes.txt
  millrace cat nfs://127.0.0.1/data/part1 nfs://127.0.0.1/data/part2 | tar x")]
pub(crate) struct CatArgs {
    /// Files, written in this order
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,
}

/// Options of `put`, `get` and `cp`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CopyArgs {
    /// Copy directories with their contents
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// Replace existing files by new ones with a rename, instead of writing them in place
    #[arg(long)]
    pub(crate) atomic: bool,

    /// Replace existing files only if they are older than the source
    #[arg(short, long)]
    pub(crate) update: bool,

    /// Replace no existing file
    #[arg(short, long, conflicts_with = "update")]
    pub(crate) no_clobber: bool,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

/// Options of every command that copies trees.
#[derive(Debug, Clone, Args)]
pub(crate) struct TransferArgs {
    /// As -r --hard-links --xattrs and, for root, --owner; ACLs are not copied
    #[arg(short, long)]
    pub(crate) archive: bool,

    /// Omit what matches a line of gitignore(5), without `!`: *.o, target/ or /path/below/the/source; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,

    /// Print what would be copied and removed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Read every file back from the target and compare SHA-256 checksums
    #[arg(long)]
    pub(crate) verify: bool,

    /// Preserve hard links between the copied files (otherwise each name becomes a separate file)
    #[arg(long)]
    pub(crate) hard_links: bool,

    /// Preserve owner and group (requires the privilege to change owners)
    #[arg(long)]
    pub(crate) owner: bool,

    /// Preserve extended attributes of users (user.*); servers need NFSv4.2
    #[arg(long)]
    pub(crate) xattrs: bool,

    /// Maximum number of files in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) parallel: u16,

    /// Maximum number of records in flight, over all files
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) outstanding: u16,

    /// Size of one record [default: the server's preferred size]
    #[arg(long, value_name = "SIZE")]
    pub(crate) record: Option<ByteSize>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const COPY_NOTES: &str = "\
Modes, times and symbolic links are preserved. A new file has a temporary name in the target directory
until it is complete and, on a server, on stable storage; then it is renamed to its final name. An
existing file is written in place, as by cp(1): it keeps its owner, mode, ACL and hard links.
`-` is standard input or output; pipes and devices are read to their end. Progress is shown on a terminal only.";

/// Arguments of `millrace put`.
#[derive(Debug, Args)]
#[command(override_usage = "millrace put [OPTIONS] <FILE>... <URL>")]
#[command(after_help = format!("\
Examples:
  millrace put notes.txt nfs://127.0.0.1/data/
  millrace put -r --verify ./photos nfs://127.0.0.1/data/photos
  tar c tree | millrace put - nfs://127.0.0.1/data/tree.tar

{COPY_NOTES}"))]
pub(crate) struct PutArgs {
    /// Local files, followed by the target URL
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    pub(crate) paths: Vec<OsString>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// Arguments of `millrace get`.
#[derive(Debug, Args)]
#[command(override_usage = "millrace get [OPTIONS] <URL>... [PATH]")]
#[command(after_help = format!("\
Examples:
  millrace get nfs://127.0.0.1/data/notes.txt
  millrace get -r --verify nfs://127.0.0.1/data/photos ./photos
  millrace get nfs://127.0.0.1/data/tree.tar - | tar x

With a single URL, the target is the current directory.

{COPY_NOTES}"))]
pub(crate) struct GetArgs {
    /// URLs, followed by the local target file or directory
    #[arg(value_name = "URL", required = true, num_args = 1..)]
    pub(crate) paths: Vec<OsString>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// Arguments of `millrace cp`.
#[derive(Debug, Args)]
#[command(override_usage = "millrace cp [OPTIONS] <FROM>... <TO>")]
#[command(after_help = format!("\
Examples:
  millrace cp report.pdf nfs://127.0.0.1/data/
  millrace cp -r --verify nfs://127.0.0.1/data/tree ./tree
  millrace cp -r nfs://one/data/tree 'nfs://two/backup/tree?nconnect=2'

If the target is an existing directory, the copies are created in it; those of a directory DIR/. are its entries.

{COPY_NOTES}"))]
pub(crate) struct CpArgs {
    /// Files or URLs, followed by the target
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    pub(crate) paths: Vec<OsString>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// Arguments of `millrace sync`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace sync ./photos nfs://127.0.0.1/data/photos
  millrace sync --delete --dry-run nfs://127.0.0.1/data/photos ./photos
  millrace sync -a --exclude '*.tmp' --exclude /cache/ nfs://one/data 'nfs://two/backup/data?nconnect=2'

The target directory gets the contents of the source directory, and is created if it does not exist. A file
is copied if its size or modification time differs, into a new file that replaces the old one in one step;
other files keep their content, and get the mode of the source. The same command after an interruption
continues with the next file.

--delete removes nothing outside of the target, follows no symbolic link, and keeps mount points and what
--exclude omits. First it removes what is in the place of a copy of another type, when all others are
copied, and then the rest; nothing if something could not be read, copied or removed.")]
pub(crate) struct SyncArgs {
    /// The directory to copy: a path or a URL
    #[arg(value_name = "SOURCE")]
    pub(crate) from: OsString,

    /// The directory to change: a URL or a path
    #[arg(value_name = "TARGET")]
    pub(crate) to: OsString,

    /// Remove from the target what the source does not have
    #[arg(long)]
    pub(crate) delete: bool,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

/// Arguments of `millrace rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace rm nfs://127.0.0.1/data/old.log
  millrace rm -r nfs://127.0.0.1/data/tree")]
pub(crate) struct RmArgs {
    /// Files and directories
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Remove directories with their contents
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// Ignore files that do not exist
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Arguments of `millrace mkdir`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace mkdir nfs://127.0.0.1/data/new
  millrace mkdir -p nfs://127.0.0.1/data/a/b/c")]
pub(crate) struct MkdirArgs {
    /// The directories
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Create missing parents, and accept existing directories
    #[arg(short, long)]
    pub(crate) parents: bool,

    /// Permissions, in octal
    #[arg(short, long, value_name = "MODE", default_value = "755", value_parser = octal_mode)]
    pub(crate) mode: u32,
}

fn octal_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions must be octal, 0 to 7777, such as 755".into()),
    }
}

/// Arguments of `millrace mv`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace mv nfs://127.0.0.1/data/a nfs://127.0.0.1/data/b
  millrace mv nfs://127.0.0.1/data/a nfs://127.0.0.1/data/dir/

Both names must be in the same export. An existing file at the new name is replaced atomically.")]
pub(crate) struct MvArgs {
    /// The existing name
    #[arg(value_name = "FROM_URL", value_parser = url())]
    pub(crate) from: String,

    /// The new name, or the directory to move it into
    #[arg(value_name = "TO_URL", value_parser = url())]
    pub(crate) to: String,
}

/// Arguments of `millrace ln`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace ln nfs://127.0.0.1/data/file nfs://127.0.0.1/data/same-file
  millrace ln -s ../elsewhere/file nfs://127.0.0.1/data/link")]
pub(crate) struct LnArgs {
    /// The file to link to: a URL; with -s any text
    #[arg(value_name = "TARGET")]
    pub(crate) target: OsString,

    /// The new name
    #[arg(value_name = "URL", value_parser = url())]
    pub(crate) link: String,

    /// Create a symbolic link
    #[arg(short, long)]
    pub(crate) symbolic: bool,
}

/// Arguments of `millrace df`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)] // `-h` is another option, as in df(1).
#[command(after_help = "\
Examples:
  millrace df nfs://127.0.0.1/data
  millrace df --json nfs://127.0.0.1/data nfs://127.0.0.1/scratch")]
pub(crate) struct DfArgs {
    /// Exports, or paths in them
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Accepted as in df(1): sizes always have units
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,

    /// Print one JSON object per URL
    #[arg(long)]
    pub(crate) json: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Arguments of `millrace du`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)] // `-h` is another option, as in du(1).
#[command(after_help = "\
Examples:
  millrace du nfs://127.0.0.1/data
  millrace du -s nfs://127.0.0.1/data/photos nfs://127.0.0.1/data/music

The size is the storage that a directory and everything below it use at the server. A file with several
names counts once.")]
pub(crate) struct DuArgs {
    /// Directories or files
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Print the sum of each URL only
    #[arg(short, long)]
    pub(crate) summarize: bool,

    /// Accepted as in du(1): sizes always have units
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,

    /// Print one JSON object per directory
    #[arg(long)]
    pub(crate) json: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Arguments of `millrace chmod`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace chmod 640 nfs://127.0.0.1/data/file
  millrace chmod -R u=rwX,go=rX nfs://127.0.0.1/data/tree
  millrace chmod g+s,o-w nfs://127.0.0.1/data/dir

As chmod(1): without u, g, o or a, the bits of the umask are not changed, and directories keep set-user-ID and
set-group-ID bits that the mode does not mention.")]
pub(crate) struct ChmodArgs {
    /// Permissions in octal, or changes such as u+w,go-rx
    #[arg(value_name = "MODE")]
    pub(crate) mode: ModeChange,

    /// Files or directories
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Also change everything below directories; symbolic links are not followed
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
}

/// Arguments of `millrace chown`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace chown root nfs://127.0.0.1/data/file
  millrace chown -R 1000:100 nfs://127.0.0.1/data/tree
  millrace chown :root nfs://127.0.0.1/data/dir

Names are those of this host; the server gets their numbers.")]
pub(crate) struct ChownArgs {
    /// The new owner, owner and group, or group; each a name or a number
    #[arg(value_name = "OWNER[:GROUP]")]
    pub(crate) owner: Owner,

    /// Files or directories
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Also change everything below directories; symbolic links are changed, not followed
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
}

/// Arguments of `millrace touch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace touch nfs://127.0.0.1/data/file
  millrace touch -d '1960-02-06 12:00' nfs://127.0.0.1/data/file
  millrace touch -c -d 2026-11-28T12:00:00Z nfs://127.0.0.1/data/file")]
pub(crate) struct TouchArgs {
    /// Files, created if they do not exist, or directories
    #[arg(value_name = "URL", required = true, value_parser = url())]
    pub(crate) urls: Vec<String>,

    /// Create no file
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,

    /// The time, local or with Z, instead of the server's
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub(crate) date: Option<NfsTime>,
}

/// A time such as `2026-11-28T12:00:00Z`, `2026-11-28 12:00` (local) or `@SECONDS`.
fn time(text: &str) -> Result<NfsTime, String> {
    if let Some(seconds) = text.strip_prefix('@').and_then(|s| s.parse().ok()) {
        return Ok(NfsTime { seconds, nanoseconds: 0 });
    }
    let local = |text: &str| text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok();
    let at = text.parse::<Timestamp>().ok().or_else(|| local(text).map(|at| at.timestamp()));
    let at = at.ok_or("write a time such as 2026-11-28T12:00:00Z, '2026-11-28 12:00' or @1000000000")?;
    // Before 1970, jiff counts the nanoseconds backwards.
    let (seconds, nanoseconds) = (at.as_second(), at.subsec_nanosecond());
    Ok(NfsTime {
        seconds: seconds + i64::from(nanoseconds.div_euclid(1_000_000_000)),
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000).unsigned_abs(),
    })
}

/// Arguments of `millrace clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace clean nfs://127.0.0.1/data                 list the temporary files below a directory
  millrace clean --remove nfs://127.0.0.1/data ./photos
  millrace clean --older 10m --remove ./photos        also files of the last day

A copy writes a new file under a name such as .NAME.millrace-0123456789abcdef, and removes it if it fails. It
remains if the program is killed, or cannot reach the server. Copies in progress have such files too: choose a
time after which none of them continues.")]
pub(crate) struct CleanArgs {
    /// Directories of a server or of this host, which are searched with their subdirectories
    #[arg(value_name = "URL|DIR", required = true)]
    pub(crate) places: Vec<OsString>,

    /// Remove the files
    #[arg(long)]
    pub(crate) remove: bool,

    /// Minimum time since the last change of a file, such as 30s, 10m, 12h or 1d
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = seconds)]
    pub(crate) older: i64,
}

/// A duration in seconds.
fn seconds(text: &str) -> Result<i64, String> {
    let units = [("s", 1), ("m", 60), ("h", 60 * 60), ("d", 24 * 60 * 60)];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let n: u32 = text.strip_suffix(unit)?.parse().ok()?;
        Some(i64::from(n) * factor)
    });
    parsed.ok_or_else(|| "write a number with the unit s, m, h or d, such as 12h".into())
}
