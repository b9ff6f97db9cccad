//! The conformance suite on the memory file system.

// Tests fail by panicking; the lints recognize tests only by their attribute.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod suite;

use std::sync::Arc;

use millrace_vfs::{
    FileSystem,
    memory::{MemoryConfig, MemoryFs},
};
use suite::fixture::{Abilities, Fixture};

fn memory() -> Fixture {
    let can = Abilities { identities: true, devices: true, coarse_times: false, stress_steps: 5000 };
    Fixture::new(can, |arena, rt| {
        (MemoryFs::new(MemoryConfig::new(arena, rt)) as Arc<dyn FileSystem>, Box::new(()))
    })
}

suite::implementations! {
    memory_fs: crate::memory;
}
