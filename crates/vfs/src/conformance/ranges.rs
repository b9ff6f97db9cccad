//! Ranges of sparse files: deallocation, zeroing, and the search for data and holes.

use proptest::prelude::*;

use super::{
    Capability,
    attributes::file_of,
    data::{PAGE, pattern, place},
    fixture::{Fixture, fails, root, size, user},
};
use crate::{FsError, FsError::*, Handle, Identity, SeekTarget, SetAttr, Stability, Views};

/// Offsets and lengths, aligned and unaligned.
const RANGES: [(usize, usize); 12] = [
    (0, 1),
    (1, 4095),
    (0, 4096),
    (4096, 8192),
    (4000, 200),
    (100, PAGE),
    (PAGE, PAGE),
    (PAGE - 1, PAGE + 2),
    (0, 3 * PAGE),
    (5, 4 * PAGE),
    (4 * PAGE, PAGE),
    (4 * PAGE - 4096, 5000),
];

/// A new file, and its content.
pub(super) fn filled(f: &Fixture, name: &str, len: usize) -> (Handle, Vec<u8>) {
    let (file, content) = (f.file(name), pattern(len, len));
    f.write(&root(), &file, 0, &content).unwrap();
    (file, content)
}

/// Zeroes the part of `offset..offset + len` that is in `content`.
fn punch(content: &mut [u8], offset: usize, len: usize) {
    let end = content.len().min(offset + len);
    if let Some(range) = content.get_mut(offset..end) {
        range.fill(0);
    }
}

pub(crate) fn deallocated_ranges_are_freed_and_read_as_zeros(f: &Fixture) {
    for (at, (offset, len)) in RANGES.into_iter().enumerate() {
        let (file, mut content) = filled(f, &format!("f{at}"), 4 * PAGE + 100);
        let wcc = f.deallocate(&file, offset as u64, len as u64).unwrap();
        assert_eq!(wcc.after, Some(f.attr(&file)));
        punch(&mut content, offset, len);
        assert!(f.content(&file) == content, "{len} bytes at {offset}");
    }
    // Storage is freed, of the last block of the file too.
    let (file, mut content) = filled(f, "freed", 4 * PAGE + 100);
    f.op(f.fs.commit(&root(), &file, 0, 0)).unwrap();
    let used = f.attr(&file).used;
    f.deallocate(&file, PAGE as u64, 2 * PAGE as u64).unwrap();
    punch(&mut content, PAGE, 2 * PAGE);
    assert!(f.attr(&file).used + 2 * PAGE as u64 <= used, "of {used}, {} bytes are used", f.attr(&file).used);
    assert!(f.content(&file) == content);
    for beyond in [f.fs.info().max_file_size, u64::MAX] {
        let used = f.attr(&file).used;
        f.deallocate(&file, 0, beyond).unwrap();
        let attr = f.attr(&file);
        assert!(attr.size as usize == content.len() && attr.used + PAGE as u64 <= used, "{used}, {attr:?}");
        f.write(&root(), &file, 7, &content[7..]).unwrap();
    }
    for beyond in [content.len() as u64, 1 << 40, u64::MAX - 1] {
        f.deallocate(&file, beyond, 1).unwrap();
    }
    assert!(f.content(&file)[7..] == content[7..]);
}

pub(crate) fn zeroed_ranges_read_as_zeros_and_extend_the_file(f: &Fixture) {
    for (at, (offset, len)) in RANGES.into_iter().enumerate() {
        let (file, mut content) = filled(f, &format!("f{at}"), 2 * PAGE + 100);
        let wcc = f.zero(&file, offset as u64, len as u64).unwrap();
        assert_eq!(wcc.after, Some(f.attr(&file)));
        content.resize(content.len().max(offset + len), 0);
        punch(&mut content, offset, len);
        assert!(f.content(&file) == content, "{len} bytes at {offset}");
        // The bytes after the old end in the same block stay zero.
        f.set(&root(), &file, size(5 * PAGE as u64)).unwrap();
        content.resize(5 * PAGE, 0);
        assert!(f.content(&file) == content, "extended after {len} bytes at {offset}");
    }
}

pub(crate) fn allocated_ranges_keep_data_and_extend_the_file(f: &Fixture) {
    for (at, (offset, len)) in RANGES.into_iter().enumerate() {
        let (file, mut content) = filled(f, &format!("f{at}"), 2 * PAGE + 100);
        f.deallocate(&file, PAGE as u64, 100).unwrap();
        punch(&mut content, PAGE, 100);
        let wcc = f.allocate(&file, offset as u64, len as u64).unwrap();
        assert_eq!(wcc.after, Some(f.attr(&file)));
        content.resize(content.len().max(offset + len), 0);
        assert!(f.content(&file) == content, "{len} bytes at {offset}");
    }
}

pub(crate) fn ranges_of_length_0_change_nothing(f: &Fixture) {
    let (file, content) = filled(f, "a", 1000);
    let before = f.attr(&file);
    for offset in [0, 10, 1000, 5000] {
        assert_eq!(f.deallocate(&file, offset, 0).unwrap().after, Some(before));
        assert_eq!(f.zero(&file, offset, 0).unwrap().after, Some(before));
        assert_eq!(f.allocate(&file, offset, 0).unwrap().after, Some(before));
    }
    assert_eq!(f.attr(&file), before);
    assert!(f.content(&file) == content);
}

pub(crate) fn invalid_ranges_are_rejected(f: &Fixture) {
    let (file, content) = filled(f, "a", 1000);
    let max = f.fs.info().max_file_size;
    for (offset, length) in [(1, u64::MAX), (u64::MAX, 1), (max, u64::MAX), (500, u64::MAX - 499)] {
        fails(f.deallocate(&file, offset, length), &[Inval]);
        fails(f.zero(&file, offset, length), &[Inval]);
        fails(f.allocate(&file, offset, length), &[Inval]);
    }
    for (offset, length) in [(max, 1), (0, max + 1), (max - 1, 2), (u64::MAX - 1, 1)] {
        fails(f.zero(&file, offset, length), &[FBig]);
        fails(f.allocate(&file, offset, length), &[FBig]);
    }
    assert!(f.content(&file) == content);
}

pub(crate) fn ranges_of_non_files_are_rejected(f: &Fixture) {
    let reject = |h: &Handle, errors: &[FsError]| {
        fails(f.deallocate(h, 0, 1), errors);
        fails(f.zero(h, 0, 1), errors);
        fails(f.allocate(h, 0, 1), errors);
        fails(f.op(f.fs.seek(&root(), h, 0..1, SeekTarget::Data)), errors);
    };
    reject(&f.subdir("d"), &[IsDir, Inval]);
    if f.has(Capability::Symlinks) {
        reject(&f.symlink(&f.dir, "l", b"t").unwrap().handle, &[Inval]);
    }
    let (removed, _) = filled(f, "a", 10);
    f.remove(&f.dir, "a").unwrap();
    reject(&removed, &[Stale]);
}

pub(crate) fn seek_finds_data_and_holes(f: &Fixture) {
    let file = f.file("a");
    let within = |range, target| f.op(f.fs.seek(&root(), &file, range, target)).unwrap();
    let seek = |at, target| within(at..u64::MAX, target);
    let far = 1 << 24;
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        assert_eq!((seek(0, target), seek(u64::MAX, target)), (None, None), "the file is empty");
    }
    f.set(&root(), &file, size(far + 10)).unwrap();
    f.write(&root(), &file, far, b"0123456789").unwrap();
    f.op(f.fs.commit(&root(), &file, 0, 0)).unwrap();
    let data = seek(0, SeekTarget::Data).unwrap();
    assert!(data > 0 && data <= far, "holes are not found: data at {data}");
    assert_eq!(seek(far + 5, SeekTarget::Data), Some(far + 5));
    assert_eq!(seek(1, SeekTarget::Hole), Some(1));
    // Only the range is searched.
    assert_eq!(
        (within(0..data, SeekTarget::Data), within(0..data + 1, SeekTarget::Data)),
        (None, Some(data))
    );
    assert_eq!(within(far..far + 10, SeekTarget::Hole), None);
    assert_eq!(within(far..far + 11, SeekTarget::Hole), Some(far + 10));
    assert_eq!((within(1..1, SeekTarget::Hole), within(far..far, SeekTarget::Data)), (None, None));
    assert_eq!(seek(far + 5, SeekTarget::Hole), Some(far + 10));
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        for beyond in [far + 10, far + 11, i64::MAX as u64, u64::MAX] {
            assert_eq!(seek(beyond, target), None);
        }
    }
    f.deallocate(&file, 0, far + PAGE as u64).unwrap();
    assert_eq!((seek(0, SeekTarget::Data), seek(far, SeekTarget::Hole)), (None, Some(far)));
}

pub(crate) fn read_data_is_not_changed_by_deallocation(f: &Fixture) {
    let (file, content) = filled(f, "a", 3 * PAGE);
    let read = f.op(f.fs.read(&root(), &file, 0, 3 * PAGE as u32)).unwrap();
    f.deallocate(&file, 100, 50).unwrap();
    f.zero(&file, 5000, 20_000).unwrap();
    f.deallocate(&file, PAGE as u64 + 10, 2 * PAGE as u64).unwrap();
    f.write(&root(), &file, 0, &pattern(2 * PAGE, 1)).unwrap();
    assert!(read.data.to_vec() == content, "data changed under a reader");
}

pub(crate) fn changes_of_ranges_update_times(f: &Fixture) {
    let (file, _) = filled(f, "a", 1000);
    let wait = if f.has(Capability::FineTimes) { 0 } else { 12 };
    for change in [Fixture::deallocate, Fixture::zero, Fixture::allocate] {
        let before = f.attr(&file);
        std::thread::sleep(std::time::Duration::from_millis(wait));
        change(f, &file, 10, 100).unwrap();
        let after = f.attr(&file);
        assert!(after.ctime > before.ctime && after.mtime > before.mtime);
    }
}

pub(crate) fn changes_of_ranges_are_committed(f: &Fixture) {
    let (file, mut content) = filled(f, "a", 1000);
    let verifier = f.fs.write_verifier();
    f.zero(&file, 900, 5000).unwrap();
    f.deallocate(&file, 10, 20).unwrap();
    let wcc = f.op(f.fs.commit(&root(), &file, 0, 0)).unwrap();
    assert_eq!((wcc.after.map(|a| a.size), f.fs.write_verifier()), (Some(5900), verifier));
    content.resize(5900, 0);
    punch(&mut content, 900, 5000);
    punch(&mut content, 10, 20);
    assert!(f.content(&file) == content);
}

pub(crate) fn changes_of_ranges_require_write_permission(f: &Fixture) {
    let cases =
        [(0o640, user(8), false, false), (0o604, user(8), true, false), (0o602, user(8), false, true)];
    let owner_and_root = [(0o000, user(7), true, true), (0o000, root(), true, true)];
    for (at, (bits, caller, may_read, may_write)) in cases.into_iter().chain(owner_and_root).enumerate() {
        let file = file_of(f, &user(7), &format!("f{at}"), bits);
        f.write(&root(), &file, 0, b"0123456789").unwrap();
        let expected = |may| if may { Ok(()) } else { Err(Access) };
        let (deallocate, zero, seek) = (
            f.op(f.fs.deallocate(&caller, &file, 0, 5)).map(drop),
            f.op(f.fs.zero(&caller, &file, 5, 5)).map(drop),
            f.op(f.fs.seek(&caller, &file, 0..1, SeekTarget::Hole)).map(drop),
        );
        assert_eq!(deallocate, expected(may_write), "deallocate, mode {bits:o}, case {at}");
        let allocate = f.op(f.fs.allocate(&caller, &file, 0, 10)).map(drop);
        assert_eq!(allocate, expected(may_write), "allocate, mode {bits:o}, case {at}");
        assert_eq!(zero, expected(may_write), "zero, mode {bits:o}, case {at}");
        assert_eq!(seek, expected(may_read), "seek, mode {bits:o}, case {at}");
        let content: &[u8] = if may_write { &[0; 10] } else { b"0123456789" };
        assert_eq!(f.content(&file), content);
    }
}

pub(crate) fn changes_of_ranges_by_others_clear_set_id_bits(f: &Fixture) {
    let change = |name: &str, call: &dyn Fn(&Identity, &Handle)| {
        let file = file_of(f, &user(7), name, 0o777);
        f.write(&root(), &file, 0, b"0123456789").unwrap();
        f.set(&user(7), &file, SetAttr { mode: Some(0o6777), ..SetAttr::default() }).unwrap();
        call(&user(8), &file);
        assert_eq!(f.attr(&file).mode, 0o777, "{name}");
    };
    change("deallocate", &|caller, file| {
        let after = f.op(f.fs.deallocate(caller, file, 0, 5)).unwrap().after.unwrap();
        assert_eq!(after.mode, 0o777);
    });
    change("zero", &|caller, file| {
        let after = f.op(f.fs.zero(caller, file, 0, 5)).unwrap().after.unwrap();
        assert_eq!(after.mode, 0o777);
    });
}

/// A random operation on a file.
#[derive(Debug, Clone)]
enum Step {
    Write { offset: usize, len: usize },
    SetSize(usize),
    Read { offset: usize, count: usize },
    Deallocate { offset: usize, len: usize },
    Zero { offset: usize, len: usize },
    Seek { offset: usize, target: SeekTarget },
    Commit,
}

/// Multiples of the block sizes of file systems, and other lengths.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0..3000usize, (0..20usize).prop_map(|n| n * 4096), Just(PAGE), 0..3 * PAGE]
}

fn step() -> impl Strategy<Value = Step> {
    let block = (0..64usize).prop_map(|n| n * 4096);
    let place = prop_oneof![place(), block];
    let range = || (place.clone(), length());
    let target = prop_oneof![Just(SeekTarget::Data), Just(SeekTarget::Hole)];
    prop_oneof![
        5 => range().prop_map(|(offset, len)| Step::Write { offset, len }),
        1 => place.clone().prop_map(Step::SetSize),
        2 => range().prop_map(|(offset, count)| Step::Read { offset, count }),
        4 => range().prop_map(|(offset, len)| Step::Deallocate { offset, len }),
        3 => range().prop_map(|(offset, len)| Step::Zero { offset, len }),
        4 => (place.clone(), target).prop_map(|(offset, target)| Step::Seek { offset, target }),
        1 => Just(Step::Commit),
    ]
}

pub(crate) fn random_changes_of_ranges_match_a_model(f: &Fixture) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&prop::collection::vec(step(), 1..32), |steps| {
        let mut model = Model { f, file: f.file("model"), content: Vec::new(), held: Vec::new() };
        let result = steps.iter().enumerate().try_for_each(|(seed, step)| model.follow(seed, step));
        let result = result.and_then(|()| model.compare());
        f.remove(&f.dir, "model").unwrap();
        result
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

struct Model<'a> {
    f: &'a Fixture,
    file: Handle,
    content: Vec<u8>,
    /// Data of reads, and its expected content.
    held: Vec<(Views, Vec<u8>)>,
}

impl Model<'_> {
    fn follow(&mut self, seed: usize, step: &Step) -> Result<(), TestCaseError> {
        let Self { f, file, content, held } = self;
        match *step {
            Step::Write { offset, len } => {
                let data = pattern(len, seed + 1);
                let views = f.pieces(&data, PAGE);
                f.op(f.fs.write(&root(), file, offset as u64, views, Stability::Unstable)).unwrap();
                extend(content, offset, len);
                content.get_mut(offset..offset + len).unwrap_or_default().copy_from_slice(&data);
            }
            Step::SetSize(to) => {
                f.set(&root(), file, size(to as u64)).unwrap();
                content.resize(to, 0);
            }
            Step::Read { offset, count } => {
                let read = f.op(f.fs.read(&root(), file, offset as u64, count as u32)).unwrap();
                let start = offset.min(content.len());
                let end = (offset + count).min(content.len()).max(start);
                prop_assert!(read.data.to_vec() == content[start..end], "read at {} of {}", offset, count);
                held.push((read.data, content[start..end].to_vec()));
            }
            Step::Deallocate { offset, len } => {
                f.deallocate(file, offset as u64, len as u64).unwrap();
                punch(content, offset, len);
            }
            Step::Zero { offset, len } => {
                f.zero(file, offset as u64, len as u64).unwrap();
                extend(content, offset, len);
                punch(content, offset, len);
            }
            Step::Seek { offset, target } => self.seek(offset, target)?,
            Step::Commit => drop(f.op(f.fs.commit(&root(), file, 0, 0)).unwrap()),
        }
        prop_assert_eq!(self.f.attr(&self.file).size, self.content.len() as u64);
        Ok(())
    }

    /// Data may be zeros, holes may not have data, and both alternate.
    fn seek(&self, offset: usize, target: SeekTarget) -> Result<(), TestCaseError> {
        let (f, size) = (self.f, self.content.len());
        let seek =
            |at: usize, target| f.op(f.fs.seek(&root(), &self.file, at as u64..u64::MAX, target)).unwrap();
        let found = seek(offset, target).map(|at| at as usize);
        let Some(at) = found else {
            let rest = self.content.get(offset..).unwrap_or_default();
            let is_hole = target == SeekTarget::Data && rest.iter().all(|b| *b == 0);
            prop_assert!(is_hole || offset >= size, "no {:?} from {} of {}", target, offset, size);
            return Ok(());
        };
        prop_assert!(at >= offset && offset < size && at <= size);
        match target {
            SeekTarget::Data => {
                prop_assert!(at < size && self.content[offset..at].iter().all(|b| *b == 0));
                prop_assert!(seek(at, SeekTarget::Hole) > Some(at as u64));
            }
            SeekTarget::Hole if at < size => {
                prop_assert_eq!(self.content[at], 0);
                prop_assert!(seek(at, SeekTarget::Data) != Some(at as u64));
            }
            SeekTarget::Hole => {}
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.f.content(&self.file) == self.content);
        for (views, bytes) in &self.held {
            prop_assert!(views.to_vec() == *bytes, "data changed under a reader");
        }
        Ok(())
    }
}

/// Extends `content` as a write of `len` bytes at `offset` does.
fn extend(content: &mut Vec<u8>, offset: usize, len: usize) {
    if len > 0 {
        content.resize(content.len().max(offset + len), 0);
    }
}
