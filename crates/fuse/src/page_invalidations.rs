//! The invalidations of a file's pages by the kernel, and the pages that it reads while a write(2) may be in progress.
//!
//! Linux copies the data of write(2) into its pages, unlocks those that are up to date, and then sends the WRITE
//! (`fuse_fill_write_pages`). If it drops such a page before the WRITE arrives, a reader reads it again without the new
//! data. The writes of one file are serialized, so this requires that pages were dropped since the previous WRITE was
//! taken, and read after that. Such pages are dropped once more, before the reply to the WRITE.
//!
//! That reply must not wait for pages that are locked until it is sent: the last one of the write, if it was not up to
//! date. Its earlier content, if it has been read, was then dropped by a later invalidation: that of all pages which has
//! passed the page, and which ends.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Reads that are recorded one by one; more are recorded as one range.
const MAX_READS: usize = 64;

/// A read of pages after an invalidation has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageRead {
    pub(crate) pages: Range<u64>,
    /// The number of invalidations that had begun.
    begun: u64,
    /// The last page of the WRITE, which may be locked until the reply.
    pub(crate) is_last: bool,
}

/// Page invalidations by the kernel, and page reads since then.
#[derive(Default)]
pub(crate) struct PageInvalidations {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Value of `ended` when the last WRITE of a write(2) was taken.
    seen: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Reads since then.
    reads: Vec<PageRead>,
    /// The number of the notification to drop all pages that the kernel executes.
    running: Option<u64>,
    /// The number of the last notification to drop all pages that has ended.
    last_ended: u64,
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

impl PageInvalidations {
    /// The kernel begins to drop pages: after a notification, or because an open does not keep them. Returns the number of
    /// the invalidation.
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Called once for each [`Self::begin`].
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `notify`, which makes the kernel drop pages and returns when they are gone.
    pub(crate) fn run(&self, notify: impl FnOnce()) {
        self.begin();
        notify();
        self.end();
    }

    /// As [`Self::run`], for all pages. One at a time.
    pub(crate) fn run_for_all(&self, notify: impl FnOnce()) {
        let number = {
            let mut state = self.state.lock();
            let number = self.begin();
            state.running = Some(number);
            number
        };
        notify();
        let mut state = self.state.lock();
        self.end();
        (state.running, state.last_ended) = (None, number);
        state.reads.retain(|read| read.begun >= number);
    }

    /// Records a read of pages; see [`Inode::note_page_read`](crate::inode::Inode::note_page_read).
    pub(crate) fn note_read(&self, range: Range<u64>) {
        if self.begun.load(Ordering::Relaxed) == self.seen.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let begun = self.begun.load(Ordering::Relaxed);
        let read = PageRead { pages: page_range(range), begun, is_last: false };
        if state.reads.len() >= MAX_READS {
            let start = state.reads.iter().map(|r| r.pages.start).fold(read.pages.start, u64::min);
            let end = state.reads.iter().map(|r| r.pages.end).fold(read.pages.end, u64::max);
            state.reads = vec![PageRead { pages: start..end, ..read }];
        } else if !state.reads.contains(&read) {
            state.reads.push(read);
        }
    }

    /// Records the WRITE of a write(2). Returns the reads of its pages that may have the old data.
    pub(crate) fn note_write(&self, range: Range<u64>) -> Vec<PageRead> {
        let is_first = self.begun.load(Ordering::Relaxed) == self.seen.load(Ordering::Relaxed);
        if is_first || range.is_empty() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        self.seen.store(self.ended.load(Ordering::Relaxed), Ordering::Relaxed);
        let pages = page_range(range);
        let last = pages.end - page_size()..pages.end;
        let mut stale = Vec::new();
        for read in std::mem::take(&mut state.reads) {
            for (part, is_last) in [(pages.start..last.start, false), (last.clone(), true)] {
                let both = part.start.max(read.pages.start)..part.end.min(read.pages.end);
                if !both.is_empty() {
                    stale.push(PageRead { pages: both, is_last, ..read });
                }
            }
        }
        stale
    }

    /// Whether a notification drops all pages since `read`, and has not ended.
    pub(crate) fn is_being_dropped(&self, read: &PageRead) -> bool {
        self.state.lock().running.is_some_and(|number| number > read.begun)
    }

    /// Whether all pages have been dropped since `read`.
    pub(crate) fn is_dropped(&self, read: &PageRead) -> bool {
        self.state.lock().last_ended > read.begun
    }
}

/// The range of whole pages with these bytes.
fn page_range(range: Range<u64>) -> Range<u64> {
    let page = page_size();
    range.start / page * page..range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages that a WRITE of pages `range` finds.
    fn stale(invalidations: &PageInvalidations, range: Range<u64>) -> Vec<(u64, u64, bool)> {
        let page = page_size();
        let found = invalidations.note_write(range.start * page..range.end * page);
        found.into_iter().map(|r| (r.pages.start / page, r.pages.end / page, r.is_last)).collect()
    }

    fn read(invalidations: &PageInvalidations, range: Range<u64>) {
        let page = page_size();
        invalidations.note_read(range.start * page..range.end * page);
    }

    #[test]
    fn a_write_finds_the_pages_read_since_an_invalidation() {
        let i = PageInvalidations::default();
        read(&i, 0..8);
        assert_eq!(stale(&i, 0..8), [], "nothing was dropped");
        i.run_for_all(|| ());
        read(&i, 2..5);
        assert_eq!(stale(&i, 6..8), []);
        assert_eq!(stale(&i, 0..8), [], "the earlier write has ended");
        i.run(|| ());
        read(&i, 2..5);
        assert_eq!(stale(&i, 0..4), [(2, 3, false), (3, 4, true)]);
        i.run(|| ());
        read(&i, 2..5);
        i.run(|| ());
        assert_eq!(stale(&i, 0..8), [(2, 5, false)], "not all pages were dropped");
        // One byte of a page.
        i.run(|| ());
        read(&i, 3..4);
        assert_eq!(i.note_write(3 * page_size() + 7..3 * page_size() + 8).len(), 1);
    }

    #[test]
    fn pages_that_are_dropped_later_are_not_stale() {
        let i = PageInvalidations::default();
        i.run_for_all(|| ());
        read(&i, 0..1);
        i.run_for_all(|| ());
        assert_eq!(stale(&i, 0..1), []);
        // The WRITE arrives while pages are dropped.
        i.run_for_all(|| ());
        read(&i, 0..1);
        let mut found = Vec::new();
        i.run_for_all(|| {
            found = i.note_write(0..1);
            assert!(i.is_being_dropped(&found[0]) && !i.is_dropped(&found[0]));
            read(&i, 0..1);
        });
        assert!(!i.is_being_dropped(&found[0]) && i.is_dropped(&found[0]));
        assert_eq!(stale(&i, 0..1), [(0, 1, true)], "read while pages were dropped");
    }

    #[test]
    fn recorded_reads_are_bounded() {
        let i = PageInvalidations::default();
        i.run(|| ());
        for n in 0..1000 {
            read(&i, 2 * n..2 * n + 1);
        }
        assert!(i.state.lock().reads.len() <= MAX_READS);
        assert_eq!(i.note_write(0..u64::MAX / 2).iter().map(|r| r.pages.end).max(), Some(1999 * page_size()));
    }
}
