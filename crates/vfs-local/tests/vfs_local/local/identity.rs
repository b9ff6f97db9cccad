//! Credentials of calls.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use millrace_vfs::{
    Access, CreateHow, FileSystem, FsError, Identity, NewNode, SetAttr, SetTime, Stability, Time,
};
use millrace_vfs_local::{IdentityMode, LocalConfig, LocalFs};

use super::common::*;

fn root_only() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not root: skipped");
    }
    root
}

#[test]
fn new_objects_belong_to_the_caller() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let fs = open(dir.path(), m);
        assert!(fs.uses_caller_credentials());
        let root = fs.root();
        let caller = Identity { uid: 1001, gid: 1002, gids: [1003].into_iter().collect() };
        let how = CreateHow::Guarded(SetAttr { uid: Some(1001), gid: Some(7), ..mode(0o640) });
        let f = wait(fs.create(&caller, &root, b"f", &how)).unwrap();
        assert_eq!((f.attr.uid, f.attr.gid, f.attr.mode), (1001, 1002, 0o640));
        let d = wait(fs.create_node(&caller, &root, b"d", &NewNode::Directory, &mode(0o2770))).unwrap();
        assert_eq!((d.attr.uid, d.attr.gid), (1001, 1002));
        let l = NewNode::Symlink(b"t".to_vec());
        assert_eq!(
            wait(fs.create_node(&caller, &root, b"l", &l, &SetAttr::default())).unwrap().attr.uid,
            1001
        );
        // The superuser may give files away.
        let how = CreateHow::Guarded(SetAttr { uid: Some(5), gid: Some(6), ..mode(0o4755) });
        let g = wait(fs.create(&Identity::root(), &root, b"g", &how)).unwrap();
        assert_eq!((g.attr.uid, g.attr.gid, g.attr.mode), (5, 6, 0o4755));
        let meta = std::fs::symlink_metadata(dir.path().join("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1001, 1002));
    }
}

#[test]
fn mode_bits_and_groups_control_access() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let fs = open(dir.path(), m);
        let root = fs.root();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, b"s").unwrap();
        chown(&secret, Some(1000), Some(2000)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o640)).unwrap();
        let f = lookup(&fs, &root, "secret").unwrap();
        let member = Identity { uid: 1001, gid: 1, gids: [9, 2000].into_iter().collect() };
        let (owner, other) = (user(1000), user(1001));
        for _ in 0..2 {
            assert_eq!(wait(fs.read(&other, &f, 0, 1)).unwrap_err(), FsError::Access);
            assert!(wait(fs.read(&member, &f, 0, 1)).is_ok());
            let w = wait(fs.write(&member, &f, 0, views(b"x"), Stability::Unstable));
            assert_eq!(w.unwrap_err(), FsError::Access);
        }
        let all = Access(0x3f);
        assert_eq!(wait(fs.access(&other, &f, all)).unwrap().0, Access(0));
        assert_eq!(wait(fs.access(&member, &f, all)).unwrap().0, Access(Access::READ));
        let rw = Access::READ | Access::MODIFY | Access::EXTEND;
        assert_eq!(wait(fs.access(&owner, &f, all)).unwrap().0, Access(rw));
        let how = CreateHow::Guarded(mode(0o644));
        assert_eq!(wait(fs.create(&other, &root, b"n", &how)).unwrap_err(), FsError::Access);
        assert_eq!(wait(fs.remove(&owner, &root, b"secret")).unwrap_err(), FsError::Access);
        assert_eq!(wait(fs.setattr(&other, &f, &mode(0o777), None)).unwrap_err(), FsError::Perm);
        // A cached permission is dropped when the mode changes through this server.
        wait(fs.setattr(&owner, &f, &mode(0o600), None)).unwrap();
        assert_eq!(wait(fs.read(&member, &f, 0, 1)).unwrap_err(), FsError::Access);
        let chown_it = SetAttr { uid: Some(1001), ..SetAttr::default() };
        assert_eq!(wait(fs.setattr(&owner, &f, &chown_it, None)).unwrap_err(), FsError::Perm);
    }
}

#[test]
fn owner_may_read_and_write_regardless_of_mode() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let fs = open(dir.path(), m);
        let caller = user(1000);
        let f = wait(fs.create(&caller, &fs.root(), b"f", &CreateHow::Guarded(mode(0)))).unwrap().handle;
        let w = wait(fs.write(&caller, &f, 0, views(b"abc"), Stability::FileSync)).unwrap();
        assert_eq!(w.count, 3);
        assert_eq!(wait(fs.read(&caller, &f, 0, 9)).unwrap().data.to_vec(), b"abc");
        let cut = SetAttr { size: Some(1), ..SetAttr::default() };
        assert_eq!(wait(fs.setattr(&caller, &f, &cut, None)).unwrap().after.unwrap().size, 1);
        assert_eq!(wait(fs.read(&user(1001), &f, 0, 9)).unwrap_err(), FsError::Access);
    }
}

#[test]
fn write_by_another_user_clears_set_id_bits() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = wait(fs.create(&me(), &fs.root(), b"f", &CreateHow::Guarded(mode(0o4777)))).unwrap();
        assert_eq!(f.attr.mode, 0o4777);
        wait(fs.write(&user(1000), &f.handle, 0, views(b"x"), Stability::Unstable)).unwrap();
        assert_eq!(wait(fs.getattr(&f.handle)).unwrap().mode, 0o777);
    }
}

#[test]
fn current_time_needs_write_permission_other_times_ownership() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = wait(fs.create(&me(), &fs.root(), b"f", &CreateHow::Guarded(mode(0o606)))).unwrap().handle;
        let now = SetAttr { mtime: SetTime::Now, ..SetAttr::default() };
        let then = SetAttr { mtime: SetTime::To(Time { seconds: 1, nanos: 0 }), ..SetAttr::default() };
        assert!(wait(fs.setattr(&user(1000), &f, &now, None)).is_ok());
        assert_eq!(wait(fs.setattr(&user(1000), &f, &then, None)).unwrap_err(), FsError::Perm);
        wait(fs.setattr(&me(), &f, &mode(0o600), None)).unwrap();
        assert_eq!(wait(fs.setattr(&user(1000), &f, &now, None)).unwrap_err(), FsError::Access);
    }
}

#[test]
fn invalid_ids_do_not_act_as_root() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = wait(fs.create(&me(), &fs.root(), b"f", &CreateHow::Guarded(mode(0o600)))).unwrap().handle;
        for caller in
            [user(u32::MAX), Identity { gid: u32::MAX, ..user(1) }, Identity { uid: u32::MAX, ..user(0) }]
        {
            let how = CreateHow::Guarded(mode(0o644));
            assert_eq!(wait(fs.create(&caller, &fs.root(), b"n", &how)).unwrap_err(), FsError::Perm);
            assert!(wait(fs.read(&caller, &f, 0, 1)).is_err());
        }
        // The thread's own credentials are restored.
        assert!(wait(fs.create(&me(), &fs.root(), b"n", &CreateHow::Guarded(mode(0o600)))).is_ok());
    }
}

#[test]
fn checked_mode_enforces_mode_bits() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = LocalConfig { identity: IdentityMode::ServerUser, ..config(dir.path(), m) };
        let fs = LocalFs::open(config).unwrap();
        assert!(!fs.uses_caller_credentials());
        let root = fs.root();
        let (other, how) = (user(54321), CreateHow::Guarded(mode(0o640)));
        assert_eq!(wait(fs.create(&other, &root, b"f", &how)).unwrap_err(), FsError::Access);
        let f = wait(fs.create(&me(), &root, b"f", &how)).unwrap().handle;
        assert_eq!(wait(fs.read(&other, &f, 0, 1)).unwrap_err(), FsError::Access);
        assert_eq!(wait(fs.access(&other, &f, Access(0x3f))).unwrap().0, Access(0));
        assert_eq!(wait(fs.setattr(&other, &f, &mode(0o777), None)).unwrap_err(), FsError::Perm);
        wait(fs.setattr(&me(), &root, &mode(0o1777), None)).unwrap();
        assert_eq!(wait(fs.remove(&other, &root, b"f")).unwrap_err(), FsError::Perm);
        let made =
            wait(fs.create(&other, &root, b"g", &CreateHow::Exclusive([1; 8], SetAttr::default()))).unwrap();
        assert_eq!(made.attr.uid, me().uid);
        let exclusive = |v| CreateHow::Exclusive([v; 8], mode(0o640));
        let again = CreateHow::Exclusive([1; 8], SetAttr::default());
        assert!(wait(fs.create(&other, &root, b"g", &again)).is_ok());
        let made = wait(fs.create(&other, &root, b"h", &exclusive(2))).unwrap();
        assert_eq!((made.attr.uid, made.attr.mode & 0o7777), (me().uid, 0o640));
        // The verifier of a file is no right to change its mode.
        wait(fs.setattr(&me(), &made.handle, &mode(0o600), None)).unwrap();
        let seen = wait(fs.create(&other, &root, b"h", &exclusive(2))).map(|again| again.attr.mode & 0o7777);
        assert!(matches!(seen, Ok(0o600) | Err(FsError::Perm)), "{seen:?}");
    }
}

/// The kernel does not check root, so the server must.
#[test]
fn checked_mode_enforces_posix_rules() {
    if !root_only() {
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let config = LocalConfig { identity: IdentityMode::ServerUser, ..config(dir.path(), m) };
        let fs = LocalFs::open(config).unwrap();
        let root = fs.root();
        let own = |name: &str, uid, gid, bits| {
            let path = dir.path().join(name);
            std::fs::write(&path, b"abc").unwrap();
            chown(&path, Some(uid), Some(gid)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
            lookup(&fs, &root, name).unwrap()
        };
        let caller = Identity { uid: 1000, gid: 1000, gids: [7].into_iter().collect() };
        let set = |caller: &Identity, f, set: SetAttr| {
            wait(fs.setattr(caller, f, &set, None)).map(|w| w.after.unwrap()).map(|a| (a.uid, a.gid, a.mode))
        };
        let chown = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        let f = own("f", 1000, 1000, 0o644);
        // chown to root and set-UID in one call.
        let both = SetAttr { uid: Some(0), ..mode(0o4755) };
        assert_eq!(set(&caller, &f, both), Err(FsError::Perm));
        assert_eq!(set(&caller, &f, chown(Some(1001), None)), Err(FsError::Perm));
        assert_eq!(set(&caller, &f, chown(None, Some(0))), Err(FsError::Perm));
        assert_eq!(set(&caller, &f, chown(Some(1000), Some(7))), Ok((1000, 7, 0o644)));
        assert_eq!(set(&caller, &f, mode(0o2755)), Ok((1000, 7, 0o2755)));
        let g = own("g", 1000, 50, 0o644);
        assert_eq!(set(&caller, &g, mode(0o6755)), Ok((1000, 50, 0o4755)), "not a member of the group");
        assert_eq!(set(&user(0), &g, SetAttr { uid: Some(5), ..mode(0o6755) }), Ok((5, 50, 0o6755)));
        // Files of others, written by users with permission.
        let h = own("h", 0, 0, 0o6777);
        let size = SetAttr { size: Some(1), ..SetAttr::default() };
        assert_eq!(set(&caller, &h, size), Ok((0, 0, 0o777)));
        let h = own("i", 0, 0, 0o6777);
        wait(fs.write(&caller, &h, 0, views(b"x"), Stability::Unstable)).unwrap();
        assert_eq!(wait(fs.getattr(&h)).unwrap().mode, 0o777);
        // New objects belong to root.
        let how = CreateHow::Guarded(SetAttr { uid: Some(0), gid: Some(0), ..mode(0o6777) });
        let made = wait(fs.create(&caller, &root, b"new", &how)).unwrap().attr;
        assert_eq!((made.uid, made.mode), (0, 0o777));
        let make = |caller: &Identity, name: &str, new| {
            wait(fs.create_node(caller, &root, name.as_bytes(), &new, &mode(0o6666))).map(|c| c.attr.mode)
        };
        assert_eq!(make(&caller, "block", NewNode::Block(7, 0)), Err(FsError::Perm));
        assert_eq!(make(&caller, "character", NewNode::Character(1, 1)), Err(FsError::Perm));
        assert_eq!(make(&caller, "fifo", NewNode::Fifo), Ok(0o666));
        assert_eq!(make(&caller, "socket", NewNode::Socket), Ok(0o666));
        assert_eq!(make(&user(0), "device", NewNode::Character(1, 3)), Ok(0o6666));
        // A directory without write permission cannot change its parent.
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::create_dir(dir.path().join("to")).unwrap();
        std::fs::set_permissions(dir.path().join("to"), std::fs::Permissions::from_mode(0o777)).unwrap();
        let to = lookup(&fs, &root, "to").unwrap();
        assert_eq!(wait(fs.rename(&caller, &root, b"d", &to, b"d")).unwrap_err(), FsError::Access);
        assert!(wait(fs.rename(&caller, &root, b"d", &root, b"e")).is_ok());
    }
}
