//! Pages that the system provides.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::{Arena, ArenaConfig, BLOCK_BYTES, Buffer, PAGE_BYTES, SPAN_BYTES};

/// Number of pages of the span of `buffer` that are in memory (proc_pid_pagemap(5)).
fn resident_pages(buffer: &Buffer) -> io::Result<usize> {
    let mut entries = vec![0; SPAN_BYTES / PAGE_BYTES * 8];
    let at = (buffer.span().address() / PAGE_BYTES * 8) as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, at)?;
    Ok(entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count())
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages")]
fn the_first_small_buffers_touch_only_their_own_pages() {
    let a = Arena::new(ArenaConfig { limit: 16 * SPAN_BYTES, huge_pages: true });
    for len in [512, 4096, BLOCK_BYTES / 2] {
        let mut buffer = a.alloc(len).unwrap();
        buffer.fill(1);
        assert_eq!(resident_pages(&buffer).unwrap(), len.div_ceil(PAGE_BYTES), "a buffer of {len} bytes");
    }
}
