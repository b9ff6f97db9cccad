//! The kernel's page cache, its locks, and the system calls that use it.

use std::{collections::BTreeMap, ops::Range};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, MutexGuard};

use super::{
    linux::{
        ATTR_SIZE, Description, FROM_CACHE, HAS_HANDLE, HAS_LOCK_OWNER, Io, Linux, SET_SIZE, SysResult,
        errno, parts,
    },
    wire::{Body, Op, u64_at},
};

/// Page size in bytes.
pub(super) const PAGE: u64 = 4096;
/// Maximum file size in pages.
const PAGES: usize = 16;

/// A kernel inode.
pub(super) struct Node {
    pub(super) number: u64,
    /// `i_rwsem`, taken by writers and truncation.
    changes: Lock<()>,
    /// Page locks.
    pages: Vec<Lock<()>>,
    pub(super) cache: Mutex<Cache>,
    /// Lookup count for FORGET.
    pub(super) lookups: Mutex<u64>,
}

#[derive(Default)]
pub(super) struct Cache {
    size: u64,
    /// Number of size changes by the kernel, and of invalidations: a reply to an earlier request does not change the size
    /// (`attr_version`).
    version: u64,
    /// The kernel changes the size: a write beyond it or a truncation is in progress, and no reply changes
    /// the size (`FUSE_I_SIZE_UNSTABLE`, set in `fuse_perform_write` and `fuse_do_setattr`, and tested
    /// together with `attr_version` in `fuse_change_attributes`).
    is_size_unstable: bool,
    /// Number of invalidations.
    dropped: u64,
    pages: BTreeMap<u64, Page>,
}

#[derive(Clone)]
struct Page {
    data: Vec<u8>,
    is_dirty: bool,
}

impl Node {
    pub(super) fn new(number: u64, size: u64) -> Self {
        Self {
            number,
            changes: Lock::default(),
            pages: (0..PAGES).map(|_| Lock::default()).collect(),
            cache: Mutex::new(Cache { size, ..Cache::default() }),
            lookups: Mutex::default(),
        }
    }
}

impl Cache {
    /// Drops the clean pages; dirty ones would be written first.
    pub(super) fn drop_clean(&mut self) {
        self.dropped += 1;
        self.pages.retain(|_, page| page.is_dirty);
    }

    /// The file system has invalidated the attributes, and with `drops_pages` the pages (`fuse_reverse_inval_inode`).
    pub(super) fn invalidate(&mut self, drops_pages: bool) {
        self.version += 1;
        if drops_pages {
            self.drop_clean();
        }
    }

    /// The file system has sent data of one page (`fuse_notify_store`).
    pub(super) fn store(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        (self.size, self.version) = (self.size.max(end), self.version + 1);
        let (number, start) = (offset / PAGE, (offset % PAGE) as usize);
        if start == 0 && self.size == end {
            let page = Page { data: vec![0; PAGE as usize], is_dirty: false };
            self.pages.entry(number).or_insert(page);
        }
        if let Some(page) = self.pages.get_mut(&number) {
            page.data[start..start + data.len()].copy_from_slice(data);
        }
    }

    /// `truncate_pagecache`.
    fn truncate(&mut self, size: u64) {
        (self.size, self.version) = (size, self.version + 1);
        self.pages.retain(|number, _| number * PAGE < size);
        if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
            page.data[(size % PAGE) as usize..].fill(0);
        }
    }
}

/// Page numbers of a byte range.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl Linux {
    /// pread(2).
    pub(crate) async fn read(&self, file: &Description, offset: u64, len: usize) -> SysResult<Vec<u8>> {
        let range = offset..offset + len as u64;
        if self.io == Io::Direct {
            return self.get(file, range, HAS_LOCK_OWNER).await;
        }
        let node = &file.node;
        if self.io == Io::WriteThrough && range.end > node.cache.lock().size {
            self.fetch_size(file).await?;
        }
        let mut data = Vec::new();
        for number in pages(&range) {
            let start = offset.max(number * PAGE);
            if node.cache.lock().size <= start {
                break;
            }
            let _lock = node.pages[number as usize].lock().await;
            let page = self.page(file, number).await?;
            // The size after the page was read (`filemap_read`).
            let until = range.end.min((number + 1) * PAGE).min(node.cache.lock().size).max(start);
            data.extend(&page[(start - number * PAGE) as usize..(until - number * PAGE) as usize]);
        }
        Ok(data)
    }

    /// Returns the content of a page whose lock the caller holds.
    async fn page(&self, file: &Description, number: u64) -> SysResult<Vec<u8>> {
        let (cached, dropped, version) = {
            let cache = file.node.cache.lock();
            (cache.pages.get(&number).map(|page| page.data.clone()), cache.dropped, cache.version)
        };
        if let Some(data) = cached {
            return Ok(data);
        }
        let mut data = self.get(file, number * PAGE..(number + 1) * PAGE, 0).await?;
        let end = number * PAGE + data.len() as u64;
        data.resize(PAGE as usize, 0);
        let mut cache = file.node.cache.lock();
        // `fuse_short_read`.
        let is_current = self.io == Io::WriteThrough && cache.version == version && !cache.is_size_unstable;
        if is_current && end < cache.size.min((number + 1) * PAGE) {
            (cache.size, cache.version) = (end, version + 1);
        }
        if cache.dropped == dropped {
            cache.pages.insert(number, Page { data: data.clone(), is_dirty: false });
        }
        Ok(data)
    }

    /// Requests the size from the file system.
    async fn fetch_size(&self, file: &Description) -> SysResult<()> {
        let version = file.node.cache.lock().version;
        let body = Body::default().u32(0).u32(0).u64(0);
        let attrs = self.call(Op::Getattr, file.node.number, file.pid, body).await.map_err(errno)?;
        let size = u64_at(&attrs, ATTR_SIZE);
        let mut cache = file.node.cache.lock();
        if cache.version == version && !cache.is_size_unstable && cache.size != size {
            cache.truncate(size);
            cache.drop_clean(); // Pages of the old size (`fuse_change_attributes`).
        }
        Ok(())
    }

    /// pwrite(2).
    pub(crate) async fn write(&self, file: &Description, offset: u64, data: &[u8]) -> SysResult<()> {
        let node = &file.node;
        let _changes = node.changes.lock().await;
        if self.io == Io::Direct {
            return self.put(file, offset, data, HAS_LOCK_OWNER).await;
        }
        let range = offset..offset + data.len() as u64;
        {
            let mut cache = node.cache.lock();
            cache.is_size_unstable = cache.size < range.end;
        }
        let written = self.write_parts(file, range.clone(), data).await;
        let mut cache = node.cache.lock();
        (cache.is_size_unstable, cache.version) = (false, cache.version + 1);
        if written.is_ok() {
            cache.size = cache.size.max(range.end);
        }
        written
    }

    async fn write_parts(&self, file: &Description, range: Range<u64>, data: &[u8]) -> SysResult<()> {
        let offset = range.start;
        for part in parts(range, self.max_transfer) {
            let bytes = &data[(part.start - offset) as usize..(part.end - offset) as usize];
            self.write_part(file, part, bytes).await?;
        }
        Ok(())
    }

    /// Copies data into pages and, with write-through, sends it.
    async fn write_part(&self, file: &Description, range: Range<u64>, data: &[u8]) -> SysResult<()> {
        let (node, mut locks) = (&file.node, Vec::new());
        for number in pages(&range) {
            let lock = node.pages[number as usize].lock().await;
            self.fill(file, number, &range, data).await?;
            // A page that is up to date is unlocked before its data is sent, so it may be dropped and read
            // again before that.
            if !node.cache.lock().pages.contains_key(&number) {
                locks.push(lock);
            }
        }
        if self.io == Io::WriteThrough {
            self.be_preempted().await;
            self.put(file, range.start, data, 0).await?;
        }
        Ok(())
    }

    async fn lock_pages<'n>(&self, node: &'n Node, pages: Range<u64>) -> Vec<MutexGuard<'n, ()>> {
        let mut locks = Vec::new();
        for number in pages {
            locks.push(node.pages[number as usize].lock().await);
        }
        locks
    }

    /// Copies a part of `data` into a page. With write-through, an uncached page that is written partially
    /// stays uncached; with write-back it is read first.
    async fn fill(&self, file: &Description, number: u64, range: &Range<u64>, data: &[u8]) -> SysResult<()> {
        let whole = number * PAGE..(number + 1) * PAGE;
        let (start, end) = (range.start.max(whole.start), range.end.min(whole.end));
        let is_whole = (start, end) == (whole.start, whole.end);
        let is_new = whole.start >= file.node.cache.lock().size;
        let is_back = self.io == Io::WriteBack;
        let before = match is_back && !is_whole && !is_new {
            true => self.page(file, number).await?,
            false => vec![0; PAGE as usize],
        };
        let mut cache = file.node.cache.lock();
        if is_whole || is_back {
            cache.pages.entry(number).or_insert(Page { data: before, is_dirty: false });
        }
        if let Some(page) = cache.pages.get_mut(&number) {
            let part = &data[(start - range.start) as usize..(end - range.start) as usize];
            page.data[(start - whole.start) as usize..(end - whole.start) as usize].copy_from_slice(part);
            page.is_dirty |= is_back;
        }
        if is_back {
            cache.size = cache.size.max(end); // Before the page is unlocked: write-back stops at the file size.
        }
        Ok(())
    }

    /// Writes the dirty pages and waits for completion.
    pub(crate) async fn write_back(&self, file: &Description) -> SysResult<()> {
        if self.io != Io::WriteBack {
            return Ok(());
        }
        let node = &file.node;
        for number in 0..PAGES as u64 {
            // Held until the page is written; like `PG_writeback`, it blocks writers.
            let _lock = node.pages[number as usize].lock().await;
            let dirty = {
                let mut cache = node.cache.lock();
                let size = cache.size;
                let page = cache.pages.get_mut(&number).filter(|page| page.is_dirty);
                page.map(|page| {
                    page.is_dirty = false;
                    page.data[..PAGE.min(size.saturating_sub(number * PAGE)) as usize].to_vec()
                })
            };
            if let Some(data) = dirty.filter(|data| !data.is_empty()) {
                self.put(file, number * PAGE, &data, FROM_CACHE).await?;
            }
        }
        Ok(())
    }

    /// ftruncate(2), or the truncation by open(2), which passes no file handle.
    pub(crate) async fn set_size(&self, file: &Description, size: u64, by_handle: bool) -> SysResult<()> {
        let node = &file.node;
        let _changes = node.changes.lock().await;
        // No page is being written (`fuse_set_nowrite`).
        let _locks = self.lock_pages(node, 0..PAGES as u64).await;
        let more = if by_handle { HAS_HANDLE } else { 0 };
        node.cache.lock().is_size_unstable = true;
        let set = self.set(file, SET_SIZE | more, size).await;
        let mut cache = node.cache.lock();
        cache.is_size_unstable = false;
        if set.is_ok() {
            cache.truncate(size);
        }
        set
    }
}
