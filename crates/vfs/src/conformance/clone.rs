//! Files that share storage.

use super::{
    attributes::file_of,
    data::pattern,
    fixture::{Fixture, fails, root, user},
    ranges::filled,
};
use crate::{FsError::*, FsResult, Handle, Identity, Wcc};

fn clone(
    f: &Fixture,
    caller: &Identity,
    (source, from): (&Handle, usize),
    (destination, to): (&Handle, usize),
    length: usize,
) -> FsResult<Wcc> {
    f.op(f.fs.clone_range(caller, source, from as u64, destination, to as u64, length as u64))
}

fn block(f: &Fixture) -> usize {
    f.fs.info().clone_block as usize
}

pub(crate) fn clones_match_a_model(f: &Fixture) {
    let block = block(f);
    let (source, mut content) = filled(f, "source", 5 * block + 100);
    f.deallocate(&source, block as u64, block as u64 + 5000).unwrap();
    content[block..2 * block + 5000].fill(0);
    let cases = [
        (0, 0, 5 * block + 100),
        (0, block, 3 * block),
        (2 * block, 0, block),
        (4 * block, 9 * block, block + 100),
        (5 * block, 2 * block, 100),
        (block, 0, 2 * block),
    ];
    for (at, (from, to, length)) in cases.into_iter().enumerate() {
        let (destination, mut expected) = filled(f, &format!("f{at}"), 2 * block + 50);
        clone(f, &root(), (&source, from), (&destination, to), length).unwrap();
        expected.resize(expected.len().max(to + length), 0);
        expected[to..to + length].copy_from_slice(&content[from..from + length]);
        assert!(f.content(&destination) == expected, "case {at}");
        assert_eq!(f.attr(&destination).size, expected.len() as u64);
    }
    // Clones within one file.
    clone(f, &root(), (&source, 0), (&source, 3 * block), 2 * block).unwrap();
    content.copy_within(0..2 * block, 3 * block);
    assert!(f.content(&source) == content);
    let before = f.attr(&source);
    clone(f, &root(), (&source, 0), (&source, block), 0).unwrap();
    assert!(f.content(&source) == content && f.attr(&source).size == before.size);
}

pub(crate) fn clones_do_not_share_later_writes(f: &Fixture) {
    let block = block(f);
    let (source, content) = filled(f, "source", 3 * block);
    let destination = f.file("destination");
    clone(f, &root(), (&source, 0), (&destination, 0), 3 * block).unwrap();
    f.write(&root(), &source, 10, b"source").unwrap();
    f.write(&root(), &destination, block as u64, &pattern(block, 9)).unwrap();
    f.deallocate(&source, 2 * block as u64, block as u64).unwrap();
    let mut expected = content.clone();
    expected[block..2 * block].copy_from_slice(&pattern(block, 9));
    assert!(f.content(&destination) == expected);
    let mut changed = content;
    changed[10..16].copy_from_slice(b"source");
    changed[2 * block..].fill(0);
    assert!(f.content(&source) == changed);
    f.remove(&f.dir, "source").unwrap();
    assert!(f.content(&destination) == expected);
}

pub(crate) fn invalid_clones_are_rejected(f: &Fixture) {
    let block = block(f);
    let (file, content) = filled(f, "a", 2 * block + 10);
    let (other, other_content) = filled(f, "b", 3 * block);
    let attempt = |from, to, length| clone(f, &root(), (&file, from), (&other, to), length);
    fails(attempt(1, 0, block), &[Inval]);
    fails(attempt(0, 1, block), &[Inval]);
    fails(attempt(0, 0, block + 1), &[Inval]);
    fails(attempt(0, 0, 3 * block), &[Inval]);
    fails(attempt(2 * block, 0, 10), &[Inval]); // The destination has data after the range.
    fails(clone(f, &root(), (&file, 0), (&file, block), 2 * block), &[Inval]);
    let dir = f.subdir("d");
    fails(clone(f, &root(), (&file, 0), (&dir, 0), block), &[IsDir, Inval]);
    fails(clone(f, &root(), (&dir, 0), (&other, 0), block), &[IsDir, Inval]);
    assert!(f.content(&file) == content && f.content(&other) == other_content);
}

pub(crate) fn clones_require_permissions(f: &Fixture) {
    let length = block(f);
    let readable = file_of(f, &user(7), "readable", 0o604);
    let writable = file_of(f, &user(7), "writable", 0o602);
    let private = file_of(f, &user(7), "private", 0o600);
    for file in [&readable, &writable, &private] {
        f.write(&root(), file, 0, &pattern(length, 1)).unwrap();
    }
    let attempt = |from: &Handle, to: &Handle| clone(f, &user(8), (from, 0), (to, 0), length).map(drop);
    assert_eq!(attempt(&readable, &writable), Ok(()));
    for (from, to) in [(&private, &writable), (&writable, &private), (&readable, &private)] {
        assert_eq!(attempt(from, to), Err(Access));
    }
}
