//! Copies between files.

use super::{
    attributes::file_of,
    data::{PAGE, pattern},
    fixture::{Fixture, fails, root, user},
    ranges::filled,
};
use crate::{FsError::*, FsResult, Handle, Identity};

fn copy(
    f: &Fixture,
    caller: &Identity,
    (source, from): (&Handle, u64),
    (destination, to): (&Handle, u64),
    length: u64,
) -> FsResult<u64> {
    f.op(f.fs.copy(caller, source, from, destination, to, length)).map(|copied| copied.count)
}

/// Continues after short copies. Returns the number of bytes copied.
fn copy_all(f: &Fixture, from: (&Handle, u64), to: (&Handle, u64), length: u64) -> u64 {
    let mut done = 0;
    while done < length {
        match copy(f, &root(), (from.0, from.1 + done), (to.0, to.1 + done), length - done).unwrap() {
            0 => break,
            count => done += count,
        }
    }
    assert!(done <= length);
    done
}

pub(crate) fn copies_match_a_model(f: &Fixture) {
    let (source, mut content) = filled(f, "source", 6 * PAGE + 100);
    f.deallocate(&source, PAGE as u64, PAGE as u64 + 5000).unwrap();
    content[PAGE..2 * PAGE + 5000].fill(0);
    let cases = [
        (0, 0, 6 * PAGE + 100),
        (0, PAGE, 3 * PAGE),
        (5, 7, 4 * PAGE),
        (PAGE, 0, PAGE),
        (PAGE + 1, 3 * PAGE, 2 * PAGE),
        (4 * PAGE, 9 * PAGE, 10 * PAGE),
        (6 * PAGE + 100, 0, 10),
        (7 * PAGE, 0, 10),
        (10, 10, 0),
    ];
    for (at, (from, to, length)) in cases.into_iter().enumerate() {
        let (destination, mut expected) = filled(f, &format!("f{at}"), 2 * PAGE + 50);
        let copied = copy_all(f, (&source, from as u64), (&destination, to as u64), length as u64) as usize;
        let part = content.get(from..content.len().min(from + length)).unwrap_or_default();
        assert_eq!(copied, part.len(), "case {at}");
        if !part.is_empty() {
            expected.resize(expected.len().max(to + part.len()), 0);
            expected[to..to + part.len()].copy_from_slice(part);
        }
        assert!(f.content(&destination) == expected, "case {at}");
    }
    // Copies within one file.
    assert_eq!(copy_all(f, (&source, 0), (&source, 3 * PAGE as u64), PAGE as u64), PAGE as u64);
    content.copy_within(0..PAGE, 3 * PAGE);
    assert!(f.content(&source) == content);
}

pub(crate) fn copies_do_not_share_later_writes(f: &Fixture) {
    let (source, content) = filled(f, "source", 3 * PAGE);
    let destination = f.file("destination");
    copy_all(f, (&source, 0), (&destination, 0), 3 * PAGE as u64);
    f.write(&root(), &source, 10, b"source").unwrap();
    f.write(&root(), &destination, PAGE as u64, &pattern(PAGE, 9)).unwrap();
    f.deallocate(&source, 2 * PAGE as u64, PAGE as u64).unwrap();
    let mut expected = content.clone();
    expected[PAGE..2 * PAGE].copy_from_slice(&pattern(PAGE, 9));
    assert!(f.content(&destination) == expected);
    let mut expected = content;
    expected[10..16].copy_from_slice(b"source");
    expected[2 * PAGE..].fill(0);
    assert!(f.content(&source) == expected);
    f.remove(&f.dir, "source").unwrap();
    f.write(&root(), &destination, 0, b"x").unwrap();
}

pub(crate) fn invalid_copies_are_rejected(f: &Fixture) {
    let (file, content) = filled(f, "a", 1000);
    let other = f.file("b");
    let max = f.fs.info().max_file_size;
    fails(copy(f, &root(), (&file, 0), (&file, 999), 1000), &[Inval]);
    fails(copy(f, &root(), (&file, 10), (&file, 10), 10), &[Inval]);
    fails(copy(f, &root(), (&file, 0), (&other, u64::MAX), 2), &[Inval]);
    fails(copy(f, &root(), (&file, u64::MAX), (&other, 0), 2), &[Inval]);
    fails(copy(f, &root(), (&file, 0), (&other, max), 1), &[FBig]);
    let dir = f.subdir("d");
    fails(copy(f, &root(), (&file, 0), (&dir, 0), 1), &[IsDir, Inval]);
    fails(copy(f, &root(), (&dir, 0), (&other, 0), 1), &[IsDir, Inval]);
    assert!(f.content(&file) == content && f.attr(&other).size == 0);
}

pub(crate) fn copies_require_permissions(f: &Fixture) {
    let readable = file_of(f, &user(7), "readable", 0o604);
    let writable = file_of(f, &user(7), "writable", 0o602);
    let private = file_of(f, &user(7), "private", 0o600);
    for file in [&readable, &writable, &private] {
        f.write(&root(), file, 0, b"0123456789").unwrap();
    }
    let attempt = |from: &Handle, to: &Handle| copy(f, &user(8), (from, 0), (to, 0), 5);
    assert_eq!(attempt(&readable, &writable), Ok(5));
    for (from, to) in [(&private, &writable), (&writable, &private), (&readable, &private)] {
        assert_eq!(attempt(from, to), Err(Access));
    }
    assert_eq!(copy(f, &user(7), (&private, 0), (&readable, 0), 5), Ok(5));
}
