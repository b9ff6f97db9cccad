//! Mount options of mount(8) and nfs(5), as given with `-o`.

use std::time::Duration;

use millrace_client::{Options, RetryPolicy, Url, Version};
use millrace_fuse_session::{device::MountRequest, flags};
use rustix::mount::MountFlags;

use crate::MountError;

/// Which names the kernel may cache (`lookupcache=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookupCache {
    /// Positive and negative entries.
    #[default]
    All,
    /// Positive entries only.
    Positive,
    /// No entries.
    None,
}

/// Mount options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags of mount(2) (`ro`, `nosuid`, `noatime`, ...).
    pub(crate) flags: MountFlags,
    /// Connection options in their original form (`rsize`, `wsize`, `nconnect`, `proto`, `port`, ...);
    /// [`Self::apply`] adds them to the URL.
    url: Vec<String>,
    /// Minimum attribute cache timeout of files, in seconds (`acregmin`).
    pub acregmin: u32,
    /// Maximum attribute cache timeout of files, in seconds (`acregmax`).
    pub acregmax: u32,
    /// Minimum cache timeout of directory attributes and of the names in the directory, in seconds
    /// (`acdirmin`).
    pub acdirmin: u32,
    /// Maximum cache timeout of directory attributes, in seconds (`acdirmax`).
    pub acdirmax: u32,
    /// Which names are cached (`lookupcache`).
    pub lookupcache: LookupCache,
    /// Fail after `timeo` and `retrans` (`soft`) instead of retrying forever (`hard`).
    pub soft: bool,
    /// Time to wait for a reply before reconnecting (`timeo`, given in tenths of a second).
    pub timeo: Duration,
    /// With `soft`: number of retries of a call (`retrans`).
    pub retrans: u32,
    /// Allow access by all users, not only the one who mounts (`allow_other`). Implies
    /// [`Self::default_permissions`], because cached names would otherwise be visible to users without access
    /// to them.
    pub allow_other: bool,
    /// The kernel checks permissions by mode; otherwise the server checks them when a file is opened
    /// (`default_permissions`).
    pub default_permissions: bool,
    /// Writes are stable before they return (`sync`; implied by `noac`).
    pub sync: bool,
    /// Locks of flock(2) are local to this mount, also with NFSv4 (`local_lock=flock` or `all`, `nolock`).
    pub local_flock: bool,
    /// Locks of fcntl(2) are local to this mount, also with NFSv4 (`local_lock=posix` or `all`, `nolock`).
    pub local_posix: bool,
    /// The mount fails if locks would be local because of NFSv3 (`lock`, `local_lock=none`).
    pub requires_locks: bool,
    /// Write-back caching by the kernel (`writeback`): small writes are faster, but attributes and sizes
    /// changed by other clients become visible late.
    pub writeback: bool,
    /// The kernel sends requests over io_uring instead of `/dev/fuse` (`io_uring`), if it offers that and the mount has one
    /// connection.
    pub io_uring: bool,
}

impl Default for MountOptions {
    /// The defaults of the Linux NFS client, plus `nosuid` and `nodev`.
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
            local_flock: false,
            local_posix: false,
            requires_locks: false,
            writeback: false,
            io_uring: false,
        }
    }
}

/// fstab options that are accepted and ignored: they concern other programs, or select the only supported
/// behaviour.
pub(crate) const IGNORED: [&str; 16] = [
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
    "intr",
    "nointr",
];
/// Options that are passed on in the URL.
const URL_OPTIONS: [&str; 14] = [
    "proto",
    "provider",
    "nconnect",
    "busy_poll",
    "rsize",
    "wsize",
    "mountport",
    "registration",
    "sec",
    "xprtsec",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
];
/// Valid options, for the error message about an unknown one.
const KNOWN_OPTIONS: &str = "ro, rw, proto=, port=, provider=, nconnect=, busy_poll=, rsize=, wsize=, mountport=, registration=, sec=, xprtsec=, tls_ca=, tls_cert=, tls_key=, tls_name=, resvport, \
    noresvport, hard, soft, timeo=, retrans=, ac, noac, actimeo=, acregmin=, acregmax=, acdirmin=, acdirmax=, \
    lookupcache=all|positive|none, sync, async, writeback, io_uring, allow_other, default_permissions, lock, nolock, local_lock=all|flock|posix|none, \
    vers=3|4.1|4.2, nfsvers=3|4.1|4.2, suid, nosuid, dev, nodev, exec, noexec, noatime, relatime, strictatime, nodiratime, lazytime, \
    nosymfollow, dirsync, silent, remount";

impl MountOptions {
    /// Parses a list such as `ro,rsize=256K,soft` and applies it to `self`. `sloppy`: ignore unknown options
    /// (mount(8) `-s`).
    ///
    /// # Errors
    /// [`MountError::Option`] names the option, the problem, and the valid options.
    pub fn read(&mut self, list: &str, sloppy: bool) -> Result<(), MountError> {
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let known = self.set(option).map_err(|reason| invalid_option(option, reason))?;
            if !known {
                let reason = format!("unknown option; valid options are {KNOWN_OPTIONS}");
                if !sloppy {
                    return Err(invalid_option(option, reason));
                }
                tracing::warn!("mount option {option:?} is unknown and ignored");
            }
        }
        Ok(())
    }

    /// Applies one option. `false`: the option is unknown.
    fn set(&mut self, option: &str) -> Result<bool, String> {
        let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
        match (key, value) {
            (name, None) if flags::apply(&mut self.flags, name) => {}
            ("remount", None) => return Err("remount applies only to an existing mount".into()),
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
            ("io_uring", None) => self.io_uring = true,
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("nolock", None) | ("local_lock", Some("all")) => self.set_local_locks(true, true),
            ("local_lock", Some("flock")) => self.set_local_locks(true, false),
            ("local_lock", Some("posix")) => self.set_local_locks(false, true),
            ("lock", None) | ("local_lock", Some("none")) => {
                self.set_local_locks(false, false);
                self.requires_locks = true;
            }
            ("local_lock", Some(_)) => return Err("expected all, flock, posix or none".into()),
            ("vers" | "nfsvers", Some(v)) => {
                let version: Version = if v == "3.0" { Version::V3 } else { v.parse()? };
                self.url.push(format!("vers={version}"));
            }
            ("resvport" | "noresvport", None) => self.url.push(option.to_owned()),
            ("port", Some(v)) => {
                v.parse::<u16>().ok().filter(|p| *p != 0).ok_or("expected a port (1 to 65535)")?;
                self.url.push(option.to_owned());
            }
            (key, Some(_)) if URL_OPTIONS.contains(&key) => self.url.push(option.to_owned()),
            (key, None) if IGNORED.contains(&key) => {}
            ("user", Some(_)) => {} // Written by mount(8): the user who may unmount.
            (key, _) => return Ok(key.starts_with("x-") || key.starts_with("X-")), // Options for other programs, such as x-systemd.automount.
        }
        Ok(true)
    }

    fn set_times(&mut self, s: u32) {
        (self.acregmin, self.acregmax, self.acdirmin, self.acdirmax) = (s, s, s, s);
    }

    fn set_local_locks(&mut self, flock: bool, posix: bool) {
        (self.local_flock, self.local_posix, self.requires_locks) = (flock, posix, false);
    }

    /// Whether the kernel checks permissions by mode, so that no access rights are requested from the server.
    pub(crate) fn checks_modes(&self) -> bool {
        self.default_permissions || self.allow_other
    }

    /// Parameters of mount(2).
    pub(crate) fn request(&self, source: String) -> MountRequest {
        let (allow_other, default_permissions) = (self.allow_other, self.checks_modes());
        MountRequest { source, flags: self.flags, allow_other, default_permissions }
    }

    /// Returns the URL with the connection options added, and the client options with timeouts and retries
    /// set.
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
        // Without the attributes before a change, the kernel would read a file again after it was written.
        Ok((url, options.timeout(self.timeo).retry(retry).attributes_before(true)))
    }
}

/// 100 years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn invalid_option(option: &str, reason: impl Into<String>) -> MountError {
    MountError::Option { option: option.to_owned(), reason: reason.into() }
}

fn seconds(key: &str, v: &str) -> Result<u32, String> {
    let n = v.parse::<u32>().ok().filter(|n| *n <= 86_400);
    n.ok_or_else(|| format!("{key}: expected a number of seconds from 0 to 86400"))
}

fn positive(key: &str, v: &str) -> Result<u64, String> {
    let n = v.parse::<u64>().ok().filter(|n| (1..=864_000).contains(n));
    n.ok_or_else(|| format!("{key}: expected a number from 1 to 864000, in tenths of a second"))
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
    fn parses_mount_options() {
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
    fn generic_mount_options_are_flags_or_ignored() {
        let words = "nodiratime,strictatime,lazytime,nosymfollow,silent,iversion,noiversion,nomand,rw,user=me,X-mount.mkdir";
        let (safe, all) = (MountFlags::NOSUID | MountFlags::NODEV, read(words).unwrap().flags);
        let flags = [F::NODIRATIME, F::STRICTATIME, F::LAZYTIME, F::NOSYMFOLLOW, F::SILENT];
        assert_eq!(all, flags.into_iter().fold(safe, F::union));
        // The options with which mount(8) calls its helper.
        assert_eq!(read("suid,dev,rw").unwrap().flags, F::empty());
        assert_eq!(read("suid,dev,ro,nosuid").unwrap().flags, F::NOSUID | F::RDONLY);
    }

    #[test]
    fn connection_options_change_url_and_client_options() {
        let url: Url = "nfs://server/data?proto=tcp&rsize=64K".parse().unwrap();
        let o = read("rsize=128K,nconnect=3,busy_poll=20,port=2050,soft,timeo=10,retrans=2").unwrap();
        let (url, options) = o.apply(&url, Options::default()).unwrap();
        assert_eq!((url.rsize, url.nconnect, url.port), (Some(128 << 10), Some(3), Some(2050)));
        assert_eq!(url.busy_poll, Some(Duration::from_micros(20)));
        assert_eq!(options.retry.max_elapsed, Duration::from_secs(3));
        assert_eq!((options.vers, options.attributes_before), (None, true));
        let (url, _) = read("nfsvers=4.2").unwrap().apply(&url, Options::default()).unwrap();
        assert_eq!(url.vers, Some(Version::V4_2));
        let message = read("nconnect=1000").unwrap().apply(&url, Options::default()).unwrap_err().to_string();
        assert!(message.contains("nconnect=1000") && message.contains("64"), "{message}");
    }

    #[test]
    fn unknown_or_invalid_options_are_named_in_the_error() {
        for (list, expected) in [
            ("ro,rszie=5", "\"rszie=5\": unknown option; valid options are ro, rw"),
            ("timeo=0", "tenths"),
            ("vers=4.0", "use 3, 4.1 or 4.2"),
            ("local_lock=some", "all, flock, posix or none"),
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
