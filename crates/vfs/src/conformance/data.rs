//! Reading and writing.

use crate::{FsError::*, Identity, SetAttr, Stability};
use proptest::prelude::*;

use super::{
    Capability,
    fixture::{Fixture, fails, member, root, size, user},
};

pub(super) const PAGE: usize = 64 << 10;

/// Data that differs at each offset.
pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

pub(crate) fn reads_return_written_data(f: &Fixture) {
    for (at, len) in
        [1, 511, 512, 513, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 77, 1 << 20].into_iter().enumerate()
    {
        for piece in [PAGE, 1000, 1 << 20] {
            let file = f.file(&format!("f{at}-{piece}"));
            let data = pattern(len, at);
            let views = f.pieces(&data, piece);
            let written = f.op(f.fs.write(&root(), &file, 0, views, Stability::FileSync)).unwrap();
            assert_eq!((written.count as usize, written.committed), (len, Stability::FileSync));
            let after = written.wcc.after.unwrap();
            assert_eq!((after.size as usize, after), (len, f.attr(&file)));
            assert!(f.content(&file) == data, "{len} bytes in pieces of {piece}");
        }
    }
    let file = f.file("stability");
    for asked in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
        let written = f.op(f.fs.write(&root(), &file, 0, f.pieces(b"x", 1), asked)).unwrap();
        assert!(written.committed >= asked);
    }
    let before = f.attr(&file);
    let nothing = f.op(f.fs.write(&root(), &file, 1 << 30, f.pieces(b"", 1), Stability::FileSync)).unwrap();
    assert_eq!((nothing.count, f.attr(&file).size), (0, before.size));
}

pub(crate) fn reads_stop_at_end_of_file(f: &Fixture) {
    let file = f.file("a");
    assert_eq!(f.read(&root(), &file, 0, 10).unwrap(), (vec![], true));
    f.write(&root(), &file, 0, b"0123456789").unwrap();
    let cases: [(u64, u32, &[u8], bool); 8] = [
        (0, 10, b"0123456789", true),
        (0, 9, b"012345678", false),
        (9, 1, b"9", true),
        (5, 1000, b"56789", true),
        (10, 5, b"", true),
        (11, 5, b"", true),
        (u64::MAX, u32::MAX, b"", true),
        (3, 0, b"", false),
    ];
    for (offset, count, bytes, eof) in cases {
        assert_eq!(f.read(&root(), &file, offset, count).unwrap(), (bytes.to_vec(), eof), "{offset} {count}");
    }
    let read = f.op(f.fs.read(&root(), &file, 0, 4)).unwrap();
    assert_eq!(read.attr, f.attr(&file));
}

pub(crate) fn holes_are_zero(f: &Fixture) {
    let file = f.file("a");
    let far = (5 * PAGE + 123) as u64;
    f.write(&root(), &file, far, b"end").unwrap();
    let mut expected = vec![0; far as usize];
    expected.extend(b"end");
    assert!(f.content(&file) == expected);
    assert!(f.attr(&file).used < far, "a hole uses space");
    f.write(&root(), &file, 2 * PAGE as u64 + 5, b"island").unwrap();
    expected[2 * PAGE + 5..][..6].copy_from_slice(b"island");
    assert!(f.content(&file) == expected);
    // A very large, sparse file.
    let huge = f.file("huge");
    let end = 1 << 40;
    f.set(&root(), &huge, size(end)).unwrap();
    f.write(&root(), &huge, end - 2, b"xyz").unwrap();
    assert_eq!(f.read(&root(), &huge, end - 4, 100).unwrap(), (b"\0\0xyz".to_vec(), true));
    let (zeros, eof) = f.read(&root(), &huge, 123_456_789, 300_000).unwrap();
    assert!(!eof && zeros.len() == 300_000 && zeros.iter().all(|b| *b == 0));
}

pub(crate) fn extension_after_truncation_reads_zeros(f: &Fixture) {
    let file = f.file("a");
    let data = pattern(2 * PAGE + 100, 3);
    for cut in [0, 1, 700, PAGE, PAGE + 7, 2 * PAGE + 99] {
        f.write(&root(), &file, 0, &data).unwrap();
        f.set(&root(), &file, size(cut as u64)).unwrap();
        assert!(f.content(&file) == data[..cut]);
        f.set(&root(), &file, size(3 * PAGE as u64)).unwrap();
        let mut expected = data[..cut].to_vec();
        expected.resize(3 * PAGE, 0);
        assert!(f.content(&file) == expected, "extended by setattr after truncation to {cut}");
        f.set(&root(), &file, size(cut as u64)).unwrap();
        f.write(&root(), &file, 3 * PAGE as u64 - 1, b"\0").unwrap();
        assert!(f.content(&file) == expected, "extended by a write after truncation to {cut}");
        // Just after the new end, in the same page.
        f.set(&root(), &file, size(cut as u64)).unwrap();
        f.write(&root(), &file, cut as u64 + 50, b"!").unwrap();
        expected.truncate(cut + 50);
        expected.push(b'!');
        assert!(f.content(&file) == expected, "extended in the same page after truncation to {cut}");
    }
    f.set(&root(), &file, size(0)).unwrap();
    assert_eq!(f.attr(&file).used, 0);
}

pub(crate) fn writes_to_non_files_are_rejected(f: &Fixture) {
    let dir = f.subdir("d");
    fails(f.write(&root(), &dir, 0, b"x"), &[IsDir, Inval]);
    fails(f.read(&root(), &dir, 0, 1), &[IsDir, Inval]);
    fails(f.op(f.fs.commit(&root(), &dir, 0, 0)), &[IsDir, Inval]);
    if f.has(Capability::Symlinks) {
        let link = f.symlink(&f.dir, "l", b"t").unwrap().handle;
        fails(f.write(&root(), &link, 0, b"x"), &[Inval]);
        fails(f.read(&root(), &link, 0, 1), &[Inval]);
    }
    let file = f.file("a");
    for offset in [f.fs.info().max_file_size, u64::MAX - 1, u64::MAX] {
        fails(f.write(&root(), &file, offset, b"xy"), &[FBig, Inval]);
    }
    assert_eq!(f.attr(&file).size, 0);
}

pub(crate) fn read_data_is_not_changed_by_later_writes(f: &Fixture) {
    let file = f.file("a");
    let old = pattern(3 * PAGE, 1);
    f.write(&root(), &file, 0, &old).unwrap();
    let read = f.op(f.fs.read(&root(), &file, 0, 3 * PAGE as u32)).unwrap();
    f.write(&root(), &file, 100, &[9; PAGE]).unwrap();
    f.write(&root(), &file, PAGE as u64, &pattern(PAGE, 2)).unwrap();
    f.set(&root(), &file, size(10)).unwrap();
    f.write(&root(), &file, 5, &[8; 100]).unwrap();
    f.remove(&f.dir, "a").unwrap();
    assert!(read.data.to_vec() == old, "data changed under a reader");
}

pub(crate) fn commit_returns_the_same_verifier(f: &Fixture) {
    let file = f.file("a");
    let verifier = f.fs.write_verifier();
    f.write(&root(), &file, 0, b"x").unwrap();
    let wcc = f.op(f.fs.commit(&root(), &file, 0, 0)).unwrap();
    assert_eq!(wcc.after, Some(f.attr(&file)));
    f.op(f.fs.commit(&root(), &file, u64::MAX, u32::MAX)).unwrap();
    assert_eq!(f.fs.write_verifier(), verifier);
}

pub(crate) fn commit_requires_write_permission(f: &Fixture) {
    let file = f.file("a");
    let commit = |caller: &Identity| f.op(f.fs.commit(caller, &file, 0, 0));
    f.set(&root(), &file, SetAttr { uid: Some(1000), mode: Some(0o640), gid: Some(7), ..SetAttr::default() })
        .unwrap();
    for _ in 0..2 {
        fails(commit(&user(1001)), &[Access]);
        fails(commit(&member(1001, &[7])), &[Access]);
        commit(&user(1000)).unwrap();
        commit(&root()).unwrap();
    }
    f.set(&root(), &file, SetAttr { mode: Some(0o660), ..SetAttr::default() }).unwrap();
    commit(&member(1001, &[7])).unwrap();
    fails(commit(&user(1001)), &[Access]);
}

/// A random operation on a file.
#[derive(Debug, Clone)]
enum Step {
    Write { offset: usize, len: usize, piece: usize },
    SetSize(usize),
    Read { offset: usize, count: usize },
}

/// Offsets near page boundaries and elsewhere.
pub(super) fn place() -> impl Strategy<Value = usize> {
    let near = (0..5usize, 0..40usize).prop_map(|(page, d)| (page * PAGE + d).saturating_sub(20));
    prop_oneof![near, (0..5usize).prop_map(|p| p * PAGE), 0..4 * PAGE]
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..2000usize, Just(PAGE), Just(2 * PAGE), 0..3 * PAGE];
    let piece = prop_oneof![Just(PAGE), Just(4096), Just(2 * PAGE), 300..70_000usize];
    prop_oneof![
        4 => (place(), len, piece).prop_map(|(offset, len, piece)| Step::Write { offset, len, piece }),
        1 => place().prop_map(Step::SetSize),
        3 => (place(), 0..3 * PAGE).prop_map(|(offset, count)| Step::Read { offset, count }),
    ]
}

pub(crate) fn random_writes_match_a_model(f: &Fixture) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&prop::collection::vec(step(), 1..24), |steps| {
        let file = f.file("model");
        let result = follow(f, &file, &steps);
        f.remove(&f.dir, "model").unwrap();
        result
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

fn follow(f: &Fixture, file: &crate::Handle, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = Vec::<u8>::new();
    let mut held = Vec::new();
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { offset, len, piece } => {
                let data = pattern(len, seed + 1);
                let views = f.pieces(&data, piece);
                f.op(f.fs.write(&root(), file, offset as u64, views, Stability::Unstable)).unwrap();
                if len > 0 {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&data);
                }
            }
            Step::SetSize(to) => {
                f.set(&root(), file, size(to as u64)).unwrap();
                model.resize(to, 0);
            }
            Step::Read { offset, count } => {
                let read = f.op(f.fs.read(&root(), file, offset as u64, count as u32)).unwrap();
                let start = offset.min(model.len());
                let end = (offset + count).min(model.len()).max(start);
                prop_assert!(read.data.to_vec() == model[start..end], "read at {} of {}", offset, count);
                prop_assert_eq!(read.eof, end == model.len());
                held.push((read.data, model[start..end].to_vec()));
            }
        }
        prop_assert_eq!(f.attr(file).size, model.len() as u64);
    }
    prop_assert!(f.content(file) == model);
    for (views, bytes) in held {
        prop_assert!(views.to_vec() == bytes, "data changed under a reader");
    }
    Ok(())
}
