//! Replacement of the targets of a running server.

use std::fs;

use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    session::Direction,
};
use millrace_server::{Config, Server, TargetSettings, target_name};

use super::{
    DISK, addr,
    initiator::{GOOD, Initiator},
    local, make_file, with_luns,
};

const SECOND: &str = "iqn.2026-01.example.millrace:second";

#[test]
fn sessions_of_unchanged_disks_continue_and_others_log_out() {
    let exports = &["/x=memory:64MiB"][..];
    let start = with_luns(exports, &["/x/0,size=1MiB"]);
    let mut server = Server::start(start.clone()).unwrap();
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    assert_eq!(host.write(0, 0, 1, &[9; 512]).status, GOOD);

    // A second target is added; credentials of the first change. Its session continues.
    let secret = Secret::new(b"a secret of the host").unwrap();
    let mut both = start.clone();
    both.targets[0].chap = Some(Mutual::new(Credentials { name: "h".into(), secret }, None).unwrap());
    let luns = vec!["/x/1,size=2MiB".parse().unwrap()];
    both.targets.push(TargetSettings::new(target_name("second").unwrap(), luns));
    let done = server.reload(&both).unwrap();
    let names = [format!("target {DISK}"), format!("target {SECOND}")];
    assert_eq!((&done.added[..], &done.changed[..]), (&names[1..], &names[..1]));
    assert!(done.removed.is_empty() && done.unapplied.is_empty(), "{done}");
    assert_eq!(host.read(0, 0, 1, 512), [9; 512]);
    assert!(Initiator::log_in(addr(&server), Some(DISK), None).is_err());
    let mut second = Initiator::ready(addr(&server), SECOND, 0);
    assert_eq!(second.capacity(0), (4096, 512));
    assert_eq!(server.reload(&both).unwrap().to_string(), "nothing has changed");

    // The first target gets another disk, and the second is removed: both sessions end.
    let done = server.reload(&with_luns(exports, &["/x/2,size=1MiB"])).unwrap();
    assert_eq!((&done.changed[..], &done.removed[..]), (&names[..1], &names[1..]));
    host.expect_logout();
    second.expect_logout();
    assert!(Initiator::log_in(addr(&server), Some(SECOND), None).is_err());
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    assert_eq!(host.read(0, 0, 1, 512), [0; 512]);
}

#[test]
fn a_disk_with_a_number_retains_it_when_others_are_removed() {
    let exports = &["/x=memory:64MiB"][..];
    let both = with_luns(exports, &["/x/0,size=1MiB", "/x/1,size=2MiB,lun=5"]);
    let mut server = Server::start(both).unwrap();
    let mut host = Initiator::ready(addr(&server), DISK, 5);
    assert_eq!(host.capacity(5), (4096, 512));
    assert_eq!(host.write(5, 0, 1, &[7; 512]).status, GOOD);

    server.reload(&with_luns(exports, &["/x/1,lun=5"])).unwrap();
    host.expect_logout();
    let mut host = Initiator::ready(addr(&server), DISK, 5);
    assert_eq!(host.read(5, 0, 1, 512), [7; 512]);

    // A disk whose LUN alone changes is another device.
    server.reload(&with_luns(exports, &["/x/1"])).unwrap();
    host.expect_logout();
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    assert_eq!(host.read(0, 0, 1, 512), [7; 512]);
}

#[test]
fn a_reload_that_would_break_a_lun_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    make_file(dir.path(), "disk", 4096);
    let start = with_luns(&[&local(dir.path()), "/y=memory:8MiB"], &["/x/disk"]);
    let mut server = Server::start(start.clone()).unwrap();
    let mut host = Initiator::ready(addr(&server), DISK, 0);

    let removed = Config { exports: start.exports[1..].to_vec(), ..start.clone() };
    let e = server.reload(&removed).unwrap_err().to_string();
    assert!(e.contains(&format!("the LUN /x/disk of target {DISK}: no export contains it")), "{e}");
    let e = server.reload(&with_luns(&[&local(dir.path())], &["/x/none"])).unwrap_err().to_string();
    assert!(e.contains("does not exist"), "{e}");
    assert_eq!(host.write(0, 0, 1, &[3; 512]).status, GOOD);
    assert_eq!(server.stats().exports.len(), 2);

    let elsewhere = Config { listen_iscsi: Some("127.0.0.1:1".parse().unwrap()), ..start };
    assert_eq!(server.reload(&elsewhere).unwrap().unapplied, ["listen_iscsi"]);
}

#[test]
fn a_disk_grows_with_its_file_and_follows_the_export_s_read_only() {
    let dir = tempfile::tempdir().unwrap();
    make_file(dir.path(), "disk", 4096);
    let start = with_luns(&[&local(dir.path())], &["/x/disk"]);
    let mut server = Server::start(start.clone()).unwrap();
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    let identifier = host.identifier(0);
    fs::File::options().write(true).open(dir.path().join("disk")).unwrap().set_len(8192).unwrap();
    assert_eq!(host.capacity(0), (8, 512));
    server.reload(&start).unwrap();
    // UNIT ATTENTION: CAPACITY DATA HAS CHANGED.
    let attention = host.execute(0, [0; 16], Direction::None, Vec::new());
    assert_eq!((attention.status, attention.sense[2], attention.sense[12]), (2, 6, 0x2a));
    assert_eq!(host.capacity(0), (16, 512));

    let mut read_only = start;
    read_only.exports[0].read_only = true;
    let done = server.reload(&read_only).unwrap();
    assert_eq!(done.changed, ["/x".to_owned(), format!("target {DISK}")]);
    host.expect_logout();
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    assert_eq!(host.write(0, 0, 1, &[1; 512]).status, 2);
    assert_eq!(host.identifier(0), identifier);
}
