//! Random operations: content matches a model, and the quota matches the tree.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    task::{Context, Poll, Waker},
};

use millrace_buffer::ArenaConfig;
use millrace_runtime::virtual_time::VirtualTime;
use proptest::prelude::*;

use super::*;
use crate::conformance::{self, Subject};

const NAMES: [&str; 4] = ["a", "b", "a longer name", "the longest of all these names, by far"];
/// Upper limit of offsets and sizes: six blocks.
const FILE_BYTES: usize = 6 * BLOCK_BYTES;
const CAPACITY: u64 = 3 << 20;

#[derive(Debug, Clone)]
enum Step {
    Create(usize, usize),
    Make(usize, usize, bool),
    Link(usize, usize, usize),
    Rename(usize, usize, usize, usize),
    Remove(usize, usize),
    /// Data received in slots of this size.
    Write {
        file: usize,
        at: usize,
        len: usize,
        slot: usize,
    },
    Resize(usize, usize),
    /// Deallocates, or zeroes with `extend`.
    Hole {
        file: usize,
        at: usize,
        len: usize,
        extend: bool,
    },
    /// A read whose data is held until `Release`.
    Read(usize, usize, usize),
    Release(usize),
    /// A hold of a file until `Unhold`.
    Hold(usize),
    Unhold(usize),
    /// Shares whole blocks: files, blocks in both, number of blocks.
    Clone {
        from: usize,
        to: usize,
        at: (usize, usize),
        blocks: usize,
    },
    /// Copies bytes: files, offsets in both, length.
    Copy {
        from: usize,
        to: usize,
        at: (usize, usize),
        len: usize,
    },
    /// Sets an extended attribute with this many bytes, or removes it.
    Xattr(usize, usize, Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let (dir, name) = (0..3usize, 0..NAMES.len());
    let file = any::<usize>;
    let place = prop_oneof![
        0..FILE_BYTES,
        (0..FILE_BYTES / PAGE).prop_map(|page| page * PAGE),
        (0..FILE_BYTES / BLOCK_BYTES).prop_map(|block| block * BLOCK_BYTES),
    ];
    let len = prop_oneof![1..3 * PAGE, Just(PAGE), Just(BLOCK_BYTES), 1..3 * BLOCK_BYTES];
    let slot = prop_oneof![1 => Just(PAGE), 3 => Just(BLOCK_BYTES), 1 => Just(1 << 20)];
    prop_oneof![
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Create(d, n)),
        1 => (dir.clone(), name.clone(), any::<bool>()).prop_map(|(d, n, link)| Step::Make(d, n, link)),
        1 => (file(), dir.clone(), name.clone()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        2 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        1 => (dir, name).prop_map(|(d, n)| Step::Remove(d, n)),
        8 => (file(), place.clone(), len.clone(), slot)
            .prop_map(|(file, at, len, slot)| Step::Write { file, at, len, slot }),
        1 => (file(), place.clone()).prop_map(|(f, size)| Step::Resize(f, size)),
        4 => (file(), place.clone(), len.clone(), any::<bool>())
            .prop_map(|(file, at, len, extend)| Step::Hole { file, at, len, extend }),
        2 => (file(), place.clone(), len.clone()).prop_map(|(f, at, len)| Step::Read(f, at, len)),
        4 => (file(), file(), (place.clone(), place), len)
            .prop_map(|(from, to, at, len)| Step::Copy { from, to, at, len }),
        2 => file().prop_map(Step::Release),
        2 => file().prop_map(Step::Hold),
        1 => file().prop_map(Step::Unhold),
        3 => (file(), file(), (0..6usize, 0..6usize), 0..5usize)
            .prop_map(|(from, to, at, blocks)| Step::Clone { from, to, at, blocks }),
        2 => (file(), 0..NAMES.len(), prop::option::of(0..2 * PAGE)).prop_map(|(f, n, len)| Step::Xattr(f, n, len)),
    ]
}

const PAGE: usize = millrace_buffer::PAGE_BYTES;

struct Model {
    fs: Arc<MemoryFs>,
    caller: Identity,
    dirs: [Handle; 3],
    /// Expected content of all regular files, by handle.
    files: Vec<(Handle, Vec<u8>)>,
    readers: Vec<(Views, Vec<u8>)>,
    holds: Vec<(Handle, Hold)>,
    bytes_written: u8,
}

/// The result of a call, after all its steps.
fn now<T>(op: Op<T>) -> FsResult<T> {
    let mut op = pin!(op.into_future());
    loop {
        if let Poll::Ready(out) = op.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return out;
        }
    }
}

impl Model {
    fn new() -> Self {
        let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
        let runtime = VirtualTime::new(1).runtime();
        let fs =
            MemoryFs::new(MemoryConfig { capacity_bytes: CAPACITY, ..MemoryConfig::new(arena, runtime) });
        let (caller, root) = (Identity::root(), fs.root());
        let set = SetAttr::default();
        let dir = |name: &[u8]| {
            now(fs.create_node(&caller, &root, name, &NewNode::Directory, &set)).unwrap().handle
        };
        let dirs = [root, dir(b"one"), dir(b"two")];
        Self { fs, caller, dirs, files: Vec::new(), readers: Vec::new(), holds: Vec::new(), bytes_written: 0 }
    }

    fn run(&mut self, step: Step) {
        let (fs, caller) = (Arc::clone(&self.fs), self.caller.clone());
        let name = |n: usize| NAMES[n].as_bytes();
        match step {
            Step::Create(d, n) => {
                let how = CreateHow::Guarded(SetAttr::default());
                if let Ok(created) = now(fs.create(&caller, &self.dirs[d], name(n), &how)) {
                    self.files.push((created.handle, Vec::new()));
                }
            }
            Step::Make(d, n, link) => {
                let node = if link { NewNode::Symlink(vec![b'x'; 100 * n + 1]) } else { NewNode::Directory };
                let _ = now(fs.create_node(&caller, &self.dirs[d], name(n), &node, &SetAttr::default()));
            }
            Step::Rename(a, b, c, d) => {
                let _ = now(fs.rename(&caller, &self.dirs[a], name(b), &self.dirs[c], name(d)));
            }
            Step::Remove(d, n) => {
                let _ = now(fs.remove(&caller, &self.dirs[d], name(n)));
                let _ = now(fs.rmdir(&caller, &self.dirs[d], name(n)));
            }
            Step::Release(r) if !self.readers.is_empty() => {
                let (views, expected) = self.readers.swap_remove(r % self.readers.len());
                assert!(views.to_vec() == expected, "data changed under a reader");
            }
            Step::Unhold(n) if !self.holds.is_empty() => {
                self.holds.swap_remove(n % self.holds.len());
            }
            _ if self.files.is_empty() => {}
            Step::Clone { from, to, at, blocks } => self.clone_blocks(from, to, at, blocks),
            Step::Copy { from, to, at, len } => self.copy(from, to, at, len),
            Step::Xattr(f, n, len) => {
                let file = self.files[f % self.files.len()].0;
                let _ = match len {
                    Some(len) => now(fs.set_xattr(&caller, &file, name(n), &vec![7; len], SetXattr::Either)),
                    None => now(fs.remove_xattr(&caller, &file, name(n))),
                };
            }
            Step::Hold(f) => {
                let file = self.files[f % self.files.len()].0;
                self.holds.push((file, now(fs.hold(&file)).unwrap().unwrap()));
            }
            Step::Link(f, d, n) => {
                let file = self.files[f % self.files.len()].0;
                let _ = now(fs.link(&caller, &file, &self.dirs[d], name(n)));
            }
            Step::Write { file, at, len, slot } => self.write(file, at, len, slot),
            Step::Resize(f, size) => {
                let f = f % self.files.len();
                let (file, content) = &mut self.files[f];
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                if now(fs.setattr(&caller, file, &set, None)).is_ok() {
                    content.resize(size, 0);
                }
            }
            Step::Read(f, at, len) => {
                let (file, content) = &self.files[f % self.files.len()];
                if let Ok(read) = now(fs.read(&caller, file, at as u64, len as u32)) {
                    let end = (at + len).min(content.len());
                    let expected = content.get(at..end).unwrap_or_default();
                    assert!(read.data.to_vec() == expected && read.eof == (at + len >= content.len()));
                    self.readers.push((read.data, expected.to_vec()));
                }
            }
            Step::Hole { file, at, len, extend } => self.hole(file, at, len, extend),
            Step::Release(_) | Step::Unhold(_) => {}
        }
        assert!(self.holds.iter().all(|(file, _)| now(fs.getattr(file)).is_ok()));
        self.files.retain(|(file, _)| now(fs.getattr(file)).is_ok());
    }

    fn write(&mut self, f: usize, at: usize, len: usize, slot: usize) {
        self.bytes_written = self.bytes_written.wrapping_add(1);
        let bytes: Vec<u8> = (0..len).map(|i| self.bytes_written.wrapping_add((i / 512) as u8)).collect();
        let data: Views = bytes.chunks(slot).map(|c| self.fs.config.arena.copy_from(c).unwrap()).collect();
        let f = f % self.files.len();
        let (file, content) = &mut self.files[f];
        match now(self.fs.write(&self.caller, file, at as u64, data, Stability::Unstable)) {
            Ok(written) => {
                assert_eq!(written.count as usize, len);
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&bytes);
            }
            Err(FsError::NoSpc | FsError::Stale) => {}
            Err(FsError::Jukebox) => assert!(!self.readers.is_empty()),
            Err(e) => panic!("{e:?}"),
        }
    }

    /// Clones whole blocks, or to the end of the source.
    fn clone_blocks(&mut self, from: usize, to: usize, at: (usize, usize), blocks: usize) {
        let (from, to) = (from % self.files.len(), to % self.files.len());
        let at = (at.0 * BLOCK_BYTES, at.1 * BLOCK_BYTES);
        let source = &self.files[from].1;
        let len = (blocks * BLOCK_BYTES).min(source.len().saturating_sub(at.0));
        let part = source.get(at.0..at.0 + len).unwrap_or_default().to_vec();
        let handles = (self.files[from].0, self.files[to].0);
        let (start, length) = ((at.0 as u64, at.1 as u64), len as u64);
        let done = now(self.fs.clone_range(&self.caller, &handles.0, start.0, &handles.1, start.1, length));
        let content = &mut self.files[to].1;
        match done {
            Ok(_) => {
                assert!(len.is_multiple_of(BLOCK_BYTES) || at.1 + len >= content.len());
                if len > 0 {
                    content.resize(content.len().max(at.1 + len), 0);
                    content[at.1..at.1 + len].copy_from_slice(&part);
                }
            }
            // Overlapping ranges, an end within a block, or a start after the end.
            Err(FsError::Inval) => {
                let overlap = from == to && at.0 < at.1 + len && at.1 < at.0 + len;
                let inside = !len.is_multiple_of(BLOCK_BYTES) && at.1 + len < content.len();
                assert!(overlap || inside || at.0 > self.files[from].1.len());
            }
            Err(e) => assert_eq!(e, FsError::NoSpc),
        }
    }

    /// Copies bytes. If the copy fails, a part of it may be done.
    fn copy(&mut self, from: usize, to: usize, at: (usize, usize), len: usize) {
        let (from, to) = (from % self.files.len(), to % self.files.len());
        let source = &self.files[from].1;
        let end = (at.0 + len).min(source.len());
        let part = source.get(at.0..end).unwrap_or_default().to_vec();
        let handles = (self.files[from].0, self.files[to].0);
        let start = (at.0 as u64, at.1 as u64);
        let done = now(self.fs.copy(&self.caller, &handles.0, start.0, &handles.1, start.1, len as u64));
        let overlap = from == to && at.0 < at.1 + len && at.1 < at.0 + len;
        let content = &mut self.files[to].1;
        match done {
            Ok(copied) => {
                // A call may copy less.
                let part = &part[..copied.count as usize];
                assert!((end <= at.0 || !part.is_empty()) && !overlap);
                if !part.is_empty() {
                    content.resize(content.len().max(at.1 + part.len()), 0);
                    content[at.1..at.1 + part.len()].copy_from_slice(part);
                }
            }
            Err(FsError::NoSpc | FsError::Jukebox) => {
                let size = now(self.fs.getattr(&handles.1)).unwrap().size as usize;
                assert!(size >= content.len() && size <= content.len().max(at.1 + part.len()));
                content.resize(size, 0);
                let read = now(self.fs.read(&self.caller, &handles.1, 0, size as u32)).unwrap().data.to_vec();
                for (n, byte) in content.iter_mut().enumerate().skip(at.1).take(part.len()) {
                    assert!(read[n] == *byte || read[n] == part[n - at.1], "byte {n} is neither old nor new");
                    *byte = read[n];
                }
            }
            Err(e) => assert!(e == FsError::Inval && overlap, "{e:?}"),
        }
    }

    fn hole(&mut self, f: usize, at: usize, len: usize, extend: bool) {
        let f = f % self.files.len();
        let (file, content) = &mut self.files[f];
        let (at64, len64) = (at as u64, len as u64);
        let done = match extend {
            true => now(self.fs.zero(&self.caller, file, at64, len64)),
            false => now(self.fs.deallocate(&self.caller, file, at64, len64)),
        };
        match done {
            Ok(_) => {
                let size = if extend { content.len().max(at + len) } else { content.len() };
                content.resize(size, 0);
                let (start, end) = (at.min(size), (at + len).min(size));
                content[start..end].fill(0);
            }
            Err(FsError::Stale) => {}
            Err(FsError::Jukebox) => assert!(!self.readers.is_empty()),
            Err(e) => panic!("{e:?}"),
        }
    }

    /// Expected quota use: of the tree, and of slots held by readers.
    fn charge_of_the_tree(&self) -> u64 {
        let (mut seen, mut left, mut sum) = (HashSet::new(), vec![self.fs.root], 0);
        let held = self.holds.iter().map(|(file, _)| InodeId::of_handle(file, self.fs.instance).unwrap());
        left.extend(held);
        let mut slots: HashMap<usize, u64> = HashMap::new();
        let mut free_places = HashSet::new();
        let mut slot = |v: &View| {
            slots.insert(v.address() - v.offset(), v.capacity() as u64);
        };
        slot(&self.fs.zeros().unwrap());
        self.readers.iter().flat_map(|(views, _)| views).for_each(&mut slot);
        while let Some(id) = left.pop() {
            if !seen.insert((id.index, id.generation)) {
                continue; // Another hard link.
            }
            let inode = self.fs.table.get(id).unwrap();
            let st = inode.read().unwrap();
            if id != self.fs.root {
                sum += space::object_bytes(&st.body);
                sum += st.xattrs.as_ref().map_or(0, |xattrs| xattrs.bytes());
            }
            match &st.body {
                Body::File(content) => {
                    assert_eq!(content.stored(), content.views().map(|v| v.capacity() as u64).sum::<u64>());
                    content.views().for_each(&mut slot);
                    for view in content.check_map_charge() {
                        let slot = view.address() - view.offset();
                        assert!(
                            free_places.insert(slot),
                            "blocks share a slot, and have no charge for the map"
                        );
                    }
                }
                Body::Directory(d) => {
                    for (_, name, id) in d.after(0) {
                        sum += space::entry_bytes(name);
                        left.push(id);
                    }
                }
                _ => {}
            }
        }
        sum + slots.values().sum::<u64>()
    }

    fn check(&self) {
        assert_eq!(self.fs.quota.used(), self.charge_of_the_tree());
        let stat = self.fs.stat_now();
        let free = CAPACITY + BLOCK_BYTES as u64 - self.fs.quota.used();
        assert_eq!((stat.total_bytes, stat.free_bytes), (CAPACITY, free));
        assert_eq!(stat.total_files - stat.free_files, self.fs.objects.count());
        for (file, content) in &self.files {
            let attr = now(self.fs.getattr(file)).unwrap();
            assert_eq!(attr.size as usize, content.len());
            let read = now(self.fs.read(&self.caller, file, 0, FILE_BYTES as u32 * 2)).unwrap();
            assert!(read.data.to_vec() == *content && read.eof, "wrong file content");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_match_the_model_and_the_quota(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
            model.check();
        }
    }
}

#[test]
fn memory_file_system_conforms() {
    let report = conformance::run(|resources| {
        let config = MemoryConfig::new(resources.arena.clone(), Arc::clone(&resources.runtime));
        Subject::new(MemoryFs::new(config)).stress_calls(5000)
    });
    println!("{report}");
    report.assert_passed();
    assert!(report.skipped().is_empty(), "{:?}", report.skipped());
}

/// The file `f` with 2 to the power of `doublings` blocks, which share a slot.
fn large_file(doublings: u32) -> (Arc<MemoryFs>, Handle) {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = MemoryFs::new(MemoryConfig::new(arena.clone(), VirtualTime::new(1).runtime()));
    let (caller, how) = (Identity::root(), CreateHow::Guarded(SetAttr::default()));
    let file = now(fs.create(&caller, &fs.root(), b"f", &how)).unwrap().handle;
    let data: Views = arena.copy_from(&[1; BLOCK_BYTES]).unwrap().into();
    now(fs.write(&caller, &file, 0, data, Stability::FileSync)).unwrap();
    for doubling in 0..doublings {
        let size = (BLOCK_BYTES as u64) << doubling;
        now(fs.clone_range(&caller, &file, 0, &file, size, size)).unwrap();
    }
    (fs, file)
}

#[test]
fn a_search_visits_the_blocks_of_its_range_and_yields_after_a_bounded_number() {
    use content::{VISITED, ranges::SEARCH};
    let (fs, file) = large_file(14);
    let (caller, size, block) = (Identity::root(), 1 << 30, BLOCK_BYTES as u64);
    let seek = |range| fs.seek(&caller, &file, range, SeekTarget::Hole);
    VISITED.take();
    assert_eq!((now(seek(block..5 * block)), VISITED.take()), (Ok(None), 4));
    let searched = |hole| {
        VISITED.take();
        let MaybeReady::Pending(mut search) = seek(0..u64::MAX) else { panic!("the search does not yield") };
        assert_eq!(VISITED.take(), SEARCH / block);
        let mut found = Poll::Pending;
        while found.is_pending() {
            found = search.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(VISITED.take() <= SEARCH / block);
        }
        assert_eq!(found, Poll::Ready(Ok(Some(hole))));
    };
    searched(size);
    now(fs.deallocate(&caller, &file, size - 3 * block, 100_000)).unwrap();
    searched(size - 3 * block);
}

/// The names of the methods of [`FileSystem`].
fn operations() -> Vec<&'static str> {
    let text = include_str!("../lib.rs").split("pub trait FileSystem").nth(1).unwrap();
    let text = text.split("\n}").next().unwrap();
    text.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next()).collect()
}

/// The largest number of visits in a step of a call.
fn most_visits<T>(call: impl FnOnce() -> Op<T>) -> u64 {
    content::VISITED.take();
    let mut op = pin!(call().into_future());
    let mut most = 0;
    loop {
        let done = op.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        most = most.max(content::VISITED.take());
        if let Poll::Ready(out) = done {
            assert!(out.is_ok());
            return most;
        }
    }
}

/// Each operation, where it has much to do.
#[test]
fn every_operation_visits_a_bounded_number_of_blocks_between_yields() {
    // A step of CLONE shares the blocks of one range, and removes those of another.
    let limit = 2 * STEP as u64 + 1;
    let (caller, block, length) = (Identity::root(), BLOCK_BYTES as u64, 128 * BLOCK_BYTES as u64);
    let set = SetAttr { size: Some(block), ..SetAttr::default() };
    for name in operations() {
        let (fs, f) = large_file(8);
        let (root, c) = (fs.root(), &caller);
        let new =
            |name: &[u8]| now(fs.create(c, &root, name, &CreateHow::Guarded(SetAttr::default()))).unwrap();
        let g = new(b"g").handle;
        now(fs.clone_range(c, &f, 0, &g, 0, length)).unwrap();
        now(fs.set_xattr(c, &f, b"x", b"value", SetXattr::Either)).unwrap();
        let data = || fs.config.arena.copy_from(&[1; 100]).unwrap().into();
        let limits = ReadDirLimits { max_entries: 100, max_name_bytes: 1000, plus: true };
        let visits = match name {
            "root" | "info" | "write_verifier" => continue,
            "stat" => most_visits(|| fs.stat()),
            "getattr" => most_visits(|| fs.getattr(&f)),
            "lookup" => most_visits(|| fs.lookup(c, &root, b"f")),
            "read" => most_visits(|| fs.read(c, &f, 0, 1 << 20)),
            "readdir" => most_visits(|| fs.readdir(c, &root, 0, [0; 8], limits)),
            "access" => most_visits(|| fs.access(c, &f, Access(63))),
            "readlink" => {
                let link = NewNode::Symlink(vec![b'x'; TARGET_MAX]);
                let link = now(fs.create_node(c, &root, b"l", &link, &SetAttr::default())).unwrap().handle;
                most_visits(|| fs.readlink(c, &link))
            }
            "setattr" => most_visits(|| fs.setattr(c, &f, &set, None)),
            "write" => most_visits(|| fs.write(c, &f, 7, data(), Stability::FileSync)),
            "commit" => most_visits(|| fs.commit(c, &f, 0, 0)),
            "deallocate" => most_visits(|| fs.deallocate(c, &f, 1, u64::MAX - 1)),
            "zero" => most_visits(|| fs.zero(c, &f, 1, 2 * length + block)),
            "allocate" => most_visits(|| fs.allocate(c, &f, 0, 2 * length + block)),
            // Visits up to SEARCH bytes, which has its own test.
            "seek" => most_visits(|| fs.seek(c, &f, 0..block, SeekTarget::Hole)),
            "copy" => {
                let hole = new(b"hole").handle;
                now(fs.allocate(c, &hole, 0, 2 * length)).unwrap();
                let hole = most_visits(|| fs.copy(c, &hole, 0, &f, 0, 2 * length));
                hole.max(most_visits(|| fs.copy(c, &g, 1, &f, 0, STEP as u64 * block)))
            }
            "clone_range" => [(length, length), (0, length), (0, block), (length + block, block)]
                .into_iter()
                .map(|(to, length)| most_visits(|| fs.clone_range(c, &g, 0, &f, to, length)))
                .fold(0, u64::max),
            "create" => most_visits(|| fs.create(c, &root, b"f", &CreateHow::Unchecked(set))),
            "create_node" => {
                most_visits(|| fs.create_node(c, &root, b"n", &NewNode::Fifo, &SetAttr::default()))
            }
            "xattr" => most_visits(|| fs.xattr(c, &f, b"x")),
            "set_xattr" => most_visits(|| fs.set_xattr(c, &f, b"x", b"new", SetXattr::Replace)),
            "list_xattrs" => most_visits(|| fs.list_xattrs(c, &f)),
            "remove_xattr" => most_visits(|| fs.remove_xattr(c, &f, b"x")),
            "hold" => most_visits(|| {
                // The end of the last hold of a file without links.
                let hold = now(fs.hold(&f)).unwrap();
                now(fs.remove(c, &root, b"f")).unwrap();
                content::VISITED.take();
                drop(hold);
                MaybeReady::Ready(Ok(()))
            }),
            "remove" => most_visits(|| fs.remove(c, &root, b"f")),
            "rmdir" => {
                now(fs.create_node(c, &root, b"d", &NewNode::Directory, &SetAttr::default())).unwrap();
                most_visits(|| fs.rmdir(c, &root, b"d"))
            }
            "rename" => most_visits(|| fs.rename(c, &root, b"g", &root, b"f")),
            "link" => most_visits(|| fs.link(c, &f, &root, b"other")),
            other => panic!("{other} has no case here"),
        };
        assert!(visits <= limit, "{name} visits {visits} blocks in a step");
    }
}

/// The first bytes of the blocks of a file.
fn first_bytes(fs: &MemoryFs, file: &Handle) -> Vec<u8> {
    let size = now(fs.getattr(file)).unwrap().size;
    let read = |at| now(fs.read(&Identity::root(), file, at, 1)).unwrap().data.to_vec()[0];
    (0..size).step_by(BLOCK_BYTES).map(read).collect()
}

#[test]
fn a_long_clone_is_atomic() {
    let (fs, f) = large_file(4);
    let (c, root, block) = (Identity::root(), fs.root(), BLOCK_BYTES as u64);
    let g = now(fs.create(&c, &root, b"g", &CreateHow::Guarded(SetAttr::default()))).unwrap().handle;
    let byte = |value: u8| -> Views { fs.config.arena.copy_from(&[value]).unwrap().into() };
    for index in 0..20 {
        now(fs.write(&c, &g, index * block, byte(2), Stability::FileSync)).unwrap();
    }
    let old = vec![2; 20];
    let new: Vec<u8> = (0..20).map(|index| if (3..19).contains(&index) { 1 } else { 2 }).collect();
    let clone = || fs.clone_range(&c, &f, 0, &g, 3 * block, 16 * block);
    for steps_until_dropped in [1, 3, 1000] {
        let used = fs.quota.used();
        let MaybeReady::Pending(mut clone) = clone() else { panic!("the clone does not yield") };
        let mut done = false;
        for _ in 0..steps_until_dropped {
            if clone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                done = true;
                break;
            }
            let found = first_bytes(&fs, &g);
            if found == new {
                continue; // The old blocks are being freed.
            }
            assert_eq!(found, old);
            for file in [&f, &g] {
                let written = now(fs.write(&c, file, 0, byte(3), Stability::FileSync));
                assert_eq!(written.map(drop), Err(FsError::Jukebox));
            }
        }
        drop(clone);
        assert_eq!(done, steps_until_dropped == 1000);
        assert_eq!(first_bytes(&fs, &g), if done { new.clone() } else { old.clone() });
        if !done {
            assert_eq!(fs.quota.used(), used);
        }
        for file in [&f, &g] {
            let same = now(fs.read(&c, file, 0, 1)).unwrap().data;
            now(fs.write(&c, file, 0, same, Stability::FileSync)).unwrap();
        }
    }
}
