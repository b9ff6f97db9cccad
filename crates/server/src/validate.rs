//! Validation of a configuration: the checks that open neither addresses nor files.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_oncrpc::TransportSecurity;
use millrace_scsi::MAX_LUNS;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::{
    CertificateRule, KerberosSettings, ServerError,
    config::{Backend, Config, ExportConfig},
    error::InvalidSetting,
    export::strip_export,
    target_settings::{LunSettings, NO_EXPORT, TargetSettings},
};

/// Longer than any wake-up: to poll for longer gains nothing.
const MAX_BUSY_POLL: Duration = Duration::from_millis(1);

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`ServerError::Config`] with the reason and the required change.
    pub fn check(&self) -> Result<(), ServerError> {
        let has_block = self.listen_iscsi.is_some() || self.listen_iser.is_some();
        if self.listen_rdma.is_empty() && self.listen_tcp.is_empty() && !has_block {
            let what =
                "there is no address to listen on; give listen_rdma, listen_tcp, listen_iscsi or listen_iser";
            return Err(ServerError::Config(what.into()));
        }
        if !has_block && !self.targets.is_empty() {
            let what = "there are targets, but no address for iSCSI; give listen_iscsi or listen_iser";
            return Err(ServerError::Config(what.into()));
        }
        self.check_service()
    }

    /// Checks everything except the addresses, which a [`Hosted`](crate::Hosted) server ignores.
    pub(crate) fn check_service(&self) -> Result<(), ServerError> {
        self.invalid_settings().into_iter().next().map_or(Ok(()), |invalid| Err(invalid.into()))
    }

    /// The invalid settings among those that are independent of the addresses: exports, targets, limits, number of shards
    /// and busy polling.
    pub fn invalid_settings(&self) -> Vec<InvalidSetting> {
        let mut invalid = Vec::new();
        if self.shards == Some(0) {
            invalid.push(InvalidSetting::new("shards", "shards is 0; give at least 1"));
        }
        if self.busy_poll > MAX_BUSY_POLL {
            let what = "busy_poll is more than 1000 microseconds; give 0 to 1000";
            invalid.push(InvalidSetting::new("busy_poll", what));
        }
        for (i, e) in self.exports.iter().enumerate() {
            let name = e.check().map_err(|reason| InvalidSetting::new(format!("exports.{i}.name"), reason));
            invalid.extend(name.err());
        }
        invalid.extend(self.unprotected());
        invalid.extend(self.exports.iter().enumerate().flat_map(|(i, e)| invalid_certificates(i, e)));
        if self.tls.as_ref().is_some_and(|tls| tls.client_crl.is_some() && tls.client_ca.is_none()) {
            let what = "[tls] has `client_crl` without `client_ca`; add the file of the authorities";
            invalid.push(InvalidSetting::new("tls.client_crl", what));
        }
        invalid.extend(self.kerberos.as_ref().and_then(KerberosSettings::invalid));
        invalid.extend(self.without_kerberos());
        invalid.extend(self.overlaps());
        invalid.extend(invalid_targets(&self.targets, &self.exports));
        invalid.extend(self.nfs4.invalid());
        invalid.extend(self.limits.invalid(self.has_iscsi()));
        invalid
    }

    /// Exports and targets that want TLS for which there is no certificate.
    fn unprotected(&self) -> impl Iterator<Item = InvalidSetting> {
        let wants = |e: &ExportConfig| {
            let of_clients = e.clients.iter().map(|rule| e.of(rule).xprtsec);
            of_clients.fold(e.xprtsec, TransportSecurity::max)
        };
        let exports = self.exports.iter().enumerate();
        let exports =
            exports.map(move |(i, e)| (format!("exports.{i}"), format!("export {}", e.name), wants(e)));
        let targets = self.targets.iter().enumerate();
        let targets = targets.map(|(i, t)| (format!("targets.{i}"), format!("target {}", t.name), t.xprtsec));
        exports.chain(targets).filter_map(|(at, name, wanted)| {
            let missing = match (wanted, &self.tls) {
                (TransportSecurity::None, _) => return None,
                (_, None) => "there is no [tls]; add it with `certificate` and `key`",
                (TransportSecurity::Mtls, Some(tls)) if tls.client_ca.is_none() => {
                    "[tls] has no `client_ca`; add the file of the authorities of client certificates"
                }
                _ => return None,
            };
            let what = format!("{name} wants TLS (xprtsec), but {missing}");
            Some(InvalidSetting::new(format!("{at}.xprtsec"), what))
        })
    }

    /// Exports that want Kerberos, which is not configured.
    fn without_kerberos(&self) -> impl Iterator<Item = InvalidSetting> {
        let wants = |e: &ExportConfig| {
            e.sec.has_kerberos() || e.clients.iter().any(|rule| e.of(rule).sec.has_kerberos())
        };
        let without =
            self.exports.iter().enumerate().filter(move |(_, e)| self.kerberos.is_none() && wants(e));
        without.map(|(i, e)| {
            let what = format!(
                "export {} has a flavor of Kerberos (sec), but there is no [kerberos]; add it, with the `keytab` if it is not \
                 the default one",
                e.name
            );
            InvalidSetting::new(format!("exports.{i}.sec"), what)
        })
    }

    /// Whether memory must suffice for the commands of iSCSI.
    pub(crate) fn has_iscsi(&self) -> bool {
        self.listen_iscsi.is_some() || self.listen_iser.is_some() || !self.targets.is_empty()
    }

    /// Exports with the same name, and overlapping directories, in which the weaker of two policies would apply to a file.
    fn overlaps(&self) -> Vec<InvalidSetting> {
        let mut seen: Vec<(&str, Option<PathBuf>)> = Vec::new();
        let mut invalid = Vec::new();
        for (i, e) in self.exports.iter().enumerate() {
            let dir = match &e.backend {
                // Links and `..` are resolved if the directory exists; otherwise the paths are compared as
                // text.
                Backend::Local { path } => Some(path.canonicalize().unwrap_or_else(|_| path.clone())),
                Backend::Memory { .. } => None,
            };
            let inside = |a: &Option<PathBuf>, b: &Option<PathBuf>| match (a, b) {
                (Some(a), Some(b)) => (a.starts_with(b) || b.starts_with(a)) && !are_apart(a, b),
                _ => false,
            };
            if seen.iter().any(|(name, _)| *name == e.name) {
                let what =
                    format!("export {} is configured twice; give each export a different name", e.name);
                invalid.push(InvalidSetting::new(format!("exports.{i}.name"), what));
            } else if let Some((other, _)) = seen.iter().find(|(_, d)| inside(d, &dir)) {
                let what = format!(
                    "the directories of exports {other} and {} overlap; export one of them, or directories that do \
                     not overlap",
                    e.name
                );
                invalid.push(InvalidSetting::new(format!("exports.{i}.backend"), what));
            }
            seen.push((&e.name, dir));
        }
        invalid
    }
}

/// The invalid rules for certificates of export number `i`.
fn invalid_certificates(i: usize, e: &ExportConfig) -> Option<InvalidSetting> {
    let at = |what: &str, reason: &str| {
        Some(InvalidSetting::new(format!("exports.{i}.{what}"), format!("export {} has {reason}", e.name)))
    };
    if let Some(empty) = e.certificates.iter().position(CertificateRule::is_empty) {
        let what = "an entry of `certificates` for no certificate; give it subject, issuer, san, serial or fingerprint";
        return at(&format!("certificates.{empty}"), what);
    }
    if e.certificates.len() >= usize::from(u16::MAX) {
        return at("certificates", "too many entries of `certificates`; the maximum is 65534");
    }
    if !e.certificates.is_empty() && e.xprtsec != TransportSecurity::Mtls {
        let what = "`certificates`, which clients without a certificate evade; set xprtsec = [\"mtls\"]";
        return at("certificates", what);
    }
    None
}

/// Whether two directories are on different mounts of different file systems, so that an export of one does not contain
/// the other: exports do not cross mount points.
fn are_apart(a: &Path, b: &Path) -> bool {
    let identity = |path| {
        let st = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let is_known = st.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        is_known.then_some((st.stx_mnt_id, (st.stx_dev_major, st.stx_dev_minor)))
    };
    matches!((identity(a), identity(b)), (Some(a), Some(b)) if a.0 != b.0 && a.1 != b.1)
}

/// The invalid settings of `targets`, whose disks are on files of `exports`.
fn invalid_targets(targets: &[TargetSettings], exports: &[ExportConfig]) -> Vec<InvalidSetting> {
    let mut invalid = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        let name = &target.name;
        let mut add = |field: String, reason: String| {
            invalid.push(InvalidSetting::new(format!("targets.{i}.{field}"), reason));
        };
        if targets.iter().take(i).any(|t| t.name == *name) {
            add("name".into(), format!("target {name} is configured twice; give each target its own name"));
        }
        if target.luns.is_empty() || target.luns.len() > MAX_LUNS {
            let count = target.luns.len();
            add("luns".into(), format!("target {name} has {count} LUNs; give it 1 to {MAX_LUNS}"));
            continue;
        }
        for (j, (number, lun)) in target.numbered().enumerate() {
            if target.numbered().take(j).any(|(earlier, _)| earlier == number) {
                let reason =
                    format!("target {name} has two LUNs {}; give each its own number", number.number());
                add(format!("luns.{j}.lun"), reason);
            }
            let check = lun.check().and_then(|()| contained(lun, exports)).and_then(|()| {
                let earlier = targets.iter().take(i).flat_map(|t| &t.luns).chain(target.luns.iter().take(j));
                unique(lun, earlier)
            });
            if let Err((field, reason)) = check {
                let reason = format!("the LUN {} of target {name}: {reason}", lun.path.display());
                add(format!("luns.{j}.{field}"), reason);
            }
        }
    }
    invalid
}

/// Requires an export above the path.
fn contained(lun: &LunSettings, exports: &[ExportConfig]) -> Result<(), (&'static str, String)> {
    let below = |e: &ExportConfig| strip_export(e.name.as_bytes(), lun.path.as_os_str().as_bytes());
    match exports.iter().filter_map(below).any(|rest| !rest.is_empty()) {
        true => Ok(()),
        false => Err(("path", NO_EXPORT.into())),
    }
}

fn unique<'l>(
    lun: &LunSettings,
    mut earlier: impl Iterator<Item = &'l LunSettings>,
) -> Result<(), (&'static str, String)> {
    match earlier.any(|other| other.path == lun.path) {
        true => Err(("path", "another LUN has the same file; give each LUN its own file".into())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use millrace_scsi::Lun;

    use crate::{ByteSize, Limits, target_name};

    use super::*;

    #[test]
    fn invalid_limits_are_rejected() {
        let base = || Config {
            listen_tcp: vec!["127.0.0.1:2049".parse().unwrap()],
            limits: Limits { credits: 32, ..Limits::default() },
            ..Config::default()
        };
        let rejected = |c: Config, text: &str| {
            let e = c.check().unwrap_err().to_string();
            assert!(e.contains(text), "{e}");
        };
        let with = |f: fn(&mut Config)| {
            let mut c = base();
            f(&mut c);
            c
        };
        rejected(with(|c| c.limits.rtmax = ByteSize(8 << 20)), "rtmax");
        rejected(with(|c| c.limits.wtmax = ByteSize(5000)), "wtmax");
        rejected(with(|c| c.limits.credits = 0), "credits");
        rejected(with(|c| c.limits.memory = ByteSize(1 << 20)), "limits.memory");
        rejected(with(|c| c.limits.inline_size = ByteSize(10)), "inline_size");
        rejected(with(|c| c.limits.shared_receives = 15), "shared_receives");
        rejected(
            with(|c| (c.limits.shared_receives, c.limits.inline_size) = (16384, ByteSize(64 << 10))),
            "shared_receives",
        );
        rejected(with(|c| c.limits.max_connections_per_client = Some(0)), "max_connections_per_client");
        rejected(with(|c| c.limits.stall_timeout = 0), "stall_timeout");
        rejected(with(|c| c.limits.idle_timeout = 86_401), "idle_timeout");
        rejected(with(|c| c.shards = Some(0)), "shards");
        rejected(with(|c| c.busy_poll = MAX_BUSY_POLL + Duration::from_micros(1)), "busy_poll");
        rejected(with(|c| (c.listen_rdma.clear(), c.listen_tcp.clear()).0), "listen");
    }

    #[test]
    fn overlapping_directories_are_rejected_through_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir(dir.path().join("a2")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let checked = |one: &str, two: &str| {
            let of =
                |name: &str, at: &str| ExportConfig::new(name, Backend::Local { path: dir.path().join(at) });
            let exports = vec![of("/x", one), of("/x/y", two)];
            Config { exports, ..Config::default() }.invalid_settings()
        };
        for (one, two) in [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("link", "a/b")] {
            let [e] = checked(one, two).try_into().unwrap();
            assert_eq!(e.field, "exports.1.backend");
            assert!(e.reason.contains("the directories of exports /x and /x/y overlap"), "{e}");
        }
        assert_eq!(checked("a", "a2"), []);
        // On every Linux host, another file system is mounted there.
        assert_eq!(checked("/dev", "/dev/pts"), []);
    }

    #[test]
    fn invalid_targets_are_rejected_with_their_field() {
        let exports = ["/vol=memory:1MiB".parse().unwrap(), "/=memory:1MiB".parse().unwrap()];
        let target = |name: &str, luns: &[&str]| {
            let luns = luns.iter().map(|path| LunSettings::new(*path)).collect();
            TargetSettings::new(target_name(name).unwrap(), luns)
        };
        let a = || target("a", &["/vol/0"]);
        let numbered = |first| {
            let mut target = target("a", &["/vol/0", "/vol/1"]);
            target.luns[0].lun = Lun::new(first);
            target
        };
        assert_eq!(invalid_targets(&[numbered(2)], &exports), []);
        assert_eq!(invalid_targets(&[a(), target("b", &["/vol/1", "/x"])], &exports), []);
        for (targets, exports, field, reason) in [
            (vec![a(), a()], &exports[..], "targets.1.name", "configured twice"),
            (vec![target("a", &[])], &exports, "targets.0.luns", "1 to 256"),
            (vec![a(), target("b", &["/vol/1", "/vol/0"])], &exports, "targets.1.luns.1.path", "same file"),
            (vec![target("a", &["/vol/0", "/vol/0"])], &exports, "targets.0.luns.1.path", "same file"),
            (vec![numbered(1)], &exports, "targets.0.luns.1.lun", "two LUNs 1"),
            (vec![target("a", &["/x"])], &exports[..1], "targets.0.luns.0.path", "no export contains it"),
            (vec![target("a", &["/vol"])], &exports[..1], "targets.0.luns.0.path", "no export contains it"),
        ] {
            let invalid = invalid_targets(&targets, exports);
            let e = invalid.first().unwrap();
            assert_eq!(e.field, field);
            assert!(e.reason.contains(reason), "{e}");
        }
    }
}
