//! The words after `-o`, as mount(8) and nfs(5) have them.

use std::time::Duration;

use millrace_client::{Options, RetryPolicy, Url};
use rustix::mount::MountFlags;

use crate::{MountError, device::MountRequest, flags};

/// Which names the kernel may remember (`lookupcache=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookupCache {
    /// Those that are there, and those that are not.
    #[default]
    All,
    /// Those that are there.
    Positive,
    /// None.
    None,
}

/// How an export is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags of mount(2) (`ro`, `nosuid`, `noatime`, ...).
    pub(crate) flags: MountFlags,
    /// Options of the connection that belong to the URL (`rsize`, `wsize`, `nconnect`, `proto`, `port`, ...), as
    /// they were written; [`Self::apply`] puts them there.
    url: Vec<String>,
    /// Seconds that attributes of files hold at least (`acregmin`).
    pub acregmin: u32,
    /// And at most (`acregmax`).
    pub acregmax: u32,
    /// Seconds that attributes of directories, and names in them, hold at least (`acdirmin`).
    pub acdirmin: u32,
    /// And at most (`acdirmax`).
    pub acdirmax: u32,
    /// Which names are remembered.
    pub lookupcache: LookupCache,
    /// Give up after `timeo` and `retrans` (`soft`), or never (`hard`).
    pub soft: bool,
    /// How long an answer is waited for before the connection is made anew (`timeo`, in tenths of a second).
    pub timeo: Duration,
    /// With `soft`: how often a call is tried again (`retrans`).
    pub retrans: u32,
    /// Let every user in, not only the one who mounts (`allow_other`). Without [`Self::default_permissions`] cached
    /// names would be shown to those who may not see them, so it brings it.
    pub allow_other: bool,
    /// The kernel judges by modes; else the server is asked when a file is opened (`default_permissions`).
    pub default_permissions: bool,
    /// Writes are stable before they are answered (`sync`; `noac` brings it).
    pub sync: bool,
    /// The kernel gathers writes in its page cache (`writeback`): faster for small ones, but attributes and sizes that
    /// others change are seen late.
    pub writeback: bool,
}

impl Default for MountOptions {
    /// The defaults of Linux's NFS client, but for `nosuid` and `nodev`.
    fn default() -> Self {
        Self {
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            url: Vec::new(),
            acregmin: 3,
            acregmax: 60,
            acdirmin: 30,
            acdirmax: 60,
            lookupcache: LookupCache::All,
            soft: false,
            timeo: Duration::from_secs(60),
            retrans: 2,
            allow_other: false,
            default_permissions: false,
            sync: false,
            writeback: false,
        }
    }
}

/// Options without a meaning here, which fstab lines have: they are for others, or the only choice.
pub(crate) const IGNORED: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "iversion",
    "noiversion",
    "nomand",
    "nolock",
    "intr",
    "nointr",
];
/// Options of the URL.
const URL_OPTIONS: [&str; 7] =
    ["proto", "provider", "nconnect", "rsize", "wsize", "mountport", "registration"];
/// What is known, for the message about what is not.
const KNOWN_OPTIONS: &str = "ro, rw, proto=, port=, provider=, nconnect=, rsize=, wsize=, mountport=, registration=, resvport, \
    noresvport, hard, soft, timeo=, retrans=, ac, noac, actimeo=, acregmin=, acregmax=, acdirmin=, acdirmax=, \
    lookupcache=all|positive|none, sync, async, writeback, allow_other, default_permissions, nolock, local_lock=all, \
    vers=3, suid, nosuid, dev, nodev, exec, noexec, noatime, relatime, strictatime, nodiratime, lazytime, nosymfollow, \
    dirsync, silent, remount";

impl MountOptions {
    /// Reads a list such as `ro,rsize=256K,soft`, adding to what is there. `sloppy`: leave out what is unknown
    /// (mount(8) `-s`).
    ///
    /// # Errors
    /// [`MountError::Option`] names the option, what is wrong, and what there is.
    pub fn read(&mut self, list: &str, sloppy: bool) -> Result<(), MountError> {
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let known = self.set(option).map_err(|reason| invalid_option(option, reason))?;
            if !known {
                let reason = format!("unknown; there are {KNOWN_OPTIONS}");
                if !sloppy {
                    return Err(invalid_option(option, reason));
                }
                tracing::warn!("mount option {option:?} is unknown and left out");
            }
        }
        Ok(())
    }

    /// Takes one option; `false`: it is not known.
    fn set(&mut self, option: &str) -> Result<bool, String> {
        let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
        match (key, value) {
            (name, None) if flags::apply(&mut self.flags, name) => {}
            ("remount", None) => return Err("it changes a mount, and makes none".into()),
            ("hard", None) => self.soft = false,
            ("soft", None) => self.soft = true,
            ("timeo", Some(v)) => {
                let tenths: u64 = positive(key, v)?;
                self.timeo = Duration::from_millis(tenths * 100);
            }
            ("retrans", Some(v)) => self.retrans = seconds(key, v)?,
            ("ac", None) => {}
            ("noac", None) => {
                self.set_times(0);
                self.lookupcache = LookupCache::None;
                self.sync = true;
            }
            ("actimeo", Some(v)) => self.set_times(seconds(key, v)?),
            ("acregmin", Some(v)) => self.acregmin = seconds(key, v)?,
            ("acregmax", Some(v)) => self.acregmax = seconds(key, v)?,
            ("acdirmin", Some(v)) => self.acdirmin = seconds(key, v)?,
            ("acdirmax", Some(v)) => self.acdirmax = seconds(key, v)?,
            ("lookupcache", Some(v)) => self.lookupcache = lookupcache(v)?,
            ("sync", None) => self.sync = true,
            ("writeback", None) => self.writeback = true,
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("local_lock", Some("all" | "flock" | "posix")) => {}
            ("local_lock", Some(_)) | ("lock", None) => {
                return Err(
                    "locks are local to this machine; only local_lock=all (or nolock) can be had".into()
                );
            }
            ("vers" | "nfsvers", Some("3" | "3.0")) => {}
            ("vers" | "nfsvers", Some(_)) => return Err("only version 3 can be had".into()),
            ("resvport" | "noresvport", None) => self.url.push(option.to_owned()),
            ("port", Some(v)) => {
                v.parse::<u16>().ok().filter(|p| *p != 0).ok_or("expected a port (1 to 65535)")?;
                self.url.push(option.to_owned());
            }
            (key, Some(_)) if URL_OPTIONS.contains(&key) => self.url.push(option.to_owned()),
            (key, None) if IGNORED.contains(&key) => {}
            ("user", Some(_)) => {} // mount(8) names the user who may unmount.
            (key, _) => return Ok(key.starts_with("x-") || key.starts_with("X-")), // x-systemd.automount and the like.
        }
        Ok(true)
    }

    fn set_times(&mut self, s: u32) {
        (self.acregmin, self.acregmax, self.acdirmin, self.acdirmax) = (s, s, s, s);
    }

    /// The kernel compares modes with callers, and the server is not asked for rights.
    pub(crate) fn checks_modes(&self) -> bool {
        self.default_permissions || self.allow_other
    }

    /// What mount(2) is asked for.
    pub(crate) fn request(&self, source: String) -> MountRequest {
        let (allow_other, default_permissions) = (self.allow_other, self.checks_modes());
        MountRequest { source, flags: self.flags, allow_other, default_permissions }
    }

    /// Puts the options of the connection into `url`, and those of calls into `options`.
    ///
    /// # Errors
    /// [`MountError::Option`].
    pub fn apply(&self, url: &Url, options: Options) -> Result<(Url, Options), MountError> {
        let mut url = url.clone();
        for option in &self.url {
            if let Some(port) = option.strip_prefix("port=") {
                url.port = port.parse().ok();
                continue;
            }
            url.set_option(option).map_err(|reason| invalid_option(option, reason))?;
        }
        let max_elapsed = if self.soft { self.timeo * (self.retrans + 1) } else { FOREVER };
        let retry = RetryPolicy { max_elapsed, ..RetryPolicy::default() };
        Ok((url, Options { timeout: self.timeo, retry, ..options }))
    }
}

/// A hundred years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn invalid_option(option: &str, reason: impl Into<String>) -> MountError {
    MountError::Option { option: option.to_owned(), reason: reason.into() }
}

fn seconds(key: &str, v: &str) -> Result<u32, String> {
    let n = v.parse::<u32>().ok().filter(|n| *n <= 86_400);
    n.ok_or_else(|| format!("{key} takes a number from 0 to 86400"))
}

fn positive(key: &str, v: &str) -> Result<u64, String> {
    let n = v.parse::<u64>().ok().filter(|n| (1..=864_000).contains(n));
    n.ok_or_else(|| format!("{key} takes a number of tenths of a second from 1 to 864000"))
}

fn lookupcache(v: &str) -> Result<LookupCache, String> {
    match v {
        "all" => Ok(LookupCache::All),
        "pos" | "positive" => Ok(LookupCache::Positive),
        "none" => Ok(LookupCache::None),
        _ => Err("expected all, positive or none".into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::mount::MountFlags as F;

    use super::*;

    fn read(list: &str) -> Result<MountOptions, String> {
        let mut o = MountOptions::default();
        o.read(list, false).map(|()| o).map_err(|e| e.to_string())
    }

    #[test]
    fn the_words_of_mount_are_understood() {
        let o = read(
            "ro,soft,timeo=50,retrans=1,actimeo=7,acdirmax=9,allow_other,nosuid,_netdev,x-systemd.automount",
        )
        .unwrap();
        assert!(o.flags.contains(MountFlags::RDONLY) && o.soft && o.allow_other && o.checks_modes());
        assert_eq!((o.acregmin, o.acregmax, o.acdirmin, o.acdirmax), (7, 7, 7, 9));
        assert_eq!((o.timeo, o.retrans), (Duration::from_secs(5), 1));
        let o = read("noac").unwrap();
        assert_eq!((o.acregmax, o.lookupcache, o.sync), (0, LookupCache::None, true));
        assert_eq!(read("").unwrap(), MountOptions::default());
    }

    #[test]
    fn the_words_of_mount_8_for_every_file_system_are_flags_or_for_others() {
        let words = "nodiratime,strictatime,lazytime,nosymfollow,silent,iversion,noiversion,nomand,rw,user=me,X-mount.mkdir";
        let (safe, all) = (MountFlags::NOSUID | MountFlags::NODEV, read(words).unwrap().flags);
        let flags = [F::NODIRATIME, F::STRICTATIME, F::LAZYTIME, F::NOSYMFOLLOW, F::SILENT];
        assert_eq!(all, flags.into_iter().fold(safe, F::union));
        // As the helper of mount(8) begins.
        assert_eq!(read("suid,dev,rw").unwrap().flags, F::empty());
        assert_eq!(read("suid,dev,ro,nosuid").unwrap().flags, F::NOSUID | F::RDONLY);
    }

    #[test]
    fn options_of_the_connection_reach_the_url_and_its_client() {
        let url: Url = "nfs://server/data?proto=tcp&rsize=64K".parse().unwrap();
        let o = read("rsize=128K,nconnect=3,port=2050,soft,timeo=10,retrans=2").unwrap();
        let (url, options) = o.apply(&url, Options::default()).unwrap();
        assert_eq!((url.rsize, url.nconnect, url.port()), (Some(128 << 10), Some(3), 2050));
        assert_eq!(options.retry.max_elapsed, Duration::from_secs(3));
        let message = read("nconnect=1000").unwrap().apply(&url, Options::default()).unwrap_err().to_string();
        assert!(message.contains("nconnect=1000") && message.contains("64"), "{message}");
    }

    #[test]
    fn what_is_unknown_or_wrong_is_refused_by_name() {
        for (list, expected) in [
            ("ro,rszie=5", "\"rszie=5\": unknown; there are ro, rw"),
            ("timeo=0", "tenths"),
            ("vers=4.2", "only version 3"),
            ("lock", "local_lock"),
            ("lookupcache=some", "positive"),
            ("acregmin=-1", "0 to 86400"),
            ("port=70000", "65535"),
            ("ro=1", "unknown"),
        ] {
            let message = read(list).unwrap_err();
            assert!(message.contains(expected), "{list}: {message}");
        }
        let mut o = MountOptions::default();
        o.read("rszie=5,ro", true).unwrap();
        assert!(o.flags.contains(MountFlags::RDONLY));
        assert!(o.read("timeo=0", true).is_err());
    }
}
