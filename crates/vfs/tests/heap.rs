//! Heap memory of objects and names stays within what the memory file system charges for them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use millrace_buffer::{Arena, ArenaConfig, Views};
use millrace_counting_allocator::held_bytes;
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_vfs::{
    CreateHow, FileSystem, Handle, Identity, MaybeReady, NewNode, Op, SetAttr, Stability,
    memory::{MemoryConfig, MemoryFs},
};

struct Memory {
    fs: Arc<MemoryFs>,
    arena: Arena,
    caller: Identity,
    heap: i64,
    free: u64,
    max_ratio: f64,
    _rt: tokio::runtime::Runtime,
}

fn now<T>(op: Op<T>) -> T {
    let MaybeReady::Ready(outcome) = op else {
        panic!("a call of the memory file system is not ready at once")
    };
    outcome.unwrap()
}

impl Memory {
    fn new() -> Self {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
        let runtime = TokioRuntime::from_handle(rt.handle().clone());
        let fs = MemoryFs::new(MemoryConfig {
            capacity_bytes: 4 << 30,
            link_max: u32::MAX,
            ..MemoryConfig::new(arena.clone(), runtime)
        });
        let free = now(fs.stat()).free_bytes;
        Self { fs, arena, caller: Identity::root(), heap: held_bytes(), free, max_ratio: 0.0, _rt: rt }
    }

    fn file(&self, dir: &Handle, name: &str) -> Handle {
        now(self.fs.create(&self.caller, dir, name.as_bytes(), &CreateHow::Guarded(SetAttr::default())))
            .handle
    }

    fn make(&self, dir: &Handle, name: &str, node: &NewNode) -> Handle {
        now(self.fs.create_node(&self.caller, dir, name.as_bytes(), node, &SetAttr::default())).handle
    }

    fn remove(&self, dir: &Handle, name: &str) {
        now(self.fs.remove(&self.caller, dir, name.as_bytes()));
    }

    /// Compares the growth of the heap with the charge, except for `beside` bytes that are not charged.
    fn check(&mut self, what: &str, beside: i64) {
        let (heap, charge) = (held_bytes() - self.heap, self.free - now(self.fs.stat()).free_bytes);
        assert!(heap <= charge as i64 + beside, "{what}: {heap} bytes of heap, {charge} charged");
        self.max_ratio = self.max_ratio.max((heap - beside) as f64 / charge as f64);
    }

    fn print_ratio(&self, what: &str) {
        println!("{what}: at most {:.0} % of the charge", 100.0 * self.max_ratio);
    }
}

/// A name of `len` bytes.
fn name(i: usize, len: usize) -> String {
    format!("{i:0len$}")
}

/// A pseudo-random permutation of `0..count` with a fixed seed.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..count).collect();
    let mut random = 12_345u64;
    for i in (1..count).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (random >> 33) as usize % (i + 1));
    }
    order
}

/// Allocations not charged, such as the maps of an empty directory and the table shards.
const START: i64 = 64 << 10;

#[test]
fn heap_memory_of_links_is_within_the_charge() {
    for len in [6, 20, 255] {
        let order = shuffled(100_000);
        let mut m = Memory::new();
        let root = m.fs.root();
        let file = m.file(&root, "f");
        for i in 0..100_000 {
            now(m.fs.link(&m.caller, &file, &root, name(i, len).as_bytes()));
            if i % 64 == 0 {
                m.check("links", START);
            }
        }
        m.check("links", START);
        m.print_ratio(&format!("100,000 links with names of {len} bytes"));
        for (removed, i) in order.iter().enumerate() {
            m.remove(&root, &name(*i, len));
            if removed % 64 == 0 {
                m.check("links after removals", START);
            }
        }
        m.print_ratio(&format!("and while they are removed, names of {len} bytes"));
    }
}

#[test]
fn heap_memory_of_objects_is_within_the_charge() {
    const COUNT: usize = 20_000;
    /// Table slots of removed objects, which are kept for reuse.
    const PLACES: i64 = 64 * COUNT as i64;
    for len in [5, 255] {
        let nodes = [
            NewNode::Directory,
            NewNode::Symlink(vec![b'x'; 1]),
            NewNode::Symlink(vec![b'x'; 4096]),
            NewNode::Fifo,
        ];
        for node in nodes {
            let mut m = Memory::new();
            let root = m.fs.root();
            for i in 0..COUNT {
                m.make(&root, &name(i, len), &node);
                if i % 64 == 0 {
                    m.check("objects", START);
                }
            }
            let kind = if let NewNode::Symlink(to) = &node {
                format!("links to {} bytes", to.len())
            } else {
                format!("{node:?}")
            };
            m.print_ratio(&format!("{kind} in one directory, names of {len} bytes"));
        }
        let mut m = Memory::new();
        let mut dir = m.fs.root();
        for i in 0..COUNT {
            dir = m.make(&dir, &name(i, len), &NewNode::Directory);
            m.check("directories in one another", START);
        }
        m.print_ratio(&format!("directories in one another, names of {len} bytes"));
        let mut m = Memory::new();
        let root = m.fs.root();
        let dirs: Vec<_> =
            (0..COUNT / 10).map(|i| m.make(&root, &name(i, len), &NewNode::Directory)).collect();
        for i in 0..10 {
            for d in &dirs {
                m.file(d, &name(i, len));
            }
            m.check("files in many directories", START + 48 * COUNT as i64 / 10); // The vector `dirs`.
        }
        for i in 0..10 {
            dirs.iter().for_each(|d| m.remove(d, &name(i, len)));
            m.check("directories that were emptied", START + PLACES);
        }
        m.print_ratio(&format!("files in many directories, names of {len} bytes"));
    }
}

/// Lets the second file have the first block of the first one at an offset.
type Share<'a> = &'a dyn Fn(&Memory, &Handle, &Handle, u64);

/// CLONE and COPY of blocks take no slots.
#[test]
fn heap_memory_of_shared_blocks_is_within_the_charge() {
    const COUNT: usize = 20_000;
    const BLOCK: u64 = millrace_buffer::BLOCK_BYTES as u64;
    let copy = |m: &Memory, from: &Handle, to: &Handle, at: u64| {
        assert_eq!(now(m.fs.copy(&m.caller, from, 0, to, at, BLOCK)).count, BLOCK);
    };
    let clone = |m: &Memory, from: &Handle, to: &Handle, at: u64| {
        now(m.fs.clone_range(&m.caller, from, 0, to, at, BLOCK));
    };
    // Each call with the pages of the block that have data.
    let calls: [(&str, Share<'_>, &[u64]); 4] = [
        ("COPY of a block with one page", &copy, &[0]),
        ("COPY of a full block", &copy, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ("CLONE of a block with one page", &clone, &[0]),
        ("CLONE of a block of single pages", &clone, &[0, 2, 4, 6, 8, 10, 12, 14]),
    ];
    for (what, share, pages) in calls {
        let mut m = Memory::new();
        let root = m.fs.root();
        let (from, to) = (m.file(&root, "from"), m.file(&root, "to"));
        for page in pages {
            let data = Views::from(m.arena.copy_from(&[1; 4096]).unwrap());
            now(m.fs.write(&m.caller, &from, page * 4096, data, Stability::Unstable));
        }
        let size = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
        now(m.fs.setattr(&m.caller, &from, &size, None));
        let order = shuffled(COUNT);
        (m.heap, m.free) = (held_bytes(), now(m.fs.stat()).free_bytes);
        for block in 0..COUNT {
            share(&m, &from, &to, block as u64 * BLOCK);
            if block % 64 == 0 {
                m.check(what, START);
            }
        }
        m.check(what, START);
        m.print_ratio(what);
        for (removed, block) in order.into_iter().enumerate() {
            now(m.fs.deallocate(&m.caller, &to, block as u64 * BLOCK, BLOCK));
            if removed % 64 == 0 {
                m.check(what, START);
            }
        }
        let free = now(m.fs.stat()).free_bytes;
        assert_eq!(free, m.free, "{what}: the blocks are freed, and a part of the charge is left");
    }
}
