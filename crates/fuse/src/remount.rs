//! Changing what the kernel keeps of a mount (mount(8) `-o remount`).

use std::{fs, path::Path};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount_remount},
};

use crate::{
    MountError, MountOptions, flags,
    mountpoint::{self, MountEntry},
    options::{IGNORED, invalid_option},
};

/// Options that the kernel shows of a FUSE mount, and mount(8) hands back at a remount.
const KERNEL_OPTIONS: [&str; 5] = ["user_id", "group_id", "rootmode", "max_read", "blksize"];

/// Whether `lists` of options ask for a change of a mount (`remount`).
pub fn is_remount(lists: &[String]) -> bool {
    lists.iter().flat_map(|l| l.split(',')).any(|name| name.trim() == "remount")
}

/// Changes the flags of the export that is mounted on `dir` (`ro`, `rw`, `nosuid`, `noatime`, ...) as `lists` of options
/// say, which are those of `-o`.
///
/// mount(8) hands over what the kernel or `/etc/fstab` has for the mount together with what it was asked for; so options
/// that stand there too ask for nothing.
///
/// # Errors
/// [`MountError::MountPoint`] when no export is mounted there. [`MountError::Option`] names an option that is unknown, or
/// cannot be changed while it is mounted. [`MountError::Kernel`] when the kernel refuses.
pub fn remount(dir: &Path, lists: &[String]) -> Result<(), MountError> {
    let refuse = |reason: &str| MountError::MountPoint { path: dir.to_owned(), reason: reason.into() };
    let path = dir.canonicalize().map_err(|e| refuse(&e.to_string()))?;
    let mounted = mountpoint::mounted(&path).filter(|m| m.is_ours);
    let mounted = mounted.ok_or_else(|| refuse("no export is mounted there by millrace"))?;
    let fstab = fs::read_to_string("/etc/fstab").unwrap_or_default();
    let flags = new_flags(&mounted, &fstab_options(&fstab, &path), lists)?;
    mount_remount(&path, flags, "").map_err(|e| match e {
        Errno::BUSY => refuse("files are open for writing there; close them, or unmount"),
        e => MountError::Kernel { path: path.clone(), source: e.into() },
    })
}

/// The flags that the mount is to have. `there`: the options that `/etc/fstab` has for it.
fn new_flags(mounted: &MountEntry, there: &[&str], lists: &[String]) -> Result<MountFlags, MountError> {
    let mut flags = mounted.flags();
    for name in lists.iter().flat_map(|l| l.split(',')).map(str::trim).filter(|w| !w.is_empty()) {
        let key = name.split_once('=').map_or(name, |(key, _)| key);
        let ignored = name == "remount" || IGNORED.contains(&key) || KERNEL_OPTIONS.contains(&key);
        let already_set = there.contains(&name) || mounted.option_names().any(|w| w == name);
        if flags::apply(&mut flags, name) || ignored || already_set {
            continue;
        }
        MountOptions::default().read(name, false)?;
        if !key.starts_with("x-") && !key.starts_with("X-") {
            let reason =
                "it cannot be changed while the export is mounted; unmount it, and mount it with this option";
            return Err(invalid_option(name, reason));
        }
    }
    Ok(flags)
}

/// The options that `/etc/fstab` has for `path`.
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
        let there = fstab_options(FSTAB, Path::new("/a b"));
        new_flags(&mounted, &there, &[lists.to_owned()]).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_change_and_others_stay() {
        let start = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME;
        assert_eq!(changed("remount,ro").unwrap(), start | MountFlags::RDONLY);
        assert_eq!(changed("remount,suid,noatime").unwrap(), MountFlags::NODEV | MountFlags::NOATIME);
    }

    #[test]
    fn what_the_kernel_or_fstab_has_is_no_request() {
        let all = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,rsize=1M,_netdev,\
            x-systemd.automount,remount";
        assert!(changed(all).is_ok());
    }

    #[test]
    fn what_cannot_be_changed_is_refused_by_name() {
        for (words, expected) in [
            ("remount,rsize=64K", "\"rsize=64K\": it cannot be changed while the export is mounted"),
            ("remount,ro,soft", "\"soft\""),
            ("remount,rszie=64K", "unknown"),
        ] {
            let message = changed(words).unwrap_err();
            assert!(message.contains(expected), "{words}: {message}");
        }
    }

    #[test]
    fn only_an_export_can_be_remounted() {
        let message = remount(Path::new("/"), &["ro".into()]).unwrap_err().to_string();
        assert!(message.contains("no export is mounted there"), "{message}");
    }
}
