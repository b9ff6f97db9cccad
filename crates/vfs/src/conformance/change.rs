//! Counters of changes.

use super::{
    data::PAGE,
    fixture::{Fixture, mode, root, size},
    ranges::filled,
};
use crate::{FsResult, Handle, SetAttr, SetXattr};

fn done<T>(result: FsResult<T>) -> FsResult<()> {
    result.map(drop)
}

/// Executes changes of `object` one after another, as fast as possible. Each must be counted once, and increase ctime.
fn each_is_counted(f: &Fixture, object: &Handle, changes: &[(&str, &dyn Fn() -> FsResult<()>)]) {
    let mut last = f.attr(object);
    for (what, change) in changes {
        change().unwrap();
        let now = f.attr(object);
        assert!(now.ctime > last.ctime, "{what}: {:?}, then {:?}", last.ctime, now.ctime);
        assert_eq!(now.change, last.change + 1, "{what}");
        last = now;
    }
    // These change nothing.
    f.op(f.fs.getattr(object)).unwrap();
    f.op(f.fs.setattr(&root(), object, &SetAttr::default(), None)).unwrap();
    assert_eq!(f.attr(object).change, last.change);
}

pub(crate) fn every_change_of_a_file_is_counted(f: &Fixture) {
    let block = f.fs.info().clone_block.max(1) as usize;
    let (other, _) = filled(f, "other", 2 * block.max(PAGE));
    let (file, _) = filled(f, "file", 2 * block.max(PAGE));
    let (page, caller) = (PAGE as u64, root());
    let set_xattr = || done(f.op(f.fs.set_xattr(&caller, &file, b"n", b"1", SetXattr::Either)));
    each_is_counted(
        f,
        &file,
        &[
            ("write", &|| f.write(&caller, &file, 0, b"x")),
            ("the same write", &|| f.write(&caller, &file, 0, b"x")),
            ("mode", &|| f.set(&caller, &file, mode(0o600))),
            ("the same mode", &|| f.set(&caller, &file, mode(0o600))),
            ("truncate", &|| f.set(&caller, &file, size(page))),
            ("extend", &|| f.set(&caller, &file, size(2 * page))),
            ("the same size", &|| f.set(&caller, &file, size(2 * page))),
            ("deallocate", &|| done(f.op(f.fs.deallocate(&caller, &file, 0, page)))),
            ("zero", &|| done(f.op(f.fs.zero(&caller, &file, 0, page)))),
            ("allocate", &|| done(f.op(f.fs.allocate(&caller, &file, 0, 3 * page)))),
            ("copy", &|| done(f.op(f.fs.copy(&caller, &other, 0, &file, 0, page)))),
            ("clone", &|| done(f.op(f.fs.clone_range(&caller, &other, 0, &file, 0, block as u64)))),
            ("set an attribute", &set_xattr),
            ("set the same attribute", &set_xattr),
            ("remove an attribute", &|| done(f.op(f.fs.remove_xattr(&caller, &file, b"n")))),
            ("link", &|| done(f.op(f.fs.link(&caller, &file, &f.dir, b"link")))),
            ("rename", &|| done(f.op(f.fs.rename(&caller, &f.dir, b"link", &f.dir, b"moved")))),
            ("remove a link", &|| f.remove(&f.dir, "moved")),
        ],
    );
}

pub(crate) fn every_change_of_a_directory_is_counted(f: &Fixture) {
    let (dir, caller) = (f.subdir("dir"), root());
    let file = f.file("elsewhere");
    let rename = |from: &[u8], to: &[u8]| done(f.op(f.fs.rename(&caller, &dir, from, &dir, to)));
    each_is_counted(
        f,
        &dir,
        &[
            ("create", &|| done(f.create(&caller, &dir, b"a", mode(0o600)))),
            ("link", &|| done(f.op(f.fs.link(&caller, &file, &dir, b"b")))),
            ("rename", &|| rename(b"b", b"c")),
            ("replace", &|| rename(b"a", b"c")),
            ("mkdir", &|| done(f.mkdir(&caller, &dir, b"d", 0o700))),
            ("remove", &|| f.remove(&dir, "c")),
            ("rmdir", &|| f.rmdir(&dir, "d")),
            ("mode", &|| f.set(&caller, &dir, mode(0o755))),
        ],
    );
}
