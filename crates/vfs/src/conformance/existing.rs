//! The tree that the file system contains when it is opened. These cases apply to read-only file systems too.

use std::collections::{BTreeSet, HashSet};

use super::{
    Capability,
    fixture::{Fixture, fails, mode, root},
};
use crate::{
    Access, Attr, CreateHow, DirEntry, FileKind,
    FsError::{self, *},
    FsResult, Handle, NewNode, ReadDirLimits, SetAttr, Stability, Time,
};

/// Number of objects that a case inspects.
const MAX_OBJECTS: usize = 1000;
/// Number of bytes of a file that a case reads.
const MAX_READ: u64 = 1 << 20;
const ALL: ReadDirLimits = ReadDirLimits { max_entries: 100_000, max_name_bytes: 1 << 24, plus: false };

/// An object of the tree.
struct Object {
    path: String,
    handle: Handle,
    attr: Attr,
    parent: Handle,
}

/// The objects below the root, at most [`MAX_OBJECTS`], directories before their entries. If the file system is
/// writable, it gets some objects first.
fn objects(f: &Fixture) -> Vec<Object> {
    if f.is_writable() {
        let sub = f.subdir("directory");
        let file = f.file("file");
        f.write(&root(), &file, 0, &[7; 200_000]).unwrap();
        f.create(&root(), &sub, b"empty", mode(0o600)).unwrap();
        if f.has(Capability::Symlinks) {
            f.symlink(&sub, "link", b"../file").unwrap();
        }
    }
    let (top, attr) = (f.fs.root(), f.attr(&f.fs.root()));
    let mut found = vec![Object { path: "/".into(), handle: top, attr, parent: top }];
    for at in 0.. {
        let Some(dir) = found.get(at).filter(|_| found.len() < MAX_OBJECTS) else { break };
        if dir.attr.kind == FileKind::Directory {
            let (dir, above) = (dir.handle, dir.path.clone());
            for entry in f.list(&dir, 1000) {
                let (handle, attr) = f.op(f.fs.lookup(&root(), &dir, &entry.name)).unwrap();
                let path = format!("{above}{}/", entry.name.escape_ascii());
                found.push(Object { path, handle, attr, parent: dir });
            }
        }
    }
    found
}

/// The attributes that reads do not change.
fn stable(attr: Attr) -> Attr {
    Attr { atime: Time::default(), ..attr }
}

/// The objects of one type.
fn of_kind(f: &Fixture, kind: FileKind) -> Vec<Object> {
    objects(f).into_iter().filter(|o| o.attr.kind == kind).collect()
}

pub(crate) fn root_is_its_own_parent(f: &Fixture) {
    let top = f.fs.root();
    assert_eq!(f.attr(&top).kind, FileKind::Directory);
    assert_eq!((f.lookup(&top, ".").unwrap(), f.lookup(&top, "..").unwrap()), (top, top));
    assert_eq!(f.fs.root(), top);
}

pub(crate) fn properties_are_consistent(f: &Fixture) {
    let (info, stat) = (f.fs.info(), f.op(f.fs.stat()).unwrap());
    assert!(info.name_max > 0 && info.link_max > 0 && info.max_file_size > 0, "{info:?}");
    assert!(info.time_delta_nanos > 0, "{info:?}");
    assert!(stat.available_bytes <= stat.free_bytes && stat.free_bytes <= stat.total_bytes, "{stat:?}");
    assert!(stat.available_files <= stat.free_files && stat.free_files <= stat.total_files, "{stat:?}");
    assert_eq!(f.fs.info(), info);
}

pub(crate) fn lookups_find_the_listed_entries(f: &Fixture) {
    let found = objects(f);
    let fsid = found[0].attr.fsid;
    for o in &found {
        assert_eq!(stable(f.attr(&o.handle)), stable(o.attr), "{}", o.path);
        assert_eq!(o.attr.fsid, fsid, "{}", o.path);
        assert!(o.attr.nlink > 0 && o.attr.mode <= 0o7777, "{}: {:?}", o.path, o.attr);
        if o.attr.kind == FileKind::Directory {
            assert_eq!(f.lookup(&o.handle, ".").unwrap(), o.handle, "{}", o.path);
            assert_eq!(f.lookup(&o.handle, "..").unwrap(), o.parent, "{}", o.path);
            check_listing(f, o);
        }
    }
}

/// Compares the entries of a directory with lookups of their names.
fn check_listing(f: &Fixture, dir: &Object) {
    let limits = ReadDirLimits { plus: true, ..ALL };
    let page = f.op(f.fs.readdir(&root(), &dir.handle, 0, [0; 8], limits)).unwrap();
    assert_eq!((page.eof, stable(page.attr)), (true, stable(dir.attr)), "{}", dir.path);
    let cookies: HashSet<_> = page.entries.iter().map(|e| e.cookie).collect();
    assert!(cookies.len() == page.entries.len() && !cookies.contains(&0), "{}: cookies", dir.path);
    let names: BTreeSet<_> = page.entries.iter().map(|e| e.name.as_slice()).collect();
    assert!(names.contains(&b"."[..]) && names.contains(&b".."[..]), "{}: no `.` or `..`", dir.path);
    assert_eq!(names.len(), page.entries.len(), "{}: duplicate names", dir.path);
    for DirEntry { fileid, name, plus, .. } in &page.entries {
        let (handle, attr) = f.op(f.fs.lookup(&root(), &dir.handle, name)).unwrap();
        let path = format!("{}{}", dir.path, name.escape_ascii());
        assert_eq!(*fileid, attr.fileid, "{path}");
        if let Some((found, found_attr)) = *plus {
            assert_eq!((found, stable(found_attr)), (handle, stable(attr)), "{path}");
        }
    }
}

pub(crate) fn pages_of_any_size_form_the_same_listing(f: &Fixture) {
    for dir in of_kind(f, FileKind::Directory).iter().take(20) {
        let names = |per_page| f.list(&dir.handle, per_page).into_iter().map(|e| e.name).collect::<Vec<_>>();
        let whole = names(1000);
        for per_page in [1, 2, 3, 7] {
            assert_eq!(names(per_page), whole, "{}, {per_page} entries a page", dir.path);
        }
        let narrow = ReadDirLimits { max_name_bytes: 0, ..ALL };
        let page = f.op(f.fs.readdir(&root(), &dir.handle, 0, [0; 8], narrow)).unwrap();
        assert_eq!((page.entries.len(), page.eof), (1, false), "{}", dir.path);
    }
}

pub(crate) fn files_are_read_to_their_end(f: &Fixture) {
    for file in of_kind(f, FileKind::Regular) {
        let size = file.attr.size;
        let whole = read_up_to(f, &file.handle, size.min(MAX_READ), 1 << 18);
        assert!(read_up_to(f, &file.handle, size.min(MAX_READ), 3001) == whole, "{}", file.path);
        let at_end = |offset, count| f.read(&root(), &file.handle, offset, count).unwrap();
        for offset in [size, size + 1, u64::MAX] {
            assert_eq!(at_end(offset, 10), (vec![], true), "{} at {offset}", file.path);
        }
        if size > 0 {
            assert_eq!(at_end(size - 1, 10).0.len(), 1, "{}", file.path);
            assert!(at_end(size - 1, 1).1, "{}: no end of file", file.path);
        }
        let read = f.op(f.fs.read(&root(), &file.handle, 0, 1)).unwrap();
        assert_eq!(read.attr.size, size, "{}", file.path);
    }
}

/// Reads `size` bytes in pieces of `piece` bytes.
fn read_up_to(f: &Fixture, file: &Handle, size: u64, piece: u32) -> Vec<u8> {
    let mut out = Vec::new();
    while (out.len() as u64) < size {
        let count = piece.min(u32::try_from(size - out.len() as u64).unwrap_or(piece));
        let (bytes, _) = f.read(&root(), file, out.len() as u64, count).unwrap();
        assert_eq!(bytes.len(), count as usize, "a short read before the end of the file");
        out.extend(bytes);
    }
    out
}

pub(crate) fn objects_of_the_wrong_type_are_rejected(f: &Fixture) {
    for o in objects(f) {
        let (h, path) = (&o.handle, &o.path);
        if o.attr.kind == FileKind::Directory {
            fails(f.read(&root(), h, 0, 1), &[IsDir, Inval]);
        } else {
            fails(f.lookup(h, "x"), &[NotDir, Inval]);
            fails(f.op(f.fs.readdir(&root(), h, 0, [0; 8], ALL)), &[NotDir]);
        }
        let target = f.op(f.fs.readlink(&root(), h));
        if o.attr.kind == FileKind::Symlink {
            fails(f.read(&root(), h, 0, 1), &[Inval]);
            assert_eq!(target.unwrap().0.len() as u64, o.attr.size, "{path}");
        } else {
            fails(target, &[Inval]);
        }
    }
}

pub(crate) fn unknown_and_invalid_names_are_rejected(f: &Fixture) {
    let too_long = vec![b'n'; f.fs.info().name_max as usize + 1];
    let bad: [(&[u8], _); 6] = [
        (b"", Inval),
        (b"a/b", Inval),
        (b"/", Inval),
        (b"a\0b", Inval),
        (&too_long, NameTooLong),
        (b"no object has this name", NoEnt),
    ];
    for (name, error) in bad {
        fails(f.op(f.fs.lookup(&root(), &f.dir, name)), &[error]);
    }
}

pub(crate) fn invalid_handles_are_rejected(f: &Fixture) {
    let bad = [Handle::new(&[]).unwrap(), Handle::new(&[9; 48]).unwrap(), Handle::new(b"x").unwrap()];
    for h in bad {
        fails(f.op(f.fs.getattr(&h)), &[BadHandle, Stale]);
        fails(f.lookup(&h, "a"), &[BadHandle, Stale]);
        fails(f.read(&root(), &h, 0, 1), &[BadHandle, Stale]);
        fails(f.op(f.fs.readdir(&root(), &h, 0, [0; 8], ALL)), &[BadHandle, Stale]);
        if f.is_writable() {
            fails(f.create(&root(), &h, b"a", mode(0o644)), &[BadHandle, Stale]);
        }
    }
    // A handle with one flipped bit is invalid or belongs to another object.
    for o in objects(f).iter().take(20) {
        for at in 0..o.handle.as_bytes().len() {
            let mut bytes = o.handle.as_bytes().to_vec();
            bytes[at] ^= 0x80;
            if let Ok(attr) = f.op(f.fs.getattr(&Handle::new(&bytes).unwrap())) {
                assert_ne!(stable(attr), stable(o.attr), "{}: byte {at} of the handle means nothing", o.path);
            }
        }
    }
}

pub(crate) fn access_grants_only_wanted_rights(f: &Fixture) {
    let all =
        Access::READ | Access::LOOKUP | Access::MODIFY | Access::EXTEND | Access::DELETE | Access::EXECUTE;
    let changes = Access::MODIFY | Access::EXTEND | Access::DELETE;
    for o in objects(f) {
        let granted = f.access(&root(), &o.handle, all);
        for wanted in [0, Access::READ, Access::LOOKUP, Access::MODIFY, Access::EXECUTE] {
            assert_eq!(f.access(&root(), &o.handle, wanted), granted & wanted, "{}", o.path);
        }
        if o.attr.kind == FileKind::Directory {
            let expected = Access::READ | Access::LOOKUP;
            assert_eq!(granted & expected, expected, "{}: rights of root", o.path);
        }
        if !f.is_writable() {
            assert_eq!(granted & changes, 0, "{}: rights to change", o.path);
        }
    }
}

pub(crate) fn changes_of_a_read_only_file_system_are_rejected(f: &Fixture) {
    if f.fs.info().writable {
        return;
    }
    let refused = |result: FsResult<()>| fails(result, &[RoFs, NotSupp, FsError::Access, Perm]);
    let before = objects(f);
    for o in before.iter().take(20) {
        let (caller, h) = (&root(), &o.handle);
        refused(f.set(caller, h, mode(0o700)));
        let dir = if o.attr.kind == FileKind::Directory { h } else { &o.parent };
        let how = CreateHow::Unchecked(SetAttr::default());
        refused(f.op(f.fs.create(caller, dir, b"new", &how)).map(drop));
        refused(f.op(f.fs.create_node(caller, dir, b"new", &NewNode::Directory, &mode(0o755))).map(drop));
        if o.attr.kind == FileKind::Regular {
            let data = f.pieces(b"x", 1);
            refused(f.op(f.fs.write(caller, h, 0, data, Stability::Unstable)).map(drop));
            refused(f.deallocate(h, 0, 1).map(drop));
            refused(f.zero(h, 0, 1).map(drop));
            refused(f.link(h, dir, "new"));
        }
    }
    for entry in f.list(&f.dir, 1000) {
        let (caller, dir, name) = (&root(), &f.dir, entry.name.as_slice());
        refused(f.op(f.fs.remove(caller, dir, name)).map(drop));
        refused(f.op(f.fs.rmdir(caller, dir, name)).map(drop));
        refused(f.op(f.fs.rename(caller, dir, name, dir, b"new")).map(drop));
    }
    let after = objects(f);
    let tree = |all: &[Object]| all.iter().map(|o| (o.path.clone(), stable(o.attr))).collect::<Vec<_>>();
    assert_eq!(tree(&after), tree(&before));
}
