//! Reading and rewriting a file in the memory file system does not allocate in steady state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use millrace_buffer::{Arena, ArenaConfig, BLOCK_BYTES, Views};
use millrace_counting_allocator::allocations;
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_vfs::{
    CreateHow, FileSystem, Identity, MaybeReady, SetAttr, Stability,
    memory::{MemoryConfig, MemoryFs},
};

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
    let before = allocations();
    rounds();
    assert_eq!(allocations() - before, 0);
}
