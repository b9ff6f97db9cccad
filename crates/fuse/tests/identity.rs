//! Access by several users: set-ID bits and groups. Only root can switch users.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs,
    os::unix::{fs::MetadataExt, fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use common::{Export, Mounted, fuse_is_available};

/// A user and group without privileges.
const USER: u32 = 4711;
const GROUP: u32 = 4712;

fn can_act_as_others() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED, NOTHING WAS TESTED: only root can switch users");
    }
    is_root && fuse_is_available()
}

/// A mount whose root directory is writable for all.
fn mount_for_all(export: &Export, options: &str) -> Mounted {
    let mounted = export.mount("tcp", options);
    fs::set_permissions(&mounted.at, PermissionsExt::from_mode(0o777)).unwrap();
    mounted
}

/// A shell in `dir` with the credentials of the unprivileged user.
fn as_user(dir: &Path, script: &str) -> Command {
    let mut sh = Command::new("sh");
    sh.args(["-ec", script]).current_dir(dir).uid(USER).gid(GROUP).stdin(Stdio::null());
    sh
}

#[test]
fn writes_by_another_user_clear_set_id_bits() {
    if !can_act_as_others() {
        return;
    }
    for local in [false, true] {
        let export = Export::start(local);
        for options in ["allow_other", "allow_other,writeback"] {
            let mounted = mount_for_all(&export, options);
            let path = mounted.at.join("file");
            for change in ["echo more >> file", "echo new > file", "truncate -s 3 file", "truncate -s 9 file"]
            {
                fs::write(&path, "content").unwrap();
                fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
                let out = as_user(&mounted.at, change).output().unwrap();
                assert!(out.status.success(), "{local} {options} {change}: {out:?}");
                assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{local} {options} {change}");
            }
            mounted.unmount();
        }
    }
}

/// Reads a file twice in one thread: with the group that may read it, and after dropping that group.
const DROPS_GROUPS: &str = "read -r first < secret; echo $first; exec setpriv --clear-groups cat secret";

#[test]
fn dropped_group_is_not_used() {
    if !can_act_as_others() {
        return;
    }
    let export = Export::start(true);
    let mounted = mount_for_all(&export, "allow_other");
    let path = mounted.at.join("secret");
    fs::write(&path, "secret\n").unwrap();
    std::os::unix::fs::chown(&path, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    // A process of another user, with the capability to drop groups.
    let mut setpriv = Command::new("setpriv");
    setpriv.args([
        "--reuid",
        &USER.to_string(),
        "--regid",
        &USER.to_string(),
        "--groups",
        &GROUP.to_string(),
    ]);
    setpriv.args(["--inh-caps", "+setgid", "--ambient-caps", "+setgid", "sh", "-c", DROPS_GROUPS]);
    let out = setpriv.current_dir(&mounted.at).output().unwrap();
    let refused = String::from_utf8_lossy(&out.stderr).contains("Permission denied");
    assert!(out.stdout == b"secret\n" && refused, "{out:?}");
    mounted.unmount();
}
