//! iSCSI targets of a running server: disks on files of its exports.

mod initiator;
mod iser;
mod reload;

use std::{fs, net::SocketAddr, path::Path};

use initiator::{GOOD, Initiator};
use millrace_iscsi::session::Direction;
use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    login::LoginError,
};
use millrace_nfs::v3::{
    self, CreateOk, LinkArgs, LinkFail, LinkOk, MkdirArgs, PostOpAttr, Procedure, ReaddirArgs, ReaddirOk,
    RemoveArgs, RenameArgs, RenameFail, RenameOk, Res, Sattr, WccData,
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_scsi::DiskUsage;
use millrace_server::{Config, Hosted, LunSettings, Running, Server, TargetSettings, target_name};

use crate::common::{Caller, Proto, at, config, run};

const DISK: &str = "iqn.2026-01.example.millrace:disk";

/// A configuration with the target [`DISK`], which has these LUNs.
fn with_luns(exports: &[&str], luns: &[&str]) -> Config {
    let luns: Vec<LunSettings> = luns.iter().map(|lun| lun.parse().unwrap()).collect();
    Config {
        listen_iscsi: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        targets: vec![TargetSettings::new(target_name("disk").unwrap(), luns)],
        ..config(exports)
    }
}

fn addr(server: &Running) -> SocketAddr {
    server.iscsi_addr().unwrap()
}

fn local(dir: &Path) -> String {
    format!("/x=local:{}", dir.display())
}

fn make_file(dir: &Path, name: &str, size: u64) {
    fs::File::create(dir.join(name)).unwrap().set_len(size).unwrap();
}

#[test]
fn blocks_are_bytes_of_a_local_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    make_file(dir.path(), "d/disk0", 1 << 20);
    make_file(dir.path(), "disk1", 1 << 20);
    let export = local(dir.path());
    let server = Server::start(with_luns(&[&export], &["/x/d/disk0", "/x/disk1,block=4096,ro"])).unwrap();
    let mut host = Initiator::ready(addr(&server), DISK, 0);
    host.clear_attention(1);
    assert_eq!((host.capacity(0), host.capacity(1)), ((2048, 512), (256, 4096)));
    let data: Vec<u8> = (0..1024).map(|i| i as u8 ^ (i >> 3) as u8).collect();
    assert_eq!(host.write(0, 5, 2, &data).status, GOOD);
    assert_eq!(host.read(0, 5, 2, 1024), data);
    let file = fs::read(dir.path().join("d/disk0")).unwrap();
    assert_eq!((&file[2560..3584], &file[3584..3600]), (&data[..], &[0; 16][..]));
    // The second disk is write-protected: DATA PROTECT.
    let refused = host.write(1, 0, 1, &[1; 4096]);
    assert_eq!((refused.status, refused.sense[2]), (2, 7));
    assert!(host.identifier(0) != host.identifier(1));
    let stats = server.stats().iscsi;
    assert_eq!((stats.bytes_written, stats.logins, stats.failed > 0), (1024 + 4096, 1, true), "{stats:?}");
    assert!(stats.bytes_read >= 1024 && stats.opened == 1, "{stats:?}");
    assert_eq!(server.stats().tcp.opened, 0);
    let [first, second] = &server.stats().luns[..] else { unreachable!("two disks") };
    assert_eq!(
        (&*first.target, first.lun, first.path.to_str(), first.bytes),
        (DISK, 0, Some("/x/d/disk0"), 1 << 20)
    );
    let usage = DiskUsage { reads: 1, writes: 1, bytes_read: 1024, bytes_written: 1024 };
    assert_eq!((first.usage, second.usage), (usage, DiskUsage::default()), "a refused command moves nothing");
}

#[test]
fn a_file_of_a_memory_export_is_created_and_shared_with_nfs() {
    run(async {
        let server =
            Server::start(with_luns(&["/x=memory:64MiB,squash=none"], &["/x/disk0,size=8MiB"])).unwrap();
        let mut host = Initiator::ready(addr(&server), DISK, 0);
        assert_eq!(host.capacity(0), (16384, 512));
        assert_eq!(host.write(0, 16383, 1, &[0x5a; 512]).status, GOOD);
        let nfs = Caller::connect(&server, Proto::Tcp).await;
        let root = nfs.mount("/x").await.unwrap();
        let (file, attributes) = nfs.lookup(root, "disk0").await.unwrap();
        assert_eq!((attributes.size, attributes.mode & 0o7777), (8 << 20, 0o600));
        let (tail, eof) = nfs.read(file, (8 << 20) - 512, 4096).await.unwrap();
        assert!(eof && tail == [0x5a; 512]);
    });
}

/// Clients that may write the directory of a disk cannot end its persistent reservations.
#[test]
fn the_record_of_reservations_is_not_in_the_export() {
    let dir = tempfile::tempdir().unwrap();
    make_file(dir.path(), "disk", 1 << 20);
    make_file(dir.path(), "file", 0);
    let config = || with_luns(&[&format!("{},squash=none", local(dir.path()))], &["/x/disk"]);
    let mut cdb = [0; 16];
    (cdb[0], cdb[8]) = (0x5e, 16);
    let keys = |host: &mut Initiator| host.execute(0, cdb, Direction::Read, vec![0; 16]).data;
    let records = || {
        let names =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("reservations")).collect::<Vec<_>>()
    };
    run(async {
        let server = Server::start(config()).unwrap();
        let mut host = Initiator::ready(addr(&server), DISK, 0);
        // PERSISTENT RESERVE OUT, REGISTER, with APTPL.
        let (mut register, mut parameters) = ([0; 16], [0; 24]);
        (register[0], register[8], parameters[15], parameters[20]) = (0x5f, 24, 7, 1);
        assert_eq!(host.execute(0, register, Direction::Write, parameters.to_vec()).status, GOOD);
        let [record] = &records()[..] else { panic!("{:?}", records()) };

        let nfs = Caller::connect(&server, Proto::Tcp).await;
        let root = nfs.mount("/x").await.unwrap();
        let (file, _) = nfs.lookup(root, "file").await.unwrap();
        let args = ReaddirArgs { dir: root, cookie: 0, verifier: [0; 8], count: 4096 };
        let listed = nfs.nfs_with(Procedure::Readdir, &args, 8192, |d| {
            let res: Res<ReaddirOk<'_>, PostOpAttr> = d.get().unwrap();
            res.into_result().unwrap().entries.len()
        });
        assert_eq!(listed.await, 4, ". .. disk file");
        let of = |result: Result<(), v3::Status>| result.err();
        for name in [record.as_str(), &format!("{record}.new")] {
            let (what, missing, refused) =
                (at(root, name), Some(v3::Status::NoEnt), Some(v3::Status::Access));
            assert_eq!(of(nfs.lookup(root, name).await.map(drop)), missing);
            let unchecked = v3::CreateHow::Unchecked(Sattr { size: Some(0), ..Sattr::default() });
            assert_eq!(of(nfs.create_how(root, name, unchecked).await.map(drop)), refused);
            let args = MkdirArgs { where_: at(root, name), attributes: Sattr::default() };
            let made: Res<CreateOk, WccData> = nfs.nfs(Procedure::Mkdir, &args).await;
            assert_eq!(of(made.into_result().map(drop).map_err(|e| e.0)), refused);
            for procedure in [Procedure::Remove, Procedure::Rmdir] {
                let removed: Res<WccData, WccData> = nfs.nfs(procedure, &RemoveArgs { object: what }).await;
                assert_eq!(of(removed.into_result().map(drop).map_err(|e| e.0)), missing);
            }
            for (from, to, status) in [(name, "x", missing), ("file", name, refused)] {
                let args = RenameArgs { from: at(root, from), to: at(root, to) };
                let renamed: Res<RenameOk, RenameFail> = nfs.nfs(Procedure::Rename, &args).await;
                assert_eq!(of(renamed.into_result().map(drop).map_err(|e| e.0)), status);
            }
            let linked: Res<LinkOk, LinkFail> =
                nfs.nfs(Procedure::Link, &LinkArgs { file, link: what }).await;
            assert_eq!(of(linked.into_result().map(drop).map_err(|e| e.0)), refused);
        }
        assert_eq!(keys(&mut host)[15], 7);
    });
    let server = Server::start(config()).unwrap();
    assert_eq!(keys(&mut Initiator::ready(addr(&server), DISK, 0))[15], 7, "{:?}", records());
}

#[test]
fn discovery_lists_the_targets_with_the_address_of_the_connection() {
    let mut config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=1MiB"]);
    let second = TargetSettings {
        addresses: vec!["192.0.2.1:3260,1".parse().unwrap()],
        ..TargetSettings::new(target_name("second").unwrap(), vec!["/x/1,size=1MiB".parse().unwrap()])
    };
    config.targets.push(second);
    let server = Server::start(config).unwrap();
    let found = Initiator::discover(addr(&server));
    let found: Vec<_> = found.iter().map(|t| (t.name.as_str(), t.addresses[0].to_string())).collect();
    let here = format!("{},1", addr(&server));
    let second = "iqn.2026-01.example.millrace:second";
    assert_eq!(found, [(DISK, here), (second, "192.0.2.1:3260,1".to_owned())]);
}

#[test]
fn only_initiators_with_the_secret_log_in() {
    let credentials = |secret: &str| {
        let secret = Secret::new(secret.as_bytes()).unwrap();
        Mutual::new(Credentials { name: "host".into(), secret }, None).unwrap()
    };
    let mut config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=1MiB"]);
    config.targets[0].chap = Some(credentials("the secret of host"));
    assert!(!format!("{config:?}").contains("the secret of host"));
    let server = Server::start(config).unwrap();
    for chap in [None, Some(credentials("another secret of host"))] {
        let refused = Initiator::log_in(addr(&server), Some(DISK), chap).err();
        assert!(matches!(refused, Some(LoginError::Status(status)) if status.class == 2), "{refused:?}");
    }
    let mut host =
        Initiator::log_in(addr(&server), Some(DISK), Some(credentials("the secret of host"))).unwrap();
    host.clear_attention(0);
    assert_eq!(server.stats().iscsi.logins, 1);
}

#[test]
fn iscsi_and_nfs_share_the_limit_of_connections() {
    run(async {
        let mut config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=1MiB"]);
        config.limits.max_connections_per_client = Some(1);
        let server = Server::start(config).unwrap();
        let nfs = Caller::connect(&server, Proto::Tcp).await;
        nfs.mount("/x").await.unwrap();
        let mut second = std::net::TcpStream::connect(addr(&server)).unwrap();
        assert_eq!(std::io::Read::read(&mut second, &mut [0; 1]).unwrap(), 0, "the connection is closed");
        assert_eq!(server.stats().turned_away, 1);
    });
}

#[test]
fn stopping_asks_initiators_to_log_out() {
    run(async {
        let server = Server::start(with_luns(&["/x=memory:64MiB"], &["/x/0,size=1MiB"])).unwrap();
        let host = Initiator::ready(addr(&server), DISK, 0);
        let leave = std::thread::spawn(move || host.expect_logout());
        let stats = server.stop(std::time::Duration::from_secs(10)).await;
        leave.join().unwrap();
        assert_eq!((stats.iscsi.open, stats.iscsi.sessions), (0, 0));
    });
}

#[test]
fn an_unusable_file_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    make_file(dir.path(), "odd", 1000);
    make_file(dir.path(), "empty", 0);
    make_file(dir.path(), "fine", 8192);
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::hard_link(dir.path().join("fine"), dir.path().join("same")).unwrap();
    std::os::unix::fs::symlink("fine", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("/", dir.path().join("d/up")).unwrap();
    let export = local(dir.path());
    for (luns, reason) in [
        (&["/y/disk"][..], "no export contains it; add an [[export]] or correct the path"),
        (&["/x"], "no export contains it"),
        (&["/x/none"], "the file does not exist; create it"),
        (&["/x/none,ro,size=1MiB"], "the file does not exist; create it"),
        (&["/x/none/disk"], "there is no directory none"),
        (&["/x/fine/disk"], "fine is not a directory"),
        (&["/x/d"], "not a regular file"),
        (&["/x/link"], "link is a symbolic link"),
        (&["/x/d/up/etc/passwd"], "up is a symbolic link"),
        (&["/x/odd"], "its size is 1000 bytes; extend the file to a multiple of 512"),
        (&["/x/empty"], "its size is 0 bytes"),
        (&["/x/fine", "/x/same"], "another LUN has the same file"),
    ] {
        let e = Server::start(with_luns(&[&export], luns)).err().unwrap().to_string();
        let start = format!("the LUN {} of target {DISK}: ", luns.last().unwrap().split(',').next().unwrap());
        assert!(e.starts_with(&start) && e.contains(reason) && e.lines().count() == 1, "{e}");
    }
    assert!(!dir.path().join("none").exists());
    let e =
        Server::start(Config { listen_iscsi: None, ..with_luns(&[&export], &["/x/fine"]) }).err().unwrap();
    assert!(e.to_string().contains("give listen_iscsi"), "{e}");
    let mut small = with_luns(&[&export], &["/x/fine"]);
    small.limits.memory = millrace_server::ByteSize(64 << 20);
    let e = Server::start(small).err().unwrap().to_string();
    assert!(e.contains("SCSI commands of 8MiB need at least"), "{e}");
}

#[test]
fn a_hosted_server_refuses_targets() {
    run(async {
        let config = with_luns(&["/x=memory:64MiB"], &["/x/0,size=1MiB"]);
        let e = Hosted::start(config, TokioRuntime::current(), millrace_server::open).err().unwrap();
        assert!(e.to_string().contains("a hosted server has no iSCSI targets"), "{e}");
    });
}
