//! Properties specific to the memory file system: data by reference, limits, memory use.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig, BLOCK_BYTES, PAGE_BYTES, View, Views};
use millrace_runtime::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep, tokio_rt::TokioRuntime};
use millrace_vfs::{
    CreateHow, FileSystem, FsError, FsResult, Handle, Identity, MaybeReady, NewNode, Op, ReadDirLimits,
    SeekTarget, SetAttr, Stability,
    memory::{MemoryConfig, MemoryFs},
};

struct Memory {
    fs: Arc<MemoryFs>,
    arena: Arena,
    caller: Identity,
    _rt: tokio::runtime::Runtime,
}

/// Returns the result of a call, which must be ready at once.
fn now<T>(op: Op<T>) -> FsResult<T> {
    if let MaybeReady::Ready(v) = op {
        v
    } else {
        panic!("a call of the memory file system is not ready at once")
    }
}

/// A runtime with a settable wall clock.
struct Stopped {
    rt: RuntimeRef,
    seconds: AtomicU64,
}

impl Runtime for Stopped {
    fn now(&self) -> Instant {
        self.rt.now()
    }
    fn wall_clock(&self) -> Duration {
        Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
    fn sleep_until(&self, at: Instant) -> Sleep {
        self.rt.sleep_until(at)
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.rt.spawn(name, task);
    }
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.rt.spawn_blocking(work);
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        self.rt.fill_random(bytes);
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

impl Memory {
    fn new(change: impl FnOnce(&mut MemoryConfig)) -> Self {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let arena = Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false });
        let mut config = MemoryConfig::new(arena.clone(), TokioRuntime::from_handle(rt.handle().clone()));
        change(&mut config);
        Self { fs: MemoryFs::new(config), arena, caller: Identity::root(), _rt: rt }
    }

    fn file(&self, name: &str) -> FsResult<Handle> {
        let how = CreateHow::Guarded(SetAttr::default());
        now(self.fs.create(&self.caller, &self.fs.root(), name.as_bytes(), &how)).map(|c| c.handle)
    }

    fn mkdir(&self, dir: &Handle, name: &str) -> FsResult<Handle> {
        let (node, set) = (NewNode::Directory, SetAttr::default());
        now(self.fs.create_node(&self.caller, dir, name.as_bytes(), &node, &set)).map(|c| c.handle)
    }

    fn symlink(&self, name: &str, target: &[u8]) -> FsResult<()> {
        let (node, set) = (NewNode::Symlink(target.to_vec()), SetAttr::default());
        now(self.fs.create_node(&self.caller, &self.fs.root(), name.as_bytes(), &node, &set)).map(drop)
    }

    fn write(&self, file: &Handle, offset: u64, data: impl Into<Views>) -> FsResult<()> {
        now(self.fs.write(&self.caller, file, offset, data.into(), Stability::Unstable)).map(drop)
    }

    fn read(&self, file: &Handle, offset: u64, count: usize) -> Views {
        now(self.fs.read(&self.caller, file, offset, count as u32)).unwrap().data
    }

    fn remove(&self, name: &str) {
        now(self.fs.remove(&self.caller, &self.fs.root(), name.as_bytes())).unwrap();
    }

    fn used(&self, file: &Handle) -> u64 {
        now(self.fs.getattr(file)).unwrap().used
    }

    /// Free bytes and number of objects.
    fn free(&self) -> (u64, u64) {
        let stat = now(self.fs.stat()).unwrap();
        (stat.free_bytes, stat.total_files - stat.free_files)
    }

    /// An arena buffer of `len` bytes with value `byte`.
    fn piece(&self, len: usize, byte: u8) -> View {
        let mut b = self.arena.alloc(len).unwrap();
        b.fill(byte);
        b.freeze()
    }
}

fn addresses(views: &Views) -> Vec<usize> {
    views.iter().map(View::address).collect()
}

#[test]
fn whole_blocks_are_stored_without_copy() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    let data: Views = (0..4).map(|i| m.piece(BLOCK_BYTES, i)).collect();
    let at = addresses(&data);
    m.write(&file, 0, data).unwrap();
    assert_eq!(addresses(&m.read(&file, 0, 4 * BLOCK_BYTES)), at);
    assert_eq!(addresses(&m.read(&file, BLOCK_BYTES as u64 + 5, 10)), [at[1] + 5]);
    // Rewriting replaces the block; a reader keeps the old one.
    let held = m.read(&file, BLOCK_BYTES as u64, BLOCK_BYTES);
    let new = m.piece(BLOCK_BYTES, 9);
    let new_at = new.address();
    m.write(&file, BLOCK_BYTES as u64, new).unwrap();
    assert_eq!(addresses(&m.read(&file, BLOCK_BYTES as u64, BLOCK_BYTES)), [new_at]);
    assert_eq!((held.iter().next().unwrap()[77], addresses(&held)), (1, vec![at[1]]));
}

#[test]
fn file_tail_is_adopted_unless_it_wastes_memory() {
    let m = Memory::new(|_| ());
    let kept = |len: usize, slot: usize| {
        let file = m.file("a").unwrap();
        let mut b = m.arena.alloc(slot).unwrap();
        b.fill(7);
        b.set_len(len);
        let view = b.freeze();
        let at = view.address();
        m.write(&file, 0, view).unwrap();
        let read = m.read(&file, 0, len);
        assert_eq!(read.to_vec(), vec![7; len]);
        let out = (addresses(&read) == [at], m.used(&file));
        m.remove("a");
        out
    };
    assert_eq!(kept(40_000, 40_000), (true, 65_536));
    assert_eq!(kept(20_000, 40_000), (false, 20_480));
    assert_eq!(kept(1, 512), (false, 4096));
    assert_eq!(kept(5000, 8192), (false, 8192));
    assert_eq!(kept(BLOCK_BYTES, 2 * BLOCK_BYTES), (false, 65_536));
}

#[test]
fn unaligned_data_is_copied() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    // Not at the start of a block; not at the start of its slot; shorter than the existing data.
    let odd = m.piece(BLOCK_BYTES, 1);
    let at = odd.address();
    m.write(&file, 10, odd).unwrap();
    assert!(!addresses(&m.read(&file, 0, 2 * BLOCK_BYTES)).contains(&at));
    let part = m.piece(2048, 2).slice(512, 1024);
    let at = part.address();
    let small = m.file("b").unwrap();
    m.write(&small, 0, part).unwrap();
    assert_ne!(addresses(&m.read(&small, 0, 1024)), [at]);
    let short = m.piece(512, 3);
    let at = short.address();
    m.write(&small, 0, short).unwrap();
    let read = m.read(&small, 0, 1024);
    assert_ne!(addresses(&read), [at]);
    assert_eq!(read.to_vec(), [[3; 512], [2; 512]].concat());
}

#[test]
fn small_writes_to_unshared_pages_are_in_place() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    m.write(&file, 0, m.piece(BLOCK_BYTES, 1)).unwrap();
    let at = addresses(&m.read(&file, 0, 1));
    m.write(&file, 100, m.piece(10, 2)).unwrap();
    assert_eq!(addresses(&m.read(&file, 0, 1)), at);
    let held = m.read(&file, 0, BLOCK_BYTES);
    m.write(&file, 100, m.piece(10, 3)).unwrap();
    assert_ne!(addresses(&m.read(&file, 0, 1)), at);
    assert_eq!(held.to_vec()[100], 2);
}

#[test]
fn holes_use_no_memory() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    let in_use = m.arena.stats().in_use;
    now(m.fs.setattr(&m.caller, &file, &size(1 << 50), None)).unwrap();
    let hole = m.read(&file, 123 << 30, 1 << 20);
    assert_eq!((hole.len(), m.arena.stats().in_use), (1 << 20, in_use));
    assert!(hole.iter().all(|v| v.address() == addresses(&hole)[0]));
    assert_eq!(m.used(&file), 0);
}

#[test]
fn all_memory_is_released() {
    let m = Memory::new(|c| c.capacity_bytes = 64 << 20);
    let before = (m.free(), m.arena.stats().in_use);
    let file = m.file("a").unwrap();
    for round in 0..20 {
        let offset = round * 50_001;
        m.write(&file, offset, m.piece(300_000, 1)).unwrap();
        now(m.fs.setattr(&m.caller, &file, &size(offset / 2), None)).unwrap();
    }
    m.write(&file, 1 << 40, m.piece(1, 1)).unwrap();
    m.symlink("l", &[b'x'; 1000]).unwrap();
    let d = m.mkdir(&m.fs.root(), "d").unwrap();
    let victim = now(m.fs.create(&m.caller, &d, b"v", &CreateHow::Guarded(size(9)))).unwrap().handle;
    m.write(&victim, 0, m.piece(5000, 1)).unwrap();
    assert_eq!(m.free().1, before.0.1 + 4);
    now(m.fs.rename(&m.caller, &m.fs.root(), b"l", &d, b"v")).unwrap();
    now(m.fs.remove(&m.caller, &d, b"v")).unwrap();
    now(m.fs.rmdir(&m.caller, &m.fs.root(), b"d")).unwrap();
    m.remove("a");
    assert_eq!((m.free(), m.arena.stats().in_use), before);
}

#[test]
fn write_beyond_capacity_changes_nothing() {
    let objects = PAGE_BYTES as u64; // Charged for the heap memory of one file.
    let m = Memory::new(|c| c.capacity_bytes = 3 * BLOCK_BYTES as u64 + objects);
    let file = m.file("a").unwrap();
    let pages = |n: u8| (0..n).map(|i| m.piece(BLOCK_BYTES, i + 1)).collect::<Views>();
    m.write(&file, 0, pages(2)).unwrap();
    let attr = now(m.fs.getattr(&file)).unwrap();
    assert_eq!(m.write(&file, BLOCK_BYTES as u64, pages(3)), Err(FsError::NoSpc));
    assert_eq!(m.write(&file, 2 * BLOCK_BYTES as u64 - 5, m.piece(BLOCK_BYTES + 10, 9)), Err(FsError::NoSpc));
    assert_eq!(now(m.fs.getattr(&file)).unwrap(), attr);
    let read = m.read(&file, 0, 1 << 20).to_vec();
    assert_eq!((read.len(), read[0], read[2 * BLOCK_BYTES - 1]), (2 * BLOCK_BYTES, 1, 2));
    // Existing data can be rewritten, the last free bytes used, and space freed again.
    m.write(&file, 0, pages(3)).unwrap();
    m.write(&file, 0, pages(3)).unwrap();
    let free = m.free().0;
    assert!(free < objects);
    assert_eq!(m.write(&file, 1 << 20, m.piece(1, 1)), Err(FsError::NoSpc));
    assert_eq!(m.symlink("l", &[b'x'; 4096]), Err(FsError::NoSpc));
    now(m.fs.setattr(&m.caller, &file, &size(BLOCK_BYTES as u64), None)).unwrap();
    assert_eq!(m.free().0, free + 2 * BLOCK_BYTES as u64);
    m.symlink("l", &[b'x'; 4096]).unwrap();
}

#[test]
fn full_file_system_can_be_rewritten() {
    const BLOCKS: usize = 64;
    let m = Memory::new(|c| c.capacity_bytes = (BLOCKS * BLOCK_BYTES + PAGE_BYTES) as u64);
    let file = m.file("a").unwrap();
    let blocks = |byte: u8| (0..16).map(|_| m.piece(BLOCK_BYTES, byte)).collect::<Views>();
    for round in 0..12 {
        let (data, offset) = (blocks(round), (usize::from(round) * 16 % BLOCKS) as u64 * BLOCK_BYTES as u64);
        let at = addresses(&data);
        m.write(&file, offset, data).unwrap();
        assert_eq!(addresses(&m.read(&file, offset, 16 * BLOCK_BYTES)), at, "data was copied");
    }
    assert!(m.free().0 < PAGE_BYTES as u64);
    // A block held by a reader is charged until the reader drops it, so another block does not fit.
    let held = m.read(&file, 0, BLOCK_BYTES);
    assert_eq!(m.write(&file, 0, m.piece(BLOCK_BYTES, 99)), Err(FsError::Jukebox));
    drop(held);
    m.write(&file, 0, m.piece(BLOCK_BYTES, 99)).unwrap();
    assert_eq!(m.read(&file, 0, 1).to_vec(), [99]);
}

#[test]
fn arena_users_cannot_exhaust_each_others_memory() {
    let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
    let on = |capacity: u64| {
        Memory::new(|c| {
            c.arena = arena.clone();
            c.capacity_bytes = capacity;
        })
    };
    let (m, other, source) = (on(32 << 20), on(8 << 20), Memory::new(|_| ()));
    // Fills the file system with files of one size, and keeps one file in each span.
    let sparse = |len: usize| {
        let (data, mut spans) = (source.piece(len, 7), std::collections::HashSet::new());
        let mut all = Vec::new();
        for name in (0..).map(|i| format!("{len}-{i}")) {
            let Ok(file) = m.file(&name) else { break };
            all.push((name, file));
            if m.write(&all[all.len() - 1].1, 0, data.clone()).is_err() {
                break;
            }
        }
        for (name, file) in &all {
            let span = m.read(file, 0, 1).iter().next().map(|v| v.span().id());
            if !span.is_some_and(|id| spans.insert(id)) {
                m.remove(name);
            }
        }
        spans.len()
    };
    for len in [65_536, 32_768, 16_384, 8192, 4096] {
        assert!(sparse(len) >= 6, "files of {len} bytes in sparse spans");
    }
    for len in [512, 4096, 32_768, 65_536, 1 << 20, 2 << 20, 4 << 20] {
        let all: Vec<_> = std::iter::from_fn(|| arena.alloc(len).ok()).collect();
        assert!(all.len() * len >= 16 << 20, "{} buffers of {len} bytes", all.len());
    }
    // The other file system gets its full capacity while all network memory is in use.
    let network: Vec<_> = std::iter::from_fn(|| arena.alloc(1 << 20).ok()).collect();
    let (file, data) = (other.file("a").unwrap(), source.piece(PAGE_BYTES, 1));
    for at in 0..(8 << 20) / PAGE_BYTES - 1 {
        other.write(&file, (at * PAGE_BYTES) as u64, data.clone()).unwrap();
    }
    assert_eq!(network.len(), 16);
}

#[test]
fn files_and_links_are_limited() {
    let m = Memory::new(|c| {
        c.max_files = 3;
        c.link_max = 2;
    });
    let root = m.fs.root();
    let a = m.file("a").unwrap();
    m.mkdir(&root, "d").unwrap();
    assert_eq!(m.file("b"), Err(FsError::NoSpc));
    assert_eq!(m.mkdir(&root, "b"), Err(FsError::NoSpc));
    assert_eq!((m.free().1, now(m.fs.stat()).unwrap().free_files), (3, 0));
    now(m.fs.link(&m.caller, &a, &root, b"b")).unwrap();
    assert_eq!(now(m.fs.link(&m.caller, &a, &root, b"c")).err(), Some(FsError::MLink));
    m.remove("a");
    assert_eq!(m.file("c"), Err(FsError::NoSpc));
    m.remove("b");
    m.file("c").unwrap();
}

#[test]
fn handles_are_stale_in_another_instance() {
    let (one, two) = (Memory::new(|_| ()), Memory::new(|_| ()));
    let file = one.file("a").unwrap();
    assert_eq!(now(two.fs.getattr(&file)), Err(FsError::Stale));
    assert_eq!(now(two.fs.getattr(&one.fs.root())), Err(FsError::Stale));
    assert_ne!(one.fs.write_verifier(), two.fs.write_verifier());
}

#[test]
fn ctime_advances_even_if_the_clock_does_not() {
    let mut clock = None;
    let m = Memory::new(|c| {
        let stopped = Arc::new(Stopped { rt: Arc::clone(&c.runtime), seconds: AtomicU64::new(1000) });
        clock = Some(Arc::clone(&stopped));
        c.runtime = stopped;
    });
    let file = m.file("a").unwrap();
    let times = |h: &Handle| now(m.fs.getattr(h)).map(|a| (a.ctime, a.mtime)).unwrap();
    let (mut last, mut dir_last) = (times(&file), times(&m.fs.root()));
    assert_eq!((last.0.seconds, last.0.nanos), (1000, 0));
    for round in 0..10 {
        clock.as_ref().unwrap().seconds.store(1000 - round, Ordering::Relaxed);
        m.write(&file, 0, m.piece(512, 1)).unwrap();
        let new = times(&file);
        assert!(new.0 > last.0 && new.1 > last.1, "{new:?} after {last:?}");
        last = new;
        now(m.fs.link(&m.caller, &file, &m.fs.root(), b"b")).unwrap();
        assert!(times(&file).0 > last.0 && times(&file).1 == last.1);
        m.remove("b");
        let dir = times(&m.fs.root());
        assert!(dir.0 > dir_last.0 && dir.1 > dir_last.1);
        (last, dir_last) = (times(&file), dir);
    }
    assert_eq!(last.0.seconds, 1000);
}

#[test]
fn table_slots_are_reused() {
    let m = Memory::new(|_| ());
    let mut highest = 0;
    for _ in 0..2000 {
        let file = m.file("a").unwrap();
        highest = highest.max(now(m.fs.getattr(&file)).unwrap().fileid);
        m.remove("a");
        assert_eq!(now(m.fs.getattr(&file)), Err(FsError::Stale));
    }
    assert!(highest < 500, "{highest} places for one file");
}

#[test]
fn unissued_cookies_are_rejected() {
    let m = Memory::new(|_| ());
    m.file("a").unwrap();
    let limits = ReadDirLimits { max_entries: 10, max_name_bytes: 100, plus: false };
    let list = |cookie| now(m.fs.readdir(&m.caller, &m.fs.root(), cookie, [0; 8], limits));
    let cookies: Vec<_> = list(0).unwrap().entries.iter().map(|e| e.cookie).collect();
    assert_eq!(cookies, [1, 2, 3]);
    assert_eq!(list(4).err(), Some(FsError::BadCookie));
    assert_eq!(list(u64::MAX).err(), Some(FsError::BadCookie));
    m.remove("a");
    assert!(list(3).unwrap().eof); // The entry is gone, but its cookie remains valid.
}

/// Lists the root directory in pages of 50 entries, and calls `each` with each name between two pages.
fn list(m: &Memory, mut each: impl FnMut(&str)) -> usize {
    let limits = ReadDirLimits { max_entries: 50, max_name_bytes: 1 << 16, plus: false };
    let (mut cookie, mut seen) = (0, 0);
    loop {
        let page = now(m.fs.readdir(&m.caller, &m.fs.root(), cookie, [0; 8], limits)).unwrap();
        for e in page.entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
            each(std::str::from_utf8(&e.name).unwrap());
            seen += 1;
        }
        cookie = page.entries.last().map_or(cookie, |e| e.cookie);
        if page.eof || seen > 10_000 {
            return seen;
        }
    }
}

#[test]
fn listing_terminates_during_renames() {
    const COUNT: usize = 2000;
    let m = Memory::new(|_| ());
    let root = m.fs.root();
    for i in 0..COUNT {
        m.file(&format!("f{i}")).unwrap();
    }
    let rename = |from: &str, to: &str| {
        now(m.fs.rename(&m.caller, &root, from.as_bytes(), &root, to.as_bytes())).unwrap();
    };
    // Each listed entry is renamed to a new name.
    let mut round = 0;
    assert_eq!(
        list(&m, |name| {
            round += 1;
            rename(name, &format!("r{round}"));
        }),
        COUNT
    );
    // Every other entry is renamed, before or after it is listed; the remaining ones are listed once each.
    let mut seen = std::collections::HashMap::<String, usize>::new();
    let mut round = 0;
    let entries = list(&m, |name| {
        *seen.entry(name.to_owned()).or_default() += 1;
        for n in [round, COUNT - round] {
            if n % 2 == 1 && now(m.fs.lookup(&m.caller, &root, format!("r{n}").as_bytes())).is_ok() {
                rename(&format!("r{n}"), &format!("s{n}"));
            }
        }
        round += 1;
    });
    assert_eq!(entries, COUNT);
    assert!((1..=COUNT).filter(|n| n % 2 == 0).all(|n| seen.get(&format!("r{n}")) == Some(&1)));
}

#[test]
fn repeatedly_replaced_name_is_listed_once() {
    const COUNT: usize = 500;
    let m = Memory::new(|_| ());
    let root = m.fs.root();
    for i in 0..COUNT {
        m.file(&format!("f{i}")).unwrap();
    }
    let mut seen = std::collections::HashMap::<String, usize>::new();
    let mut temporary = 0;
    list(&m, |name| {
        *seen.entry(name.to_owned()).or_default() += 1;
        // As programs save a file: by renaming a new file over the old one.
        for target in [name, "f0", "f499"] {
            let new = format!("t{temporary}");
            temporary += 1;
            m.file(&new).unwrap();
            now(m.fs.rename(&m.caller, &root, new.as_bytes(), &root, target.as_bytes())).unwrap();
        }
    });
    assert_eq!(seen.len(), COUNT);
    assert!(seen.values().all(|times| *times == 1));
    // The cookie of the moved file is gone with its name.
    assert_eq!(list(&m, |_| ()), COUNT);
}

/// Pseudo-random numbers with a fixed seed.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |x| {
        Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    })
    .map(|x| x >> 33)
}

#[test]
fn sparse_writes_use_at_most_twice_their_size() {
    let pages = |m: &Memory, file: &Handle, offsets: &mut dyn Iterator<Item = u64>, len: usize| {
        let (mut starts, len) = (offsets.collect::<Vec<_>>(), len as u64);
        for at in &starts {
            m.write(file, *at, m.piece(len as usize, 1)).unwrap();
        }
        starts.sort_unstable();
        let overlaps: u64 = starts.windows(2).map(|w| (w[0] + len).saturating_sub(w[1])).sum();
        (m.used(file), starts.len() as u64 * len - overlaps)
    };
    let page = PAGE_BYTES as u64;
    // 8 MiB of pages in files of 8 MiB (where most of them become adjacent) to 8 GiB.
    for (seed, file_pages) in [(1, 2048), (2, 10_000), (3, 50_000), (4, 2 << 20)] {
        let m = Memory::new(|_| ());
        let file = m.file("a").unwrap();
        let mut offsets = random(seed).take(2048).map(|r| r % file_pages * page);
        let (used, written) = pages(&m, &file, &mut offsets, PAGE_BYTES);
        assert!(used <= 2 * written, "{written} bytes at random (seed {seed}) take {used}");
        // At any byte offset: a write touches two pages.
        let file = m.file("b").unwrap();
        let mut offsets = random(seed).take(1000).map(|r| r % (file_pages * page));
        let (used, written) = pages(&m, &file, &mut offsets, PAGE_BYTES);
        assert!(used * 10 <= 22 * written, "{written} bytes at any offset (seed {seed}) take {used}");
    }
    // Forward, backward, and every other page.
    let m = Memory::new(|_| ());
    let orders: [&mut dyn Iterator<Item = u64>; 4] = [
        &mut (0..500).map(|p| p * page),
        &mut (0..500).rev().map(|p| p * page),
        &mut (0..500).map(|p| 2 * p * page),
        &mut (0..500).map(|p| p * 16 * page),
    ];
    for (i, offsets) in orders.into_iter().enumerate() {
        let file = m.file(&format!("o{i}")).unwrap();
        let (used, written) = pages(&m, &file, offsets, PAGE_BYTES);
        assert!(used <= 2 * written, "order {i}: {written} bytes take {used}");
    }
}

#[test]
fn small_sequential_writes_form_whole_blocks() {
    let m = Memory::new(|_| ());
    for len in [512, 4096, 10_000] {
        let file = m.file(&format!("{len}")).unwrap();
        for at in 0..(1 << 20) / len {
            m.write(&file, (at * len) as u64, m.piece(len, 1)).unwrap();
        }
        let views = addresses(&m.read(&file, 0, 1 << 20));
        assert!(views.len() <= 16, "{} views of 1 MiB", views.len());
        assert!(m.used(&file) <= (1 << 20) + BLOCK_BYTES as u64);
    }
}

#[test]
fn truncation_releases_pages() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    m.write(&file, 0, (0..2).map(|i| m.piece(BLOCK_BYTES, i)).collect::<Views>()).unwrap();
    for (len, used) in
        [(100_000, 65_536 + 65_536), (70_000, 65_536 + 8192), (20_000, 32_768), (3000, 4096), (0, 0)]
    {
        now(m.fs.setattr(&m.caller, &file, &size(len), None)).unwrap();
        assert_eq!(m.used(&file), used, "{len} bytes");
    }
}

#[test]
fn deallocation_frees_exactly_the_pages_of_the_range() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    m.write(&file, 0, m.piece(BLOCK_BYTES, 1)).unwrap();
    let (page, block) = (PAGE_BYTES as u64, BLOCK_BYTES as u64);
    for (freed, nth) in (1..=16).zip([7, 0, 15, 3, 4, 5, 14, 1, 9, 10, 12, 2, 6, 13, 8, 11]) {
        now(m.fs.deallocate(&m.caller, &file, nth * page, page)).unwrap();
        assert_eq!(m.used(&file), block - freed * page, "page {nth}");
        let hole = now(m.fs.seek(&m.caller, &file, nth * page..block, SeekTarget::Hole));
        assert_eq!(hole, Ok(Some(nth * page)));
    }
    assert_eq!(now(m.fs.seek(&m.caller, &file, 0..block, SeekTarget::Data)), Ok(None));
    // The last page of the file is freed with its data. A zeroed range takes no memory.
    m.write(&file, 0, m.piece(BLOCK_BYTES, 1)).unwrap();
    m.write(&file, block, m.piece(100, 1)).unwrap();
    now(m.fs.deallocate(&m.caller, &file, 0, block + 100)).unwrap();
    now(m.fs.zero(&m.caller, &file, 10, 1 << 50)).unwrap();
    let attr = now(m.fs.getattr(&file)).unwrap();
    assert_eq!((attr.size, attr.used), ((1 << 50) + 10, 0));
}

#[test]
fn deallocation_in_a_full_file_system_zeroes_in_place() {
    let m = Memory::new(|config| config.capacity_bytes = BLOCK_BYTES as u64 + 1000);
    let file = m.file("a").unwrap();
    m.write(&file, 0, m.piece(BLOCK_BYTES, 1)).unwrap();
    let read = m.read(&file, 0, BLOCK_BYTES);
    let deallocate = |at, len| now(m.fs.deallocate(&m.caller, &file, at, len));
    assert_eq!(deallocate(8192, 8192), Err(FsError::Jukebox), "a reader holds the memory");
    assert_eq!(read.to_vec(), vec![1; BLOCK_BYTES]);
    drop(read);
    deallocate(8192, 8192).unwrap();
    let mut expected = vec![1; BLOCK_BYTES];
    expected[8192..16384].fill(0);
    assert_eq!((m.used(&file), m.read(&file, 0, BLOCK_BYTES).to_vec()), (BLOCK_BYTES as u64, expected));
    deallocate(0, u64::MAX).unwrap();
    assert_eq!(m.used(&file), 0);
}

#[test]
fn writes_are_atomic_for_readers() {
    let m = Memory::new(|_| ());
    let file = m.file("a").unwrap();
    let len = 2 * BLOCK_BYTES + 1000;
    let whole = |byte: u8| {
        let mut out: Views = (0..2).map(|_| m.piece(BLOCK_BYTES, byte)).collect();
        out.push(m.piece(1000, byte));
        out
    };
    m.write(&file, 0, whole(0)).unwrap();
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    for _ in 0..400 {
                        let seen = m.read(&file, 0, len).to_vec();
                        assert!(
                            seen.len() == len && seen.iter().all(|b| *b == seen[0]),
                            "partial write visible"
                        );
                    }
                })
            })
            .collect();
        let mut byte = 0u8;
        while !readers.iter().all(|r| r.is_finished()) {
            byte = byte.wrapping_add(1);
            // The writes alternately replace blocks and copy into them.
            let data = if byte.is_multiple_of(2) { whole(byte) } else { m.piece(len, byte).into() };
            m.write(&file, 0, data).unwrap();
        }
    });
}

/// Creates `count` files in one directory, looks up each, lists and removes them.
fn fill_directory(count: usize) {
    let m = Memory::new(|_| ());
    let free = m.free();
    let dir = m.mkdir(&m.fs.root(), "d").unwrap();
    let name = |i: usize| format!("file-{i:07}");
    let how = CreateHow::Guarded(SetAttr::default());
    for i in 0..count {
        now(m.fs.create(&m.caller, &dir, name(i).as_bytes(), &how)).unwrap();
    }
    for i in (0..count).rev() {
        now(m.fs.lookup(&m.caller, &dir, name(i).as_bytes())).unwrap();
    }
    let limits = ReadDirLimits { max_entries: 1000, max_name_bytes: 1 << 16, plus: true };
    let (mut seen, mut cookie) = (0, 0);
    loop {
        let page = now(m.fs.readdir(&m.caller, &dir, cookie, [0; 8], limits)).unwrap();
        for e in page.entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
            assert_eq!(e.name, name(seen).into_bytes());
            seen += 1;
        }
        cookie = page.entries.last().map_or(cookie, |e| e.cookie);
        if page.eof {
            break;
        }
    }
    assert_eq!(seen, count);
    for i in 0..count {
        now(m.fs.remove(&m.caller, &dir, name(i).as_bytes())).unwrap();
    }
    now(m.fs.rmdir(&m.caller, &m.fs.root(), b"d")).unwrap();
    assert_eq!(m.free(), free);
}

#[test]
fn directory_of_100_000_files_is_usable() {
    fill_directory(100_000);
}

#[test]
#[ignore = "takes seconds and some hundred megabytes"]
fn a_directory_of_a_million_files_is_usable() {
    fill_directory(1_000_000);
}

#[test]
fn deep_trees_are_dropped_and_renamed_within_bounds() {
    let m = Memory::new(|_| ());
    let mut dir = m.fs.root();
    for _ in 0..100_000 {
        dir = m.mkdir(&dir, "d").unwrap();
    }
    m.file("f").unwrap();
    let deep = now(m.fs.rename(&m.caller, &m.fs.root(), b"f", &dir, b"f"));
    assert_eq!(deep.err(), Some(FsError::NameTooLong));
    now(m.fs.rename(&m.caller, &m.fs.root(), b"f", &m.fs.root(), b"g")).unwrap();
    drop(m);
}
