//! `mount`, and the helper that mount(8) calls for fstab lines.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

/// The names under which mount(8) looks for a helper: of the type `millrace`, and of the type that tables of mounts have.
const HELPERS: [&str; 2] = ["mount.millrace", "mount.fuse.millrace"];
/// `nosuid` and `nodev` are no defaults of mount(8), which hands over neither `suid` nor `dev`.
const OF_HELPER: [&str; 4] = ["mount", "--daemon", "-o", "suid,dev"];

/// Arguments of `millrace mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace mount nfs://HOST/data /mnt
  millrace mount 'nfs://HOST/data/photos?proto=tcp' /mnt -o ro,soft,timeo=100
  millrace mount nfs://HOST/data /mnt --daemon -o allow_other,nconnect=4
  millrace mount nfs://HOST/data /mnt --log debug

It stays in the foreground, prints `ready /mnt` on standard output when /mnt can be used, and unmounts at SIGTERM or
SIGINT, when everything is written; a second signal ends it at once. `umount /mnt` ends it too.

Options (-o), as in mount(8) and nfs(5):
  ro  hard  soft  timeo=TENTHS  retrans=N             hard (default) waits for a server that is gone; soft gives errors
  rsize=  wsize=  nconnect=  proto=  port=  provider=  mountport=  registration=  resvport  noresvport
  actimeo=  acregmin=  acregmax=  acdirmin=  acdirmax=  noac  lookupcache=all|positive|none
  allow_other            let every user in (brings default_permissions: the kernel judges by modes)
  default_permissions    without it the server is asked for rights when a file is opened
  sync                   writes are stable before they are answered
  writeback              the kernel gathers small writes; what other clients change is seen later
  local_lock=all  nolock locks hold on this machine only: there is nothing else yet
  suid  dev  exec  noexec  noatime  relatime  strictatime  nodiratime  lazytime  nosymfollow  dirsync  silent
                         as the kernel has them; nosuid and nodev are the default, but not under mount(8)
  remount                change ro, rw and the options of the line before on a mount that is there

fstab, with this program (or a link to it) as /sbin/mount.millrace, and for `mount -o remount` /sbin/mount.fuse.millrace:
  nfs://HOST/data  /mnt  millrace  allow_other,_netdev  0 0")]
pub(crate) struct MountArgs {
    /// What to mount: an export, or a directory in it
    pub(crate) url: String,

    /// Where: an empty directory
    pub(crate) dir: PathBuf,

    /// Mount options, with commas; may be given several times
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,

    /// Go to the background when the directory can be used; the log goes on in the system log
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Leave out options that are unknown
    #[arg(short = 's')]
    pub(crate) sloppy: bool,

    /// Read the command line, and mount nothing
    #[arg(short = 'f')]
    pub(crate) fake: bool,

    /// For mount(8), which may say it: without a meaning
    #[arg(short = 'n', short_alias = 'v', action = clap::ArgAction::Count, hide = true)]
    pub(crate) ignored: u8,

    /// For mount(8), which may say it: the type
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    pub(crate) kind: Option<String>,

    /// How long unmounting may take to write what is not written, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) grace: u64,
}

/// The command line; called as the helper of mount(8) it is that of `millrace mount --daemon`.
pub(crate) fn with_helper(mut line: Vec<OsString>) -> Vec<OsString> {
    let name = line.first().map(PathBuf::from);
    if name.as_deref().and_then(|p| p.file_name()).is_some_and(|n| HELPERS.iter().any(|h| n == *h)) {
        line.splice(1..1, OF_HELPER.map(OsString::from));
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn the_helper_of_mount_is_understood() {
        let words =
            ["/sbin/mount.millrace", "nfs://h/e", "/mnt", "-sn", "-v", "-o", "rw,_netdev", "-t", "millrace"];
        let line = with_helper(words.map(OsString::from).to_vec());
        let Command::Mount(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not mount") };
        assert!(args.daemon && args.sloppy && !args.fake);
        assert_eq!(
            (args.url.as_str(), args.options.join(",").as_str()),
            ("nfs://h/e", "suid,dev,rw,_netdev")
        );
        let words = ["millrace", "df", "nfs://h/e"].map(OsString::from).to_vec();
        assert_eq!(with_helper(words.clone()), words);
    }
}
