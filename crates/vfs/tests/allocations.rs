//! Reading and rewriting a file in the memory file system does not allocate in steady state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unsafe_code)] // Needed for a counting allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use millrace_buffer::{Arena, ArenaConfig, BLOCK_BYTES, Views};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_vfs::{
    CreateHow, FileSystem, Identity, MaybeReady, SetAttr, Stability,
    memory::{MemoryConfig, MemoryFs},
};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator, counting allocations of this thread.
struct Counting;

// SAFETY: forwards to the system allocator; the counter is a plain thread-local cell that does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller upholds the contract of GlobalAlloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reads_and_rewrites_do_not_allocate() {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let runtime = TokioRuntime::from_handle(rt.handle().clone());
    let fs = MemoryFs::new(MemoryConfig::new(arena.clone(), runtime));
    let caller = Identity::root();
    let how = CreateHow::Guarded(SetAttr { size: Some(16 << 20), ..SetAttr::default() });
    let MaybeReady::Ready(Ok(file)) = fs.create(&caller, &fs.root(), b"a", &how) else {
        panic!("cannot create the file")
    };
    let round = |offset: u64| {
        // Whole blocks, which are swapped; a small write in place; reads of data and of a hole.
        let data: Views = (0..16).map(|_| arena.alloc(BLOCK_BYTES).unwrap().freeze()).collect();
        let small = Views::from(arena.alloc(4096).unwrap().freeze());
        for (at, data) in [(offset, data), (offset + 5000, small)] {
            let MaybeReady::Ready(Ok(_)) = fs.write(&caller, &file.handle, at, data, Stability::Unstable)
            else {
                panic!("not written")
            };
        }
        for at in [offset, offset + 777, 8 << 20] {
            let MaybeReady::Ready(Ok(read)) = fs.read(&caller, &file.handle, at, 1 << 20) else {
                panic!("not read")
            };
            assert_eq!(read.data.len(), 1 << 20);
        }
        assert!(matches!(fs.getattr(&file.handle), MaybeReady::Ready(Ok(_))));
    };
    let rounds = || (0..4).for_each(|i| round(i << 20));
    rounds();
    rounds();
    let before = COUNT.get();
    rounds();
    assert_eq!(COUNT.get() - before, 0);
}
