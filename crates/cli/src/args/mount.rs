//! `mount`, and its command line as a helper of mount(8).

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use millrace_client::Url;
use millrace_program::args::url;

/// Names of the helper of mount(8): for the type `millrace`, and for the type in the mount table.
const HELPERS: [&str; 2] = ["mount.millrace", "mount.fuse.millrace"];
/// Arguments of the helper. mount(8) omits the options `suid` and `dev`, which are its defaults.
const HELPER_ARGUMENTS: [&str; 4] = ["mount", "--daemon", "-o", "suid,dev"];

/// Arguments of `millrace mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace mount nfs://HOST/data /mnt
  millrace mount 'nfs://HOST/data/photos?proto=tcp' /mnt -o ro,soft,timeo=100
  millrace mount nfs://HOST/data /mnt --daemon -o allow_other,nconnect=4
  millrace mount nfs://HOST/data /mnt --log debug

The command stays in the foreground and prints `ready /mnt` on standard output when the mount is ready. At
SIGTERM or SIGINT, or when its terminal is closed, it writes back cached data and unmounts; a second signal
ends it immediately.
`umount /mnt` also ends it, and `millrace umount /mnt` waits until all data is written.

Options (-o), as in mount(8) and nfs(5):
  ro  hard  soft  timeo=TENTHS  retrans=N             hard (default) retries indefinitely; soft gives errors
  vers=3|4.1|4.2  proto=  port=  provider=  nconnect=  busy_poll=  rsize=  wsize=  mountport=  registration=
  sec=sys|krb5|krb5i|krb5p  resvport  noresvport
  xprtsec=none|tls|mtls  tls_ca=FILE  tls_cert=FILE  tls_key=FILE  tls_name=NAME
  actimeo=  acregmin=  acregmax=  acdirmin=  acdirmax=  noac  lookupcache=all|positive|none
  allow_other            grant access to all users (implies default_permissions: the kernel checks modes)
  default_permissions    without it the server checks permissions when a file is opened
  sync                   writes return when the data is on stable storage
  writeback              the kernel coalesces small writes; changes by other clients become visible later
  io_uring               requests over io_uring, if the kernel has it (fuse.enable_uring=Y); needs nconnect=1
  lock  nolock  local_lock=all|flock|posix|none  local locks; default: all with NFSv3, else none
  suid  dev  exec  noexec  noatime  relatime  strictatime  nodiratime  lazytime  nosymfollow  dirsync  silent
                         as in mount(8); the default is nosuid and nodev, except under mount(8)
  remount                change ro, rw and the options of the previous line on an existing mount

fstab, with this program (or a link to it) as /sbin/mount.millrace, and for `mount -o remount`
/sbin/mount.fuse.millrace:
  nfs://HOST/data  /mnt  millrace  allow_other,_netdev  0 0")]
pub(crate) struct MountArgs {
    /// The export, or a directory in it
    #[arg(value_parser = url())]
    pub(crate) url: String,

    /// The mount point, an empty directory
    pub(crate) dir: PathBuf,

    /// Mount options, separated by commas; may be repeated
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,

    /// Continue in the background when the mount is ready; log to the system log
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Ignore unknown options
    #[arg(short = 's')]
    pub(crate) sloppy: bool,

    /// Check the command line without mounting
    #[arg(short = 'f')]
    pub(crate) fake: bool,

    /// Accepted for mount(8) and ignored
    #[arg(short = 'n', action = clap::ArgAction::Count, hide = true)]
    pub(crate) ignored: u8,

    /// Accepted for mount(8): the file system type
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    pub(crate) kind: Option<String>,

    /// Time limit for writing back cached data when unmounting, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) grace: u64,
}

/// Arguments of `millrace umount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace umount /mnt

As umount(8), and it waits until the process of the mount has written all data and ended; what could not be
written is in its log. A mount whose process was killed is removed too. Without root it uses fusermount3.")]
pub(crate) struct UmountArgs {
    /// The mount point
    pub(crate) dir: PathBuf,
}

/// Returns the command line; if the program was called as the helper of mount(8), that of `millrace mount
/// --daemon`.
pub(crate) fn expand_mount_helper(mut line: Vec<OsString>) -> Vec<OsString> {
    let name = line.first().map(PathBuf::from);
    if name.as_deref().and_then(|p| p.file_name()).is_some_and(|n| HELPERS.iter().any(|h| n == *h)) {
        // fstab(5) names an export as HOST:/PATH, so that an entry of type nfs needs another type only.
        if let Some(source) = line.get_mut(1)
            && let Some(url) = source.to_str().and_then(Url::from_source)
        {
            *source = url.to_string().into();
        }
        line.splice(1..1, HELPER_ARGUMENTS.map(OsString::from));
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn mount_helper_command_line_is_accepted() {
        let words =
            ["/sbin/mount.millrace", "nfs://h/e", "/mnt", "-sn", "-v", "-o", "rw,_netdev", "-t", "millrace"];
        let line = expand_mount_helper(words.map(OsString::from).to_vec());
        let Command::Mount(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not mount") };
        assert!(args.daemon && args.sloppy && !args.fake);
        assert_eq!(
            (args.url.as_str(), args.options.join(",").as_str()),
            ("nfs://h/e", "suid,dev,rw,_netdev")
        );
        for source in ["h:/e", "nfs://h/e"] {
            let words = ["/sbin/mount.millrace", source, "/mnt"].map(OsString::from);
            let line = expand_mount_helper(words.to_vec());
            let Command::Mount(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("not mount")
            };
            assert_eq!(args.url, "nfs://h/e");
        }
        let words = ["millrace", "df", "nfs://h/e"].map(OsString::from).to_vec();
        assert_eq!(expand_mount_helper(words.clone()), words);
    }
}
