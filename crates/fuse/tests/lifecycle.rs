//! Mounting and unmounting: valid mount points, error messages, and that no mount or data is left behind.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{fs, time::Duration};

use common::{CASES, Export, HANG, fuse_is_available, is_mounted, proxy::Action, random_bytes};
use millrace_client::{
    Options, RetryPolicy,
    ops::{Procedure, Status},
};
use millrace_fuse::{Mount, MountOptions};

#[test]
fn mounted_export_is_usable_until_unmount() {
    if !fuse_is_available() {
        return;
    }
    for case in CASES {
        let export = Export::start(case.local);
        let mounted = export.mount(case.proto, "");
        let at = mounted.at.clone();
        assert!(is_mounted(&at));
        let data = random_bytes(3_000_001, 7);
        fs::create_dir(at.join("dir")).unwrap();
        fs::write(at.join("dir/file"), &data).unwrap();
        assert_eq!(fs::read(at.join("dir/file")).unwrap(), data, "{case:?}");
        mounted.unmount();
        assert!(!is_mounted(&at));
        // A second mount reads the same data.
        let again = export.mount(if case.proto == "tcp" { "rdma" } else { "tcp" }, "ro");
        assert_eq!(fs::read(again.at.join("dir/file")).unwrap(), data, "{case:?}");
        let mount_error = fs::write(again.at.join("dir/file"), "x").unwrap_err();
        assert_eq!(mount_error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        again.unmount();
    }
}

#[test]
fn dropped_or_externally_unmounted_mount_ends() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let dropped = export.mount("tcp", "");
    let at = dropped.at.clone();
    drop(dropped);
    assert!(!is_mounted(&at));

    let dir = tempfile::tempdir().unwrap();
    let mount =
        Mount::new(&export.url("rdma"), dir.path(), &MountOptions::default(), Options::default()).unwrap();
    millrace_fuse::detach(mount.path()).unwrap();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async { tokio::time::timeout(HANG, mount.ended()).await.unwrap() });
    mount.unmount(HANG).unwrap();
}

#[test]
fn busy_mount_is_unmounted_without_data_loss() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("rdma", "");
    let open = fs::File::create(mounted.at.join("open")).unwrap();
    std::io::Write::write_all(&mut &open, b"not closed").unwrap();
    let removed = fs::File::create(mounted.at.join("removed")).unwrap();
    fs::remove_file(mounted.at.join("removed")).unwrap();
    mounted.unmount();
    drop((open, removed));
    let again = export.mount("tcp", "");
    assert_eq!(fs::read(again.at.join("open")).unwrap(), b"not closed");
    let names: Vec<_> = fs::read_dir(&again.at).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["open"]);
}

#[test]
fn invalid_mount_points_and_servers_are_reported() {
    let export = Export::start(false);
    let dir = tempfile::tempdir().unwrap();
    let quick = Options::default().connect_timeout(Duration::from_secs(2)).retry(RetryPolicy::NONE);
    let mount_error = |url: &str, at: &std::path::Path| match Mount::new(
        &url.parse().unwrap(),
        at,
        &MountOptions::default(),
        quick.clone(),
    ) {
        Ok(_) => panic!("{url} was mounted on {}", at.display()),
        Err(e) => e.to_string(),
    };
    let good = export.url("tcp").to_string();
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(mount_error(&good, &dir.path().join("file")).contains("not a directory"));
    assert!(mount_error(&good, dir.path()).contains("not empty"));
    assert!(mount_error(&good, &dir.path().join("missing")).contains("create it first"));
    let empty = tempfile::tempdir().unwrap();
    let message = mount_error("nfs://127.0.0.1:1/data?proto=tcp", empty.path());
    assert!(
        message.contains("cannot connect") && message.contains("check that the server runs"),
        "{message}"
    );
    let message = mount_error(&good.replace("/data", "/other"), empty.path());
    assert!(message.contains("/data"), "{message}");
    // With one processor, one thread serves all connections.
    if std::thread::available_parallelism().unwrap().get() > 1 {
        let message = mount_error(&format!("{good}&busy_poll=50&nconnect=2"), empty.path());
        assert!(message.contains("busy_poll") && message.contains("nconnect=1"), "{message}");
    }
    if !fuse_is_available() {
        return;
    }
    let mounted = export.mount("tcp", "");
    assert!(mount_error(&good, &mounted.at).contains("already"));
    fs::write(mounted.at.join("file"), "").unwrap();
    let file = good.replace("/data", "/data/file");
    assert!(
        mount_error(&file, empty.path()).contains("not a directory"),
        "{}",
        mount_error(&file, empty.path())
    );
}

#[test]
fn unmount_reports_write_errors_not_reported_before() {
    if !fuse_is_available() {
        return;
    }
    for mount_error in [Procedure::Write, Procedure::Commit] {
        let export = Export::start(true);
        let mounted = export.mount_through_proxy("", move |seen| match seen.procedure {
            p if p == mount_error => Action::Fail(Status::NoSpc),
            _ => Action::Pass,
        });
        let write = |name: &str| {
            let mut f = fs::File::create(mounted.at.join(name)).unwrap();
            std::io::Write::write_all(&mut f, b"not to be stored").unwrap();
            f
        };
        // One program gets the error at fsync, one at close, one never.
        let error = write("told").sync_all().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        drop(write("closed"));
        let open = write("open");
        fs::create_dir(mounted.at.join("dir")).unwrap();
        fs::rename(mounted.at.join("open"), mounted.at.join("dir/renamed")).unwrap();
        let message = mounted.try_unmount(HANG).unwrap_err().to_string();
        let expected = "changes to 1 files were lost: \"dir/renamed\" (No space left on device";
        assert!(message.contains(expected) && !message.contains("inum"), "{mount_error:?}: {message}");
        drop(open);
    }
    // A reported error is not reported again.
    let export = Export::start(false);
    let mounted = export.mount_through_proxy("", |seen| match seen.procedure {
        Procedure::Write => Action::Fail(Status::NoSpc),
        _ => Action::Pass,
    });
    fs::write(mounted.at.join("closed"), "").unwrap();
    let f = fs::File::create(mounted.at.join("told")).unwrap();
    std::io::Write::write_all(&mut &f, b"not to be stored").unwrap();
    f.sync_all().unwrap_err();
    mounted.unmount();
}

#[test]
fn unmount_times_out_and_reports_lost_files() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let (mute, is_mute) = std::sync::mpsc::channel::<()>();
    let is_mute = std::sync::Mutex::new(is_mute);
    let mounted = export.mount_through_proxy("", move |seen| {
        if seen.procedure == Procedure::Write {
            let _ = is_mute.lock().unwrap().recv(); // Until the test ends.
        }
        Action::Pass
    });
    let open = fs::File::create(mounted.at.join("open")).unwrap();
    std::io::Write::write_all(&mut &open, b"never arrives").unwrap();
    let message = mounted.try_unmount(Duration::from_millis(300)).unwrap_err().to_string();
    assert!(
        message.contains("changes to 1 files were lost") && message.contains("did not reply in time"),
        "{message}"
    );
    drop((open, mute));
}
