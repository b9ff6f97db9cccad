//! Attributes, times and permissions.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    Access,
    FsError::{self, *},
    Identity, NewNode, SetAttr, SetTime, Stability, Time, WccAttr,
};

use super::{
    Capability,
    fixture::{Fixture, fails, member, mode, root, size, user},
};

fn owner(uid: u32, gid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() }
}

/// Creates a file of `caller` with this mode.
pub(super) fn file_of(f: &Fixture, caller: &Identity, name: &str, bits: u32) -> crate::Handle {
    let made = f.create(caller, &f.dir, name.as_bytes(), mode(bits)).unwrap().handle;
    f.set(caller, &made, mode(bits)).unwrap();
    made
}

pub(crate) fn new_objects_have_the_requested_attributes(f: &Fixture) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let attr = f.create(&root(), &f.dir, b"a", mode(0o604)).unwrap().attr;
    assert_eq!((attr.mode, attr.nlink, attr.size, attr.used), (0o604, 1, 0, 0));
    for t in [attr.atime, attr.mtime, attr.ctime] {
        assert!((now - 60..now + 60).contains(&t.seconds), "{t:?} is not about {now}");
    }
    let set = SetAttr { mtime: SetTime::To(Time { seconds: 1234, nanos: 5 }), ..mode(0o600) };
    let attr = f.create(&root(), &f.dir, b"b", set).unwrap().attr;
    assert_eq!(attr.mtime, Time { seconds: 1234, nanos: 5 });
    let dir = f.op(f.fs.create_node(&root(), &f.dir, b"d", &NewNode::Directory, &mode(0o711))).unwrap().attr;
    assert_eq!(dir.mode, 0o711);
    assert_eq!((dir.fsid, attr.fsid), (f.attr(&f.fs.root()).fsid, dir.fsid));
    assert_ne!(dir.fileid, attr.fileid);
    if f.has(Capability::Permissions) {
        let attr = f.create(&user(7), &f.dir, b"c", mode(0o600)).unwrap().attr;
        assert_eq!((attr.uid, attr.gid), (7, 7));
    }
}

pub(crate) fn setattr_changes_only_given_attributes(f: &Fixture) {
    let file = f.file("a");
    f.write(&root(), &file, 0, b"0123456789").unwrap();
    let before = f.attr(&file);
    let (seconds, nanos) = (1_000_000_000, 123_456_789);
    let set = SetAttr {
        mode: Some(0o751),
        size: Some(4),
        atime: SetTime::To(Time { seconds, nanos }),
        mtime: SetTime::To(Time { seconds: seconds + 1, nanos }),
        ..SetAttr::default()
    };
    f.set(&root(), &file, set).unwrap();
    let after = f.attr(&file);
    assert_eq!((after.mode, after.size), (0o751, 4));
    assert_eq!(after.atime, Time { seconds, nanos });
    assert_eq!(after.mtime, Time { seconds: seconds + 1, nanos });
    assert_eq!((after.uid, after.gid, after.nlink), (before.uid, before.gid, before.nlink));
    assert!(after.ctime > before.ctime);
    f.set(&root(), &file, mode(0o600)).unwrap();
    let last = f.attr(&file);
    assert_eq!((last.size, last.atime, last.mtime), (4, after.atime, after.mtime));
    f.set(&root(), &file, SetAttr { mtime: SetTime::Now, ..SetAttr::default() }).unwrap();
    assert!(f.attr(&file).mtime.seconds > seconds + 1);
    let sub = f.subdir("d");
    fails(f.set(&root(), &sub, size(0)), &[Inval, IsDir]);
    fails(f.set(&root(), &file, size(u64::MAX)), &[FBig, Inval]);
    let bad = SetTime::To(Time { seconds: 0, nanos: 1_000_000_000 });
    fails(f.set(&root(), &file, SetAttr { mtime: bad, ..SetAttr::default() }), &[Inval]);
}

pub(crate) fn setattr_with_mismatched_guard_changes_nothing(f: &Fixture) {
    let file = f.file("a");
    let old = f.attr(&file);
    let guarded = |guard, set| f.op(f.fs.setattr(&root(), &file, &set, Some(guard)));
    guarded(old.ctime, mode(0o600)).unwrap();
    let now = f.attr(&file);
    assert_eq!(now.mode, 0o600);
    fails(guarded(old.ctime, mode(0o777)), &[NotSync]);
    assert_eq!(f.attr(&file), now);
    guarded(now.ctime, size(3)).unwrap();
    assert_eq!(f.attr(&file).size, 3);
}

pub(crate) fn wcc_data_is_contiguous(f: &Fixture) {
    let file = f.file("a");
    let mut last = WccAttr::from(&f.attr(&file));
    for step in 0..8u64 {
        let wcc = match step % 3 {
            0 => f.op(f.fs.setattr(&root(), &file, &mode(0o600 + step as u32), None)).unwrap(),
            1 => {
                let data = f.pieces(b"data", 4);
                f.op(f.fs.write(&root(), &file, step, data, Stability::FileSync)).unwrap().wcc
            }
            _ => f.op(f.fs.commit(&root(), &file, 0, 0)).unwrap(),
        };
        if let Some(before) = wcc.before {
            assert_eq!(before, last, "step {step}");
        }
        let after = wcc.after.unwrap();
        assert_eq!(after, f.attr(&file));
        last = WccAttr::from(&after);
    }
    let mut last = WccAttr::from(&f.attr(&f.dir));
    for step in 0..6 {
        let wcc = match step % 3 {
            0 => f.create(&root(), &f.dir, b"b", mode(0o600)).unwrap().dir,
            1 => f.op(f.fs.rename(&root(), &f.dir, b"b", &f.dir, b"c")).unwrap().0,
            _ => f.op(f.fs.remove(&root(), &f.dir, b"c")).unwrap(),
        };
        if let Some(before) = wcc.before {
            assert_eq!(before, last, "step {step}");
        }
        last = WccAttr::from(&wcc.after.unwrap());
        assert_eq!(last, WccAttr::from(&f.attr(&f.dir)));
    }
}

pub(crate) fn every_change_updates_ctime(f: &Fixture) {
    let file = f.file("a");
    let mut last = f.attr(&file);
    let mut changes = 0;
    for bits in [0o600, 0o644, 0o600, 0o644] {
        f.set(&root(), &file, mode(bits)).unwrap();
        let now = f.attr(&file);
        // The clock of a local file system may have the coarse granularity of the kernel.
        assert!(now.ctime >= last.ctime);
        changes += u32::from(now.ctime > last.ctime);
        assert_eq!(now.mtime, last.mtime);
        last = now;
    }
    let fine_times = f.has(Capability::FineTimes);
    assert!(changes == 4 || !fine_times);
    std::thread::sleep(std::time::Duration::from_millis(if fine_times { 0 } else { 12 }));
    f.write(&root(), &file, 0, b"x").unwrap();
    let now = f.attr(&file);
    assert!(now.ctime > last.ctime && now.mtime > last.mtime);
    if f.has(Capability::HardLinks) {
        f.link(&file, &f.dir, "b").unwrap();
        assert!(f.attr(&file).ctime > now.ctime || !fine_times);
    }
    f.read(&root(), &file, 0, 1).unwrap();
    assert_eq!(f.attr(&file).mtime, now.mtime);
}

/// As by the NFS server of Linux. The mode has no meaning, and need not change.
pub(crate) fn the_mode_of_a_symlink_is_accepted(f: &Fixture) {
    let link = f.symlink(&f.dir, "link", b"target").unwrap().handle;
    f.set(&root(), &link, mode(0o700)).unwrap();
}

pub(crate) fn mode_bits_control_read_and_write(f: &Fixture) {
    // Owner 7, group 7: access of other users.
    let cases = [
        (0o640, member(8, &[7]), true, false),
        (0o640, user(8), false, false),
        (0o604, member(8, &[7]), false, false), // Only the first matching class applies.
        (0o604, user(8), true, false),
        (0o602, user(8), false, true),
        (0o060, member(8, &[1, 2, 7]), true, true),
        (0o000, user(7), true, true), // The owner has opened it before.
        (0o000, root(), true, true),
        (0o001, user(8), true, false), // Execute permission allows reading.
    ];
    for (at, (bits, caller, may_read, may_write)) in cases.into_iter().enumerate() {
        let file = file_of(f, &user(7), &format!("f{at}"), bits);
        let read = f.read(&caller, &file, 0, 1).map(drop);
        let write = f.write(&caller, &file, 0, b"x");
        let cut = f.set(&caller, &file, size(0));
        let expected = |may| if may { Ok(()) } else { Err(FsError::Access) };
        assert_eq!(read, expected(may_read), "read, mode {bits:o}, case {at}");
        assert_eq!(write, expected(may_write), "write, mode {bits:o}, case {at}");
        assert_eq!(cut, expected(may_write), "truncate, mode {bits:o}, case {at}");
    }
    let file = file_of(f, &user(7), "bits", 0o754);
    let all = Access::READ | Access::MODIFY | Access::EXTEND | Access::EXECUTE;
    assert_eq!(f.access(&user(7), &file, all), all);
    assert_eq!(f.access(&member(8, &[7]), &file, all), Access::READ | Access::EXECUTE);
    assert_eq!(f.access(&user(8), &file, all), Access::READ);
    assert_eq!(f.access(&user(8), &file, Access::EXECUTE), 0);
    assert_eq!(f.access(&root(), &file, 0xffff_ffff) & all, all);
}

pub(crate) fn directory_changes_need_search_and_write_permission(f: &Fixture) {
    let dir = f.mkdir(&user(7), &f.dir, b"d", 0o755).unwrap().handle;
    f.create(&user(7), &dir, b"a", mode(0o666)).unwrap();
    let other = user(8);
    f.op(f.fs.lookup(&other, &dir, b"a")).unwrap();
    fails(f.create(&other, &dir, b"b", mode(0o644)), &[FsError::Access]);
    fails(f.mkdir(&other, &dir, b"b", 0o755), &[FsError::Access]);
    fails(f.op(f.fs.remove(&other, &dir, b"a")), &[FsError::Access]);
    fails(f.op(f.fs.rename(&other, &dir, b"a", &f.dir, b"a")), &[FsError::Access]);
    let mine = file_of(f, &other, "mine", 0o644);
    fails(f.op(f.fs.link(&other, &mine, &dir, b"mine")), &[FsError::Access]);
    let limits = crate::ReadDirLimits { max_entries: 10, max_name_bytes: 1000, plus: false };
    f.op(f.fs.readdir(&other, &dir, 0, [0; 8], limits)).unwrap();
    f.set(&user(7), &dir, mode(0o711)).unwrap();
    fails(f.op(f.fs.readdir(&other, &dir, 0, [0; 8], limits)), &[FsError::Access]);
    f.op(f.fs.lookup(&other, &dir, b"a")).unwrap();
    f.set(&user(7), &dir, mode(0o744)).unwrap();
    fails(f.op(f.fs.lookup(&other, &dir, b"a")), &[FsError::Access]);
    f.op(f.fs.readdir(&other, &dir, 0, [0; 8], limits)).unwrap();
    let rights = Access::READ | Access::LOOKUP | Access::MODIFY | Access::EXTEND | Access::DELETE;
    assert_eq!(f.access(&other, &dir, rights), Access::READ);
    assert_eq!(f.access(&user(7), &dir, rights), rights);
    // Moving a directory to another parent changes its `..`, which requires write permission on it.
    let foreign = f.mkdir(&user(7), &f.dir, b"foreign", 0o755).unwrap().handle;
    let home = f.mkdir(&other, &f.dir, b"home", 0o755).unwrap().handle;
    fails(f.op(f.fs.rename(&other, &f.dir, b"foreign", &home, b"x")), &[FsError::Access]);
    assert_eq!(f.lookup(&f.dir, "foreign").unwrap(), foreign);
}

pub(crate) fn chown_follows_posix(f: &Fixture) {
    let file = file_of(f, &user(7), "a", 0o644);
    let before = f.attr(&file);
    fails(f.set(&user(8), &file, mode(0o777)), &[Perm]);
    fails(f.set(&user(7), &file, owner(8, 7)), &[Perm]);
    fails(f.set(&user(7), &file, owner(7, 9)), &[Perm]);
    fails(f.set(&user(8), &file, owner(8, 8)), &[Perm]);
    // SETATTR sets all attributes or none, although the mode alone could be set.
    fails(f.set(&user(7), &file, SetAttr { uid: Some(8), ..mode(0o600) }), &[Perm]);
    assert_eq!(f.attr(&file), before);
    f.set(&member(7, &[9]), &file, SetAttr { gid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(f.attr(&file).gid, 9);
    f.set(&root(), &file, owner(10, 11)).unwrap();
    assert_eq!((f.attr(&file).uid, f.attr(&file).gid), (10, 11));
}

pub(crate) fn changes_by_others_clear_set_id_bits(f: &Fixture) {
    let fresh = |name: &str| {
        let file = file_of(f, &user(7), name, 0o6777);
        assert_eq!(f.attr(&file).mode, 0o6777);
        file
    };
    let written = fresh("written");
    f.write(&user(8), &written, 0, b"x").unwrap();
    assert_eq!(f.attr(&written).mode, 0o777);
    let cut = fresh("cut");
    f.set(&user(8), &cut, size(9)).unwrap();
    assert_eq!(f.attr(&cut).mode, 0o777);
    let given = fresh("given");
    f.set(&member(7, &[9]), &given, SetAttr { gid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(f.attr(&given).mode, 0o777);
    // Set-GID requires membership in the group.
    let foreign = fresh("foreign");
    f.set(&root(), &foreign, owner(7, 12)).unwrap();
    f.set(&user(7), &foreign, mode(0o2755)).unwrap();
    assert_eq!(f.attr(&foreign).mode, 0o755);
}

pub(crate) fn setting_times_requires_permission(f: &Fixture) {
    let file = file_of(f, &user(7), "a", 0o642);
    let at = SetTime::To(Time { seconds: 5, nanos: 0 });
    let set = |caller: &Identity, atime, mtime| {
        f.set(caller, &file, SetAttr { atime, mtime, ..Default::default() })
    };
    set(&user(7), at, at).unwrap();
    // Write permission allows setting the current time only.
    set(&user(8), SetTime::Now, SetTime::Now).unwrap();
    assert!(f.attr(&file).mtime.seconds > 5);
    fails(set(&user(8), at, SetTime::Keep), &[Perm]);
    fails(set(&user(8), SetTime::Now, at), &[Perm]);
    fails(set(&member(8, &[7]), SetTime::Now, SetTime::Now), &[FsError::Access, Perm]);
}

pub(crate) fn sticky_directories_protect_entries(f: &Fixture) {
    let dir = f.mkdir(&user(7), &f.dir, b"tmp", 0o1777).unwrap().handle;
    for name in [b"a", b"b", b"c"] {
        f.create(&user(8), &dir, name, mode(0o666)).unwrap();
    }
    f.create(&user(9), &dir, b"mine", mode(0o666)).unwrap();
    f.mkdir(&user(8), &dir, b"d", 0o777).unwrap();
    let refused = [Perm, FsError::Access];
    fails(f.op(f.fs.remove(&user(9), &dir, b"a")), &refused);
    fails(f.op(f.fs.rmdir(&user(9), &dir, b"d")), &refused);
    fails(f.op(f.fs.rename(&user(9), &dir, b"a", &f.dir, b"a")), &refused);
    fails(f.op(f.fs.rename(&user(9), &dir, b"mine", &dir, b"a")), &refused);
    f.op(f.fs.remove(&user(8), &dir, b"a")).unwrap(); // its owner
    f.op(f.fs.remove(&user(7), &dir, b"b")).unwrap(); // the directory's owner
    f.op(f.fs.remove(&root(), &dir, b"c")).unwrap();
}

pub(crate) fn set_gid_directories_pass_on_their_group(f: &Fixture) {
    let dir = f.mkdir(&root(), &f.dir, b"team", 0o2777).unwrap().handle;
    f.set(&root(), &dir, SetAttr { gid: Some(50), ..mode(0o2777) }).unwrap();
    let file = f.create(&user(7), &dir, b"a", mode(0o644)).unwrap().attr;
    assert_eq!((file.uid, file.gid, file.mode), (7, 50, 0o644));
    let sub = f.op(f.fs.create_node(&user(7), &dir, b"d", &NewNode::Directory, &mode(0o755))).unwrap().attr;
    assert_eq!((sub.gid, sub.mode), (50, 0o2755));
}
