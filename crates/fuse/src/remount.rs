//! Changes the flags of a mount (mount(8) `-o remount`).

use std::{fs, path::Path};

use millrace_fuse_session::{
    MountError as SystemError, flags,
    mountpoint::{self, MountEntry},
};
use rustix::{
    io::Errno,
    mount::{MountFlags, mount_remount},
};

use crate::{
    MountError, MountOptions,
    options::{IGNORED, invalid_option},
};

/// Options that the kernel shows for a FUSE mount, and that mount(8) passes back at a remount.
const KERNEL_OPTIONS: [&str; 5] = ["user_id", "group_id", "rootmode", "max_read", "blksize"];

/// Whether the option lists contain `remount`.
pub fn is_remount(lists: &[String]) -> bool {
    lists.iter().flat_map(|l| l.split(',')).any(|name| name.trim() == "remount")
}

/// Changes the flags of the export mounted on `dir` (`ro`, `rw`, `nosuid`, `noatime`, ...) according to
/// `lists`, the values of `-o`.
///
/// mount(8) adds the options from the kernel or `/etc/fstab` to those given by the user, so options that are
/// already set there are ignored.
///
/// # Errors
/// [`MountError::System`] if no export is mounted there, or the kernel rejects the change. [`MountError::Option`] if an
/// option is unknown or cannot be changed while mounted.
pub fn remount(dir: &Path, lists: &[String]) -> Result<(), MountError> {
    let refuse = |reason: &str| SystemError::MountPoint { path: dir.to_owned(), reason: reason.into() };
    let path = dir.canonicalize().map_err(|e| refuse(&e.to_string()))?;
    let mounted = mountpoint::mounted(&path).filter(|m| m.is_ours);
    let mounted = mounted.ok_or_else(|| refuse("millrace has not mounted an export there"))?;
    let fstab = fs::read_to_string("/etc/fstab").unwrap_or_default();
    let flags = new_flags(&mounted, &fstab_options(&fstab, &path), lists)?;
    mount_remount(&path, flags, "").map_err(|e| match e {
        Errno::BUSY => refuse("files are open for writing; close them or unmount"),
        e => SystemError::Kernel { path: path.clone(), source: e.into() },
    })?;
    Ok(())
}

/// Returns the new flags of the mount. `configured`: its options in `/etc/fstab`.
fn new_flags(mounted: &MountEntry, configured: &[&str], lists: &[String]) -> Result<MountFlags, MountError> {
    let mut flags = mounted.flags();
    for name in lists.iter().flat_map(|l| l.split(',')).map(str::trim).filter(|w| !w.is_empty()) {
        let key = name.split_once('=').map_or(name, |(key, _)| key);
        let ignored = name == "remount" || IGNORED.contains(&key) || KERNEL_OPTIONS.contains(&key);
        let already_set = configured.contains(&name) || mounted.option_names().any(|w| w == name);
        if flags::apply(&mut flags, name) || ignored || already_set {
            continue;
        }
        MountOptions::default().read(name, false)?;
        if !key.starts_with("x-") && !key.starts_with("X-") {
            let reason = "cannot be changed while the export is mounted; unmount it and mount it again with this option";
            return Err(invalid_option(name, reason));
        }
    }
    Ok(flags)
}

/// Returns the options in `/etc/fstab` for `path`.
fn fstab_options<'f>(fstab: &'f str, path: &Path) -> Vec<&'f str> {
    let escaped = mountpoint::escape(path);
    let lines = fstab.lines().map(str::trim).filter(|l| !l.starts_with('#'));
    let of_path = lines.map(|l| l.split_ascii_whitespace().collect::<Vec<_>>());
    let mut options = of_path.filter(|fields| fields.get(1).is_some_and(|at| *at == escaped));
    options
        .next()
        .and_then(|fields| fields.get(3).copied())
        .map(|o| o.split(',').collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSTAB: &str = "# nfs://h/e /mnt millrace ro 0 0\n\
        nfs://h/e  /other  millrace  rsize=4K\n\
        nfs://h/e\t/a\\040b\tmillrace\tallow_other,rsize=1M,_netdev,x-systemd.automount\t0 0\n";

    fn mounted(options: &str, super_options: &str) -> MountEntry {
        MountEntry { is_ours: true, options: options.into(), super_options: super_options.into() }
    }

    fn changed(lists: &str) -> Result<MountFlags, String> {
        let mounted =
            mounted("rw,nosuid,nodev,relatime", "rw,user_id=0,group_id=0,default_permissions,allow_other");
        let configured = fstab_options(FSTAB, Path::new("/a b"));
        new_flags(&mounted, &configured, &[lists.to_owned()]).map_err(|e| e.to_string())
    }

    #[test]
    fn remount_changes_only_given_flags() {
        let start = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME;
        assert_eq!(changed("remount,ro").unwrap(), start | MountFlags::RDONLY);
        assert_eq!(changed("remount,suid,noatime").unwrap(), MountFlags::NODEV | MountFlags::NOATIME);
    }

    #[test]
    fn options_of_kernel_and_fstab_are_ignored() {
        let all = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,rsize=1M,_netdev,\
            x-systemd.automount,remount";
        assert!(changed(all).is_ok());
    }

    #[test]
    fn unchangeable_options_are_named_in_the_error() {
        for (names, expected) in [
            ("remount,rsize=64K", "\"rsize=64K\": cannot be changed while the export is mounted"),
            ("remount,ro,soft", "\"soft\""),
            ("remount,rszie=64K", "unknown"),
        ] {
            let message = changed(names).unwrap_err();
            assert!(message.contains(expected), "{names}: {message}");
        }
    }

    #[test]
    fn remount_requires_a_mounted_export() {
        let message = remount(Path::new("/"), &["ro".into()]).unwrap_err().to_string();
        assert!(message.contains("has not mounted an export there"), "{message}");
    }
}
