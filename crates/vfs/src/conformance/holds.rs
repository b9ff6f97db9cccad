//! Files that are held while they lose their links.

use super::{
    data::{PAGE, pattern},
    fixture::{Fixture, fails, root},
    ranges::filled,
};
use crate::{FsError::*, Handle, Hold};

fn hold(f: &Fixture, file: &Handle) -> Hold {
    f.op(f.fs.hold(file)).unwrap().expect("the file system holds no files: declare it")
}

/// Checks a held file without links, and changes it.
fn is_usable(f: &Fixture, file: &Handle, content: &mut Vec<u8>) {
    assert!(f.content(file) == *content);
    f.write(&root(), file, content.len() as u64, b"more").unwrap();
    content.extend_from_slice(b"more");
    assert!(f.content(file) == *content);
    let attr = f.attr(file);
    assert_eq!((attr.nlink, attr.size), (0, content.len() as u64));
    fails(f.op(f.fs.link(&root(), file, &f.dir, b"again")), &[NoEnt, Stale]);
}

fn is_gone(f: &Fixture, file: &Handle) {
    fails(f.op(f.fs.getattr(file)), &[Stale]);
    fails(f.op(f.fs.read(&root(), file, 0, 1)), &[Stale]);
    fails(f.write(&root(), file, 0, b"x"), &[Stale]);
    fails(f.op(f.fs.hold(file)), &[Stale]);
}

pub(crate) fn a_held_file_stays_usable_when_it_is_removed(f: &Fixture) {
    let (file, mut content) = filled(f, "file", 3 * PAGE);
    let first = hold(f, &file);
    f.remove(&f.dir, "file").unwrap();
    fails(f.op(f.fs.lookup(&root(), &f.dir, b"file")), &[NoEnt]);
    is_usable(f, &file, &mut content);
    let second = hold(f, &file);
    drop(first);
    is_usable(f, &file, &mut content);
    // Another file with the name.
    let new = f.file("file");
    assert!(new != file && f.content(&new).is_empty());
    drop(second);
    is_gone(f, &file);
    assert!(f.content(&new).is_empty());
}

pub(crate) fn a_held_file_stays_usable_when_it_is_replaced(f: &Fixture) {
    let (file, mut content) = filled(f, "file", PAGE);
    let (other, other_content) = filled(f, "other", 10);
    let held = (hold(f, &file), hold(f, &other));
    f.op(f.fs.rename(&root(), &f.dir, b"other", &f.dir, b"file")).unwrap();
    is_usable(f, &file, &mut content);
    assert!(f.content(&other) == other_content && f.attr(&other).nlink == 1);
    drop(held);
    is_gone(f, &file);
    assert!(f.content(&other) == other_content);
}

pub(crate) fn a_held_file_with_another_link_exists_after_the_hold(f: &Fixture) {
    let (file, content) = filled(f, "file", 10);
    f.op(f.fs.link(&root(), &file, &f.dir, b"link")).unwrap();
    let held = hold(f, &file);
    f.remove(&f.dir, "file").unwrap();
    drop(held);
    assert!(f.content(&file) == content);
    let held = hold(f, &file);
    f.remove(&f.dir, "link").unwrap();
    assert!(f.content(&file) == content);
    drop(held);
    is_gone(f, &file);
}

pub(crate) fn only_existing_files_are_held(f: &Fixture) {
    let file = f.file("file");
    drop(hold(f, &file));
    f.remove(&f.dir, "file").unwrap();
    is_gone(f, &file);
    let dir = f.subdir("dir");
    assert!(f.op(f.fs.hold(&dir)).unwrap().is_none());
}

pub(crate) fn space_of_a_held_file_is_freed_at_the_end(f: &Fixture) {
    // More would not be held if earlier ones were not released.
    for n in 0..40 {
        let file = f.file("file");
        f.write(&root(), &file, 0, &pattern(PAGE, n)).unwrap();
        let held = hold(f, &file);
        f.remove(&f.dir, "file").unwrap();
        assert!(f.content(&file) == pattern(PAGE, n));
        drop(held);
        is_gone(f, &file);
    }
}
