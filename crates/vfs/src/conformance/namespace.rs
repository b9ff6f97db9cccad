//! Names: create, look up, rename and remove.

use crate::{CreateHow, FileKind, FsError::*, NewNode, SetAttr};

use super::{
    Capability,
    fixture::{Fixture, fails, mode, root, size},
};

pub(crate) fn lookup_finds_created_objects(f: &Fixture) {
    let made = f.create(&root(), &f.dir, b"a", mode(0o640)).unwrap();
    let (handle, attr) = f.op(f.fs.lookup(&root(), &f.dir, b"a")).unwrap();
    assert_eq!((handle, attr), (made.handle, made.attr));
    assert_eq!((attr.kind, attr.mode, attr.nlink, attr.size), (FileKind::Regular, 0o640, 1, 0));
    assert_eq!(f.attr(&handle), attr);
    assert_eq!(made.dir.after, Some(f.attr(&f.dir)));
    fails(f.lookup(&f.dir, "b"), &[NoEnt]);
    fails(f.lookup(&handle, "b"), &[NotDir]);
    fails(f.create(&root(), &handle, b"b", mode(0o640)), &[NotDir]);
}

pub(crate) fn invalid_names_are_rejected(f: &Fixture) {
    let longest = vec![b'n'; f.fs.info().name_max as usize];
    let file = f.create(&root(), &f.dir, &longest, mode(0o644)).unwrap().handle;
    let mut too_long = longest.clone();
    too_long.push(b'n');
    let (links, symlinks) = (f.has(Capability::HardLinks), f.has(Capability::Symlinks));
    let bad: [(&[u8], _); 5] =
        [(b"", Inval), (b"a/b", Inval), (b"/", Inval), (b"a\0b", Inval), (&too_long, NameTooLong)];
    for (name, error) in bad {
        let (caller, dir) = (&root(), &f.dir);
        fails(f.op(f.fs.lookup(caller, dir, name)), &[error]);
        fails(f.create(caller, dir, name, mode(0o644)), &[error]);
        fails(f.mkdir(caller, dir, name, 0o755), &[error]);
        if symlinks {
            let node = NewNode::Symlink(b"t".to_vec());
            fails(f.op(f.fs.create_node(caller, dir, name, &node, &SetAttr::default())), &[error]);
        }
        fails(f.op(f.fs.remove(caller, dir, name)), &[error]);
        fails(f.op(f.fs.rmdir(caller, dir, name)), &[error]);
        fails(f.op(f.fs.rename(caller, dir, name, dir, b"to")), &[error]);
        fails(f.op(f.fs.rename(caller, dir, &longest, dir, name)), &[error]);
        if links {
            fails(f.op(f.fs.link(caller, &file, dir, name)), &[error]);
        }
    }
    // Any other bytes are valid.
    let odd = b"\xff\xfe\n\x01 '\\";
    f.create(&root(), &f.dir, odd, mode(0o644)).unwrap();
    assert!(f.list(&f.dir, 10).iter().any(|e| e.name == odd));
}

pub(crate) fn dot_and_dot_dot_stay_in_the_tree(f: &Fixture) {
    let fs_root = f.fs.root();
    assert_eq!(f.lookup(&fs_root, ".").unwrap(), fs_root);
    assert_eq!(f.lookup(&fs_root, "..").unwrap(), fs_root);
    let sub = f.subdir("sub");
    assert_eq!(f.lookup(&sub, ".").unwrap(), sub);
    assert_eq!(f.lookup(&sub, "..").unwrap(), f.dir);
    f.rename(&f.dir, "sub", &fs_root, "moved").unwrap();
    assert_eq!(f.lookup(&sub, "..").unwrap(), fs_root);
    let file = f.file("file");
    for dots in ["..", "."] {
        fails(f.create(&root(), &sub, dots.as_bytes(), mode(0o644)), &[Exist]);
        fails(f.mkdir(&root(), &sub, dots.as_bytes(), 0o755), &[Exist]);
        if f.has(Capability::HardLinks) {
            fails(f.link(&file, &sub, dots), &[Exist]);
        }
        fails(f.remove(&sub, dots), &[Inval, Exist, IsDir]);
        fails(f.rename(&sub, dots, &f.dir, "x"), &[Inval]);
        fails(f.rename(&f.dir, "file", &sub, dots), &[Inval]);
    }
    fails(f.rmdir(&sub, "."), &[Inval]);
    fails(f.rmdir(&sub, ".."), &[Exist, Inval]);
}

pub(crate) fn create_modes_follow_rfc_1813(f: &Fixture) {
    let create = |how| f.op(f.fs.create(&root(), &f.dir, b"a", &how));
    let first = create(CreateHow::Unchecked(mode(0o600))).unwrap();
    f.write(&root(), &first.handle, 0, b"content").unwrap();
    // An existing file is kept with its attributes; only the size applies.
    let again = create(CreateHow::Unchecked(mode(0o777))).unwrap();
    assert_eq!((again.handle, again.attr.mode, again.attr.size), (first.handle, 0o600, 7));
    let cut = create(CreateHow::Unchecked(size(3))).unwrap();
    assert_eq!((cut.handle, cut.attr.size), (first.handle, 3));
    assert_eq!(f.content(&first.handle), b"con");
    fails(create(CreateHow::Guarded(mode(0o600))), &[Exist]);
    f.subdir("d");
    fails(f.op(f.fs.create(&root(), &f.dir, b"d", &CreateHow::Unchecked(size(0)))), &[Exist, IsDir]);
    let sized = f.create(&root(), &f.dir, b"sized", SetAttr { size: Some(5), ..mode(0o644) }).unwrap();
    assert_eq!(f.content(&sized.handle), [0; 5]);
}

pub(crate) fn exclusive_create_is_idempotent_for_its_verifier(f: &Fixture) {
    let create = |name: &str, v, set| {
        f.op(f.fs.create(&root(), &f.dir, name.as_bytes(), &CreateHow::Exclusive(v, set)))
    };
    for (name, set, expected) in [
        ("a", SetAttr::default(), (0o600, 0)),
        ("b", mode(0o604), (0o604, 0)),
        ("c", SetAttr { size: Some(0), ..mode(0o440) }, (0o440, 0)),
        ("d", SetAttr { size: Some(5), ..mode(0o777) }, (0o777, 5)),
    ] {
        let first = create(name, [7; 8], set).unwrap();
        for created in [first, create(name, [7; 8], set).unwrap()] {
            assert_eq!((created.attr.mode & 0o7777, created.attr.size), expected, "{name}");
            assert_eq!(created.handle, first.handle);
            let times = [created.attr.atime, created.attr.mtime];
            // 2000: any clock is later, and the verifier is earlier, 1973.
            let is_now = times.map(|time| time.seconds > 946_684_800);
            assert_eq!(is_now, [!f.fs.info().verifier_in_times; 2], "{name}");
        }
        fails(create(name, [8; 8], set), &[Exist]);
    }
    f.file("plain");
    fails(create("plain", [0; 8], SetAttr::default()), &[Exist]);
}

pub(crate) fn all_object_types_can_be_created(f: &Fixture) {
    let make = |name: &[u8], node| f.op(f.fs.create_node(&root(), &f.dir, name, &node, &mode(0o600)));
    if f.has(Capability::Symlinks) {
        let link = f.symlink(&f.dir, "link", b"../else/where").unwrap();
        assert_eq!((link.attr.kind, link.attr.size), (FileKind::Symlink, 13));
        let (target, attr) = f.op(f.fs.readlink(&root(), &link.handle)).unwrap();
        assert_eq!((target.as_slice(), attr.kind), (b"../else/where".as_slice(), FileKind::Symlink));
        // Symbolic links are not followed.
        fails(f.lookup(&link.handle, "x"), &[NotDir, Inval]);
        fails(make(b"link", NewNode::Directory), &[Exist]);
        fails(make(b"empty", NewNode::Symlink(Vec::new())), &[Inval, NoEnt]);
        fails(make(b"long", NewNode::Symlink(vec![b'x'; 5000])), &[NameTooLong, Inval]);
    }
    let mut nodes = Vec::new();
    if f.has(Capability::SpecialFiles) {
        nodes.push((NewNode::Fifo, FileKind::Fifo, (0, 0)));
        nodes.push((NewNode::Socket, FileKind::Socket, (0, 0)));
    }
    if f.has(Capability::Devices) {
        nodes.push((NewNode::Block(8, 1), FileKind::Block, (8, 1)));
        nodes.push((NewNode::Character(1, 300), FileKind::Character, (1, 300)));
    }
    for (node, kind, rdev) in nodes {
        let name = format!("{kind:?}");
        let made = make(name.as_bytes(), node).unwrap();
        assert_eq!((made.attr.kind, made.attr.rdev, made.attr.nlink), (kind, rdev, 1));
        fails(f.op(f.fs.readlink(&root(), &made.handle)), &[Inval]);
        fails(f.read(&root(), &made.handle, 0, 1), &[Inval]);
        f.remove(&f.dir, &name).unwrap();
    }
}

pub(crate) fn remove_of_the_last_link_removes_the_file(f: &Fixture) {
    let file = f.file("a");
    let links = f.has(Capability::HardLinks);
    if links {
        f.link(&file, &f.dir, "b").unwrap();
    }
    let before = f.attr(&f.dir);
    let wcc = f.op(f.fs.remove(&root(), &f.dir, b"a")).unwrap();
    assert_eq!(wcc.after, Some(f.attr(&f.dir)));
    assert!(wcc.after.unwrap().ctime > before.ctime);
    fails(f.remove(&f.dir, "a"), &[NoEnt]);
    if links {
        assert_eq!(f.attr(&file).nlink, 1);
        f.remove(&f.dir, "b").unwrap();
        fails(f.link(&file, &f.dir, "c"), &[Stale, NoEnt]);
    }
    fails(f.op(f.fs.getattr(&file)), &[Stale]);
    fails(f.read(&root(), &file, 0, 1), &[Stale]);
    fails(f.write(&root(), &file, 0, b"x"), &[Stale]);
    let new = f.file("a");
    assert_ne!(new, file, "a handle was reused");
    fails(f.op(f.fs.getattr(&file)), &[Stale]);
    f.subdir("d");
    fails(f.remove(&f.dir, "d"), &[IsDir]);
}

pub(crate) fn rmdir_requires_an_empty_directory(f: &Fixture) {
    let sub = f.subdir("sub");
    f.create(&root(), &sub, b"a", mode(0o644)).unwrap();
    f.file("file");
    fails(f.rmdir(&f.dir, "sub"), &[NotEmpty]);
    fails(f.rmdir(&f.dir, "file"), &[NotDir]);
    fails(f.rmdir(&f.dir, "none"), &[NoEnt]);
    let links = f.attr(&f.dir).nlink;
    f.remove(&sub, "a").unwrap();
    f.rmdir(&f.dir, "sub").unwrap();
    let now = f.attr(&f.dir).nlink;
    assert!(now == links || now == links - 1, "{now} links after {links}"); // Some file systems keep a directory's link count at 1.
    fails(f.op(f.fs.getattr(&sub)), &[Stale]);
    fails(f.create(&root(), &sub, b"a", mode(0o644)), &[Stale]);
}

pub(crate) fn rename_moves_and_replaces(f: &Fixture) {
    let (one, two) = (f.subdir("one"), f.subdir("two"));
    let file = f.create(&root(), &one, b"a", mode(0o644)).unwrap().handle;
    let victim = f.create(&root(), &two, b"b", mode(0o644)).unwrap().handle;
    let (from, to) = f.op(f.fs.rename(&root(), &one, b"a", &two, b"b")).unwrap();
    assert_eq!((from.after, to.after), (Some(f.attr(&one)), Some(f.attr(&two))));
    assert_eq!(f.lookup(&two, "b").unwrap(), file);
    fails(f.lookup(&one, "a"), &[NoEnt]);
    fails(f.op(f.fs.getattr(&victim)), &[Stale]);
    // Within one directory, and to another name of the same file, where nothing happens.
    f.rename(&two, "b", &two, "c").unwrap();
    f.rename(&two, "c", &two, "c").unwrap();
    if f.has(Capability::HardLinks) {
        f.link(&file, &one, "d").unwrap();
        f.rename(&two, "c", &one, "d").unwrap();
        assert_eq!((f.names(&one), f.names(&two)), (vec!["d".to_owned()], vec!["c".to_owned()]));
        assert_eq!(f.attr(&file).nlink, 2);
    }
    // Directories: link counts of the parents and `..` follow; an empty one may be replaced.
    let moved = f.mkdir(&root(), &one, b"m", 0o755).unwrap().handle;
    let empty = f.mkdir(&root(), &two, b"e", 0o755).unwrap().handle;
    let links = f.attr(&two).nlink;
    f.rename(&one, "m", &two, "e").unwrap();
    assert_eq!(f.lookup(&two, "e").unwrap(), moved);
    assert_eq!(f.lookup(&moved, "..").unwrap(), two);
    assert_eq!(f.attr(&two).nlink, links);
    fails(f.op(f.fs.getattr(&empty)), &[Stale]);
}

pub(crate) fn invalid_renames_are_rejected(f: &Fixture) {
    let a = f.subdir("a");
    let b = f.mkdir(&root(), &a, b"b", 0o755).unwrap().handle;
    let c = f.mkdir(&root(), &b, b"c", 0o755).unwrap().handle;
    f.file("file");
    f.subdir("empty");
    fails(f.rename(&f.dir, "none", &f.dir, "x"), &[NoEnt]);
    fails(f.rename(&f.dir, "a", &a, "x"), &[Inval]);
    fails(f.rename(&f.dir, "a", &c, "x"), &[Inval]);
    fails(f.rename(&a, "b", &f.dir, "a"), &[NotEmpty, Exist]);
    fails(f.rename(&b, "c", &f.dir, "a"), &[NotEmpty, Exist]);
    fails(f.rename(&f.dir, "empty", &f.dir, "a"), &[NotEmpty, Exist]);
    fails(f.rename(&f.dir, "file", &f.dir, "empty"), &[IsDir, Exist]);
    fails(f.rename(&f.dir, "empty", &f.dir, "file"), &[NotDir, Exist]);
    let file = f.lookup(&f.dir, "file").unwrap();
    fails(f.rename(&file, "x", &f.dir, "y"), &[NotDir]);
    fails(f.rename(&f.dir, "file", &file, "y"), &[NotDir]);
    assert_eq!(f.names(&f.dir), ["a", "empty", "file"]);
    assert_eq!(f.lookup(&b, "c").unwrap(), c);
}

pub(crate) fn links_share_one_file(f: &Fixture) {
    let sub = f.subdir("sub");
    let file = f.file("a");
    let (attr, wcc) = f.op(f.fs.link(&root(), &file, &sub, b"b")).unwrap();
    assert_eq!((attr.nlink, wcc.after), (2, Some(f.attr(&sub))));
    let other = f.lookup(&sub, "b").unwrap();
    assert_eq!(f.attr(&other).fileid, attr.fileid);
    f.write(&root(), &other, 0, b"shared").unwrap();
    assert_eq!(f.content(&file), b"shared");
    fails(f.link(&file, &sub, "b"), &[Exist]);
    fails(f.link(&sub, &f.dir, "x"), &[Inval, IsDir, Perm]);
    fails(f.link(&file, &file, "x"), &[NotDir]);
}
