//! The invalidations of a file's pages by the kernel, and the pages that it reads while a write(2) may be in progress.
//!
//! Linux copies the data of write(2) into its pages, unlocks those that are up to date, and then sends the WRITE
//! (`fuse_fill_write_pages`). If it drops such a page before the WRITE arrives, a reader reads it again without the new
//! data. The writes of one file are serialized, so this requires that pages were dropped since the previous WRITE was
//! taken, and read after that. Such pages are dropped once more, before the reply to the WRITE.
//!
//! That reply must not wait for a page that is locked until it is sent: the last one of the write, if the write covers a
//! part of it only and the kernel did not have it. The requests of the kernel do not show whether it has a page: it
//! reclaims and truncates pages, and drops them when it opens a file, by itself. But a thread is not in write(2) while it
//! waits for the reply to another request than those that page faults send (READ). What was dropped until then was dropped
//! before the thread has copied any data, so reads since then do not matter to its next WRITE, unless pages have been
//! dropped meanwhile. Nor does it cause a page fault after it has copied the data of the last page of a WRITE: its own
//! reads of that page were before.
//!
//! What remains: pages are dropped while a thread is in write(2), and another one reads the last page of the write in that
//! time, before or after the page is dropped. Only then `PAGE_DROP_TIMEOUT` may end the wait. In doubt a page is dropped.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Reads that are recorded one by one; more are recorded as one range.
const MAX_READS: usize = 64;
/// Threads whose requests are recorded: the last ones.
const MAX_CALLERS: usize = 32;
/// All pages of a file.
const ALL_PAGES: Range<u64> = 0..u64::MAX;

/// A read of pages after an invalidation has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageRead {
    pub(crate) pages: Range<u64>,
    /// The thread that reads; 0 if it is unknown.
    tid: u32,
    /// The number of invalidations that had begun.
    begun: u64,
    /// The last page of the WRITE, which may be locked until the reply.
    pub(crate) is_last: bool,
}

/// Page invalidations by the kernel, and page reads since then.
#[derive(Default)]
pub(crate) struct PageInvalidations {
    /// The number of the last invalidation.
    begun: AtomicU64,
    /// All invalidations up to this one had ended when the last WRITE of a write(2) was taken.
    seen: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Invalidations that have not ended, and the thread that opens the file with it, or 0. Bounded by open descriptions
    /// and the tasks that notify the kernel.
    unfinished: Vec<(u64, u32)>,
    /// Threads that were not in write(2) when all invalidations up to this one had ended.
    callers: VecDeque<(u32, u64)>,
    /// Reads since `seen`.
    reads: Vec<PageRead>,
    /// The number of the notification to drop all pages that the kernel executes.
    running: Option<u64>,
    /// The number of the last invalidation of all pages that has ended.
    last_ended: u64,
}

impl State {
    /// The last invalidation up to which all have ended when a system call of this thread begins: it has completed its
    /// earlier opens.
    fn ended_for(&self, begun: u64, tid: u32) -> u64 {
        let others = self.unfinished.iter().filter(|(_, opener)| tid == 0 || *opener != tid);
        others.map(|(number, _)| number - 1).min().unwrap_or(begun)
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

impl PageInvalidations {
    /// The kernel begins to drop pages: after a notification, or because an open by the thread `opener` does not keep them.
    /// Returns the number of the invalidation.
    pub(crate) fn begin(&self, opener: u32) -> u64 {
        let mut state = self.state.lock();
        let number = self.begun.load(Ordering::Relaxed) + 1;
        state.unfinished.push((number, opener));
        self.begun.store(number, Ordering::Relaxed);
        number
    }

    /// The kernel has dropped all pages. Called once for each [`Self::begin`].
    pub(crate) fn end(&self, number: u64) {
        self.end_range(number, &ALL_PAGES);
    }

    /// As [`Self::end`], but the kernel may have kept the pages.
    pub(crate) fn end_in_doubt(&self, number: u64) {
        self.end_range(number, &(0..0));
    }

    fn end_range(&self, number: u64, dropped: &Range<u64>) {
        let mut state = self.state.lock();
        state.unfinished.retain(|(other, _)| *other != number);
        if *dropped == ALL_PAGES {
            state.last_ended = state.last_ended.max(number);
        }
        let is_in = |pages: &Range<u64>| dropped.start <= pages.start && pages.end <= dropped.end;
        state.reads.retain(|read| read.begun >= number || !is_in(&read.pages));
    }

    /// Runs `notify`, which makes the kernel drop the pages of a range and returns when they are gone.
    pub(crate) fn run(&self, range: Range<u64>, notify: impl FnOnce()) {
        let number = self.begin(0);
        notify();
        self.end_range(number, &page_range(range));
    }

    /// As [`Self::run`], for all pages. One at a time.
    pub(crate) fn run_for_all(&self, notify: impl FnOnce()) {
        let number = self.begin(0);
        self.state.lock().running = Some(number);
        notify();
        self.end(number);
        self.state.lock().running = None;
    }

    /// A thread waits for the reply to a request, which is sent now: it is not in write(2), or has not copied data yet. 0 if it
    /// is unknown.
    pub(crate) fn note_caller(&self, tid: u32) {
        if tid == 0 || self.begun.load(Ordering::Relaxed) == self.seen.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let ended = state.ended_for(self.begun.load(Ordering::Relaxed), tid);
        state.callers.retain(|(other, _)| *other != tid);
        if state.callers.len() >= MAX_CALLERS {
            state.callers.pop_front();
        }
        state.callers.push_back((tid, ended));
    }

    /// Records a read of pages; see [`Inode::note_page_read`](crate::inode::Inode::note_page_read).
    pub(crate) fn note_read(&self, range: Range<u64>, tid: u32) {
        if self.begun.load(Ordering::Relaxed) == self.seen.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let begun = self.begun.load(Ordering::Relaxed);
        let read = PageRead { pages: page_range(range), tid, begun, is_last: false };
        if state.reads.len() >= MAX_READS {
            let start = state.reads.iter().map(|r| r.pages.start).fold(read.pages.start, u64::min);
            let end = state.reads.iter().map(|r| r.pages.end).fold(read.pages.end, u64::max);
            state.reads = vec![PageRead { pages: start..end, tid: 0, ..read }];
        } else if !state.reads.contains(&read) {
            state.reads.push(read);
        }
    }

    /// Records the WRITE of a write(2) by a thread; 0 if it is unknown. Returns the reads of its pages that may have the old
    /// data.
    pub(crate) fn note_write(&self, range: Range<u64>, tid: u32) -> Vec<PageRead> {
        let seen = self.seen.load(Ordering::Relaxed);
        if self.begun.load(Ordering::Relaxed) == seen || range.is_empty() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let now = state.ended_for(self.begun.load(Ordering::Relaxed), 0);
        self.seen.store(now, Ordering::Relaxed);
        let caller = state.callers.iter().find(|(caller, _)| tid != 0 && *caller == tid);
        let ended = caller.map_or(seen, |(_, ended)| seen.max(*ended));
        state.callers.retain(|(_, ended)| *ended > now);
        let pages = page_range(range.clone());
        let last = pages.end - page_size();
        let is_whole = range.end == pages.end && range.start <= last;
        let locked = if is_whole { pages.end } else { last }..pages.end;
        let mut stale = Vec::new();
        for read in std::mem::take(&mut state.reads).into_iter().filter(|read| read.begun > ended) {
            for (part, is_last) in [(pages.start..locked.start, false), (locked.clone(), true)] {
                let both = part.start.max(read.pages.start)..part.end.min(read.pages.end);
                let is_before = is_last && tid != 0 && read.tid == tid;
                if !both.is_empty() && !is_before {
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

    /// A thread without requests other than WRITEs.
    const WRITER: u32 = 1;

    /// The pages that a WRITE of pages `range`, the last one in part, finds.
    fn stale_for(i: &PageInvalidations, range: Range<u64>, tid: u32) -> Vec<(u64, u64, bool)> {
        let page = page_size();
        let found = i.note_write(range.start * page..range.end * page - 1, tid);
        found.into_iter().map(|r| (r.pages.start / page, r.pages.end / page, r.is_last)).collect()
    }

    fn stale(i: &PageInvalidations, range: Range<u64>) -> Vec<(u64, u64, bool)> {
        stale_for(i, range, WRITER)
    }

    fn read_for(invalidations: &PageInvalidations, range: Range<u64>, tid: u32) {
        let page = page_size();
        invalidations.note_read(range.start * page..range.end * page, tid);
    }

    fn read(invalidations: &PageInvalidations, range: Range<u64>) {
        read_for(invalidations, range, WRITER + 1);
    }

    /// Drops pages `range`.
    fn drop_pages(i: &PageInvalidations, range: Range<u64>) {
        i.run(range.start * page_size()..range.end * page_size(), || ());
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
        drop_pages(&i, 9..10);
        read(&i, 2..5);
        assert_eq!(stale(&i, 0..4), [(2, 3, false), (3, 4, true)]);
        drop_pages(&i, 9..10);
        read(&i, 2..5);
        drop_pages(&i, 3..9);
        assert_eq!(stale(&i, 0..8), [(2, 5, false)], "not all pages were dropped");
        drop_pages(&i, 9..10);
        read(&i, 2..5);
        let whole = i.note_write(0..5 * page_size(), WRITER);
        assert!(
            matches!(&whole[..], [read] if !read.is_last),
            "a page that is written as a whole is not locked"
        );
        // One byte of a page, and its end.
        for bytes in [3 * page_size() + 7..3 * page_size() + 8, 3 * page_size() + 7..4 * page_size()] {
            drop_pages(&i, 9..10);
            read(&i, 3..4);
            assert!(matches!(&i.note_write(bytes, WRITER)[..], [read] if read.is_last));
        }
    }

    #[test]
    fn pages_that_are_dropped_later_are_not_stale() {
        let i = PageInvalidations::default();
        i.run_for_all(|| ());
        read(&i, 0..1);
        i.run_for_all(|| ());
        assert_eq!(stale(&i, 0..1), []);
        drop_pages(&i, 9..10);
        read(&i, 1..3);
        drop_pages(&i, 0..3);
        assert_eq!(stale(&i, 0..3), []);
        let doubtful = i.begin(2);
        read(&i, 0..1);
        i.run_for_all(|| i.end_in_doubt(doubtful));
        assert_eq!(stale(&i, 0..1), []);
        let doubtful = i.begin(2);
        read(&i, 0..1);
        i.end_in_doubt(doubtful);
        assert_eq!(stale(&i, 0..1).len(), 1);
        // An open does not keep the pages.
        drop_pages(&i, 9..10);
        read(&i, 0..1);
        let opening = i.begin(2);
        read(&i, 1..2);
        i.end(opening);
        assert_eq!(stale(&i, 0..2), [(1, 2, true)], "perhaps read before they were dropped");
        // The WRITE arrives while pages are dropped.
        i.run_for_all(|| ());
        read(&i, 0..1);
        let mut found = Vec::new();
        i.run_for_all(|| {
            found = i.note_write(0..1, WRITER);
            assert!(i.is_being_dropped(&found[0]) && !i.is_dropped(&found[0]));
            read(&i, 0..1);
        });
        assert!(!i.is_being_dropped(&found[0]) && i.is_dropped(&found[0]));
        assert_eq!(stale(&i, 0..1), [(0, 1, true)], "read while pages were dropped");
    }

    #[test]
    fn pages_that_were_dropped_before_the_write_are_not_stale() {
        let i = PageInvalidations::default();
        let writes = |tid| stale_for(&i, 0..1, tid).len();
        i.run_for_all(|| ());
        i.note_caller(7);
        read(&i, 0..1);
        assert_eq!(writes(7), 0);
        for (tid, found) in [(7, 1), (8, 1), (0, 1)] {
            i.note_caller(tid);
            drop_pages(&i, 9..10);
            read(&i, 0..1);
            assert_eq!(writes(tid), found, "dropped since the request of {tid}");
        }
        drop_pages(&i, 9..10);
        i.note_caller(7);
        i.note_caller(0);
        read(&i, 0..1);
        assert_eq!(writes(8), 1, "the request of another thread");
        drop_pages(&i, 9..10);
        i.note_caller(0);
        read(&i, 0..1);
        assert_eq!(writes(0), 1, "unknown threads");
        // While pages are dropped.
        i.run_for_all(|| {
            i.note_caller(7);
            read(&i, 0..1);
        });
        assert_eq!(writes(7), 1);
        // The thread opens the file, and the kernel drops the pages before the thread continues.
        let opening = i.begin(7);
        i.note_caller(7);
        i.note_caller(8);
        read(&i, 0..1);
        let before = i.state.lock().reads.clone();
        assert_eq!(writes(7), 0);
        i.state.lock().reads = before;
        assert_eq!(writes(8), 1, "perhaps the other thread has not dropped the pages yet");
        i.end(opening);
    }

    #[test]
    fn the_last_page_is_not_stale_after_a_read_by_the_writer() {
        let i = PageInvalidations::default();
        let after_read_by = |tid: u32, writer: u32| {
            drop_pages(&i, 9..10);
            read_for(&i, 0..2, tid);
            stale_for(&i, 0..2, writer)
        };
        assert_eq!(after_read_by(7, 7), [(0, 1, false)]);
        assert_eq!(after_read_by(8, 7), [(0, 1, false), (1, 2, true)]);
        assert_eq!(after_read_by(0, 0), [(0, 1, false), (1, 2, true)], "unknown threads");
        // More reads than are recorded one by one.
        drop_pages(&i, 9..10);
        (0..1000).for_each(|n| read_for(&i, 2 * n + 1..2 * n + 2, 7));
        assert_eq!(stale_for(&i, 0..2, 7), [(1, 2, true)]);
    }

    #[test]
    fn recorded_reads_and_callers_are_bounded() {
        let i = PageInvalidations::default();
        drop_pages(&i, 9..10);
        for n in 0..1000 {
            read(&i, 2 * n..2 * n + 1);
            i.note_caller(n as u32);
        }
        assert!(i.state.lock().reads.len() <= MAX_READS);
        assert_eq!(i.state.lock().callers.len(), MAX_CALLERS);
        assert_eq!(
            i.note_write(0..u64::MAX / 2, 1).iter().map(|r| r.pages.end).max(),
            Some(1999 * page_size())
        );
        assert!(i.state.lock().callers.is_empty(), "of no use after a WRITE");
    }
}
