//! Extended attributes.

use std::collections::BTreeMap;

use super::{
    attributes::file_of,
    fixture::{Fixture, fails, mode, root, user},
};
use crate::{FsError::*, FsResult, Handle, Identity, NewNode, SetXattr, Wcc, XATTR_SIZE_MAX};

fn get(f: &Fixture, caller: &Identity, file: &Handle, name: &str) -> FsResult<Vec<u8>> {
    f.op(f.fs.xattr(caller, file, name.as_bytes()))
}

fn set(f: &Fixture, caller: &Identity, file: &Handle, name: &str, value: &[u8]) -> FsResult<Wcc> {
    f.op(f.fs.set_xattr(caller, file, name.as_bytes(), value, SetXattr::Either))
}

fn remove(f: &Fixture, caller: &Identity, file: &Handle, name: &str) -> FsResult<Wcc> {
    f.op(f.fs.remove_xattr(caller, file, name.as_bytes()))
}

fn list(f: &Fixture, caller: &Identity, file: &Handle) -> FsResult<Vec<String>> {
    let names = f.op(f.fs.list_xattrs(caller, file))?;
    let mut names: Vec<_> = names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
    names.sort();
    Ok(names)
}

pub(crate) fn xattrs_match_a_model(f: &Fixture) {
    for object in [f.file("file"), f.subdir("dir")] {
        let mut model = BTreeMap::new();
        fails(get(f, &root(), &object, "none"), &[NoXattr]);
        assert!(list(f, &root(), &object).unwrap().is_empty());
        let long = "n".repeat(200);
        let steps: [(&str, Option<&[u8]>); 9] = [
            ("a", Some(b"value")),
            ("b.c", Some(b"")),
            ("a", Some(b"another value")),
            (&long, Some(&[7; 1000])),
            ("a", None),
            ("d", Some(b"\0\xff")),
            ("b.c", Some(b"no longer empty")),
            (&long, None),
            ("a", Some(b"again")),
        ];
        for (name, value) in steps {
            match value {
                Some(value) => {
                    set(f, &root(), &object, name, value).unwrap();
                    model.insert(name.to_owned(), value.to_vec());
                }
                None => {
                    remove(f, &root(), &object, name).unwrap();
                    model.remove(name);
                    fails(remove(f, &root(), &object, name), &[NoXattr]);
                }
            }
            assert_eq!(list(f, &root(), &object).unwrap(), model.keys().cloned().collect::<Vec<_>>());
            for (name, value) in &model {
                assert_eq!(get(f, &root(), &object, name).as_ref(), Ok(value), "{name}");
            }
        }
    }
}

pub(crate) fn create_and_replace_ask_whether_the_xattr_exists(f: &Fixture) {
    let file = f.file("file");
    let change = |value: &[u8], how| f.op(f.fs.set_xattr(&root(), &file, b"name", value, how));
    fails(change(b"1", SetXattr::Replace), &[NoXattr]);
    change(b"2", SetXattr::Create).unwrap();
    fails(change(b"3", SetXattr::Create), &[Exist]);
    assert_eq!(get(f, &root(), &file, "name"), Ok(b"2".to_vec()));
    change(b"4", SetXattr::Replace).unwrap();
    assert_eq!(get(f, &root(), &file, "name"), Ok(b"4".to_vec()));
}

pub(crate) fn changes_of_xattrs_update_ctime(f: &Fixture) {
    let file = f.file("file");
    let changes: [&dyn Fn() -> FsResult<Wcc>; 3] =
        [&|| set(f, &root(), &file, "name", b"1"), &|| set(f, &root(), &file, "name", b"2"), &|| {
            remove(f, &root(), &file, "name")
        }];
    for change in changes {
        let before = f.attr(&file);
        // The clock of a local file system may have the granularity of the kernel.
        std::thread::sleep(std::time::Duration::from_millis(12));
        let wcc = change().unwrap();
        let after = f.attr(&file);
        assert!(after.ctime > before.ctime && after.mtime == before.mtime);
        assert_eq!(wcc.after.unwrap().ctime, after.ctime);
    }
}

pub(crate) fn invalid_xattrs_are_rejected(f: &Fixture) {
    let file = f.file("file");
    for name in ["", "a\0b"] {
        fails(set(f, &root(), &file, name, b"1"), &[Inval]);
        fails(get(f, &root(), &file, name), &[Inval]);
        fails(remove(f, &root(), &file, name), &[Inval]);
    }
    fails(set(f, &root(), &file, &"n".repeat(256), b"1"), &[NameTooLong]);
    fails(set(f, &root(), &file, "name", &vec![0; XATTR_SIZE_MAX + 1]), &[XattrTooBig]);
    assert!(list(f, &root(), &file).unwrap().is_empty());
    let link = f.op(f.fs.create_node(&root(), &f.dir, b"fifo", &NewNode::Fifo, &mode(0o666)));
    if let Ok(fifo) = link {
        fails(set(f, &root(), &fifo.handle, "name", b"1"), &[Perm]);
        fails(get(f, &root(), &fifo.handle, "name"), &[NoXattr]);
        assert!(list(f, &root(), &fifo.handle).unwrap().is_empty());
    }
}

pub(crate) fn xattrs_end_with_their_file(f: &Fixture) {
    let file = f.file("file");
    set(f, &root(), &file, "name", b"1").unwrap();
    f.remove(&f.dir, "file").unwrap();
    fails(get(f, &root(), &file, "name"), &[Stale]);
    fails(set(f, &root(), &file, "name", b"1"), &[Stale]);
    let file = f.file("file");
    assert!(list(f, &root(), &file).unwrap().is_empty());
}

pub(crate) fn xattrs_require_permissions(f: &Fixture) {
    let readable = file_of(f, &user(7), "readable", 0o604);
    let writable = file_of(f, &user(7), "writable", 0o602);
    for file in [&readable, &writable] {
        set(f, &user(7), file, "name", b"1").unwrap();
    }
    assert_eq!(get(f, &user(8), &readable, "name"), Ok(b"1".to_vec()));
    assert_eq!(list(f, &user(8), &readable), Ok(vec!["name".to_owned()]));
    fails(set(f, &user(8), &readable, "name", b"2"), &[Access]);
    fails(remove(f, &user(8), &readable, "name"), &[Access]);
    fails(get(f, &user(8), &writable, "name"), &[Access]);
    fails(list(f, &user(8), &writable), &[Access]);
    set(f, &user(8), &writable, "name", b"2").unwrap();
    assert_eq!(get(f, &user(7), &writable, "name"), Ok(b"2".to_vec()));
    remove(f, &user(8), &writable, "name").unwrap();
    // A sticky directory is changed by its owner only.
    let sticky = f.mkdir(&user(7), &f.dir, b"sticky", 0o1777).unwrap().handle;
    fails(set(f, &user(8), &sticky, "name", b"1"), &[Perm]);
    set(f, &user(7), &sticky, "name", b"1").unwrap();
}
