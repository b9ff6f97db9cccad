//! Whether the kernel's pages of a file are still what the server has; and, by the same rules, its names of a directory.
//!
//! The pages are good as long as the server's file has the attributes (size, mtime, ctime) under which they were read.
//! Our own writes change those too, but the kernel has their data in its pages already; so what a change of ours led from
//! and to (`wcc_data`, RFC 1813 section 2.6) moves the attributes on. Replies of calls in flight come in any order:
//! changes wait here until the one before them is known.
//!
//! This keeps nothing that is not proven: a change of somebody else leaves a gap that no change of ours fills, from there
//! on nothing moves, and the next answer of the server has other attributes. The same holds for a change of ours of
//! which the server does not say what was before. (What NFSv3 cannot show is a change that leaves size and times as they
//! were: that of a server whose clock stands still between them.)

use millrace_nfs::v3::{WccAttr, WccData};

/// So many changes at most wait for the one before them: more than a server answers out of order. The rest is forgotten,
/// and with it the proof.
const MAX_PENDING: usize = 256;

/// What is known of the kernel's pages of one file.
#[derive(Debug, Default)]
pub(crate) struct PageState {
    /// The server's attributes for which they are good, except those from before the epoch.
    valid_for: Option<WccAttr>,
    /// Begins when what the kernel has is found to be old. From 1 on.
    invalidations: u64,
    /// The kernel has dropped what is from before this epoch.
    dropped: u64,
    /// Changes of ours, from and to, of which the one before is not known yet.
    waiting: Vec<(WccAttr, WccAttr)>,
    /// Of a change of ours the server did not say from or to what.
    has_unproven_change: bool,
    /// The kernel is to drop what is from before this epoch, at once.
    urgent: u64,
    /// It is yet to be told so.
    queued: bool,
}

impl PageState {
    /// A change of ours has happened.
    pub(crate) fn note_change(&mut self, wcc: &WccData) {
        let (Some(from), Some(to)) = (wcc.before, wcc.after.as_ref().map(WccAttr::from)) else {
            self.has_unproven_change = true;
            return;
        };
        // One that leaves everything as it was has no place in the order, and needs none.
        if from == to || self.valid_for.is_none() {
            return;
        }
        if self.valid_for != Some(from) {
            if self.waiting.len() < MAX_PENDING {
                self.waiting.push((from, to));
            }
            return;
        }
        self.valid_for = Some(to);
        while let Some(next) = self.waiting.iter().position(|(from, _)| Some(*from) == self.valid_for) {
            self.valid_for = Some(self.waiting.swap_remove(next).1);
        }
    }

    /// No change of ours is under way, and the last one led to `now`. `true`: another's change lies between ours, or may; what
    /// the kernel has is good for `now` then, once it has dropped what it had.
    pub(crate) fn has_gap(&mut self, now: WccAttr) -> bool {
        (self.has_unproven_change || !self.waiting.is_empty()) && self.compare(now)
    }

    /// The server does not have what the kernel has, so that has to go.
    pub(crate) fn invalidate(&mut self) {
        self.valid_for = None;
        self.waiting = Vec::new();
        self.has_unproven_change = false;
        self.invalidations += 1;
    }

    /// The server's attributes are `now`, with no change of ours under way. `true`: other than the pages are good for, so
    /// the kernel has to drop them; they are good for these then.
    pub(crate) fn compare(&mut self, now: WccAttr) -> bool {
        self.waiting = Vec::new();
        self.has_unproven_change = false;
        if self.valid_for == Some(now) {
            return false;
        }
        self.valid_for = Some(now);
        self.invalidations += 1;
        true
    }

    /// What the kernel has is good for the attributes that were compared last, and what our changes made of them.
    pub(crate) fn are_valid(&self) -> bool {
        self.dropped >= self.invalidations
    }

    /// What is to be dropped, for [`Self::mark_dropped`].
    pub(crate) fn invalidations(&self) -> u64 {
        self.invalidations
    }

    /// The kernel has dropped everything that it had when `epoch` began.
    pub(crate) fn mark_dropped(&mut self, epoch: u64) {
        self.dropped = self.dropped.max(epoch);
    }

    /// What is old is to go at once. Whether this is the first such call since [`Self::unqueue`].
    pub(crate) fn queue_drop(&mut self) -> bool {
        self.urgent = self.invalidations;
        !std::mem::replace(&mut self.queued, true)
    }

    /// The kernel is now told to drop what it has; gives what to say to [`Self::mark_dropped`] afterwards.
    pub(crate) fn take_queued_drop(&mut self) -> u64 {
        self.queued = false;
        self.invalidations
    }

    /// What is to go at once is gone.
    pub(crate) fn urgent_drops_done(&self) -> bool {
        self.dropped >= self.urgent
    }
}

#[cfg(test)]
mod tests {
    use millrace_nfs::v3::{Fattr, FileType, NfsTime, SpecData};

    use super::*;

    /// Attributes at the n-th change.
    fn at(n: u32) -> Fattr {
        let time = NfsTime { seconds: 1, nanoseconds: n };
        Fattr {
            file_type: FileType::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 10,
            used: 10,
            rdev: SpecData::default(),
            fsid: 1,
            fileid: 7,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    fn attr(n: u32) -> WccAttr {
        WccAttr::from(&at(n))
    }

    fn change(from: u32, to: u32) -> WccData {
        WccData { before: Some(attr(from)), after: Some(at(to)) }
    }

    /// Pages that are good for the first attributes.
    fn good() -> PageState {
        let mut pages = PageState::default();
        assert!(pages.compare(attr(0)) && !pages.are_valid());
        pages.mark_dropped(pages.invalidations());
        assert!(pages.are_valid());
        pages
    }

    /// All orders of `n` things.
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let insert = |order: &Vec<usize>, at: usize| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        };
        orders(n - 1).iter().flat_map(|o| (0..n).map(move |at| insert(o, at)).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn changes_of_ours_keep_the_pages_in_whatever_order_they_are_told() {
        let ours = [change(0, 1), change(1, 2), change(2, 2), change(2, 3), change(3, 4)];
        for order in orders(ours.len()) {
            let mut pages = good();
            order.iter().for_each(|i| pages.note_change(&ours[*i]));
            assert!(!pages.compare(attr(4)) && pages.are_valid(), "{order:?}");
        }
    }

    #[test]
    fn a_change_of_another_spoils_them_wherever_it_came() {
        // Of the changes from 0 to 5 one is not ours: nobody tells us.
        for others in 0..5 {
            let ours: Vec<_> = (0..5).filter(|n| *n != others).map(|n| change(n, n + 1)).collect();
            for order in orders(ours.len()) {
                let mut pages = good();
                order.iter().for_each(|i| pages.note_change(&ours[*i]));
                assert!(pages.compare(attr(5)) && !pages.are_valid(), "{others}: {order:?}");
            }
        }
    }

    #[test]
    fn a_change_without_what_was_before_proves_nothing() {
        for wcc in [WccData { before: None, ..change(0, 1) }, WccData { after: None, ..change(0, 1) }] {
            let mut pages = good();
            pages.note_change(&wcc);
            pages.note_change(&change(1, 2));
            assert!(pages.compare(attr(2)) && !pages.are_valid());
        }
    }

    #[test]
    fn a_gap_between_our_changes_is_found_when_the_last_has_ended() {
        let ours = [change(0, 1), change(1, 2), change(2, 3)];
        for order in orders(ours.len()) {
            let mut pages = good();
            order.iter().for_each(|i| pages.note_change(&ours[*i]));
            assert!(!pages.has_gap(attr(3)), "{order:?}");
            // Whatever it is compared with: the reply that was read last need not be that of the last change.
            assert!(!pages.has_gap(attr(1)), "{order:?}");
        }
        for wcc in [change(1, 2), WccData { before: None, ..change(0, 1) }] {
            let mut pages = good();
            pages.note_change(&wcc);
            let now = wcc.after.map(|a| WccAttr::from(&a)).unwrap();
            assert!(pages.has_gap(now) && !pages.are_valid());
            pages.mark_dropped(pages.invalidations());
            assert!(!pages.has_gap(now) && !pages.compare(now) && pages.are_valid(), "it is found once");
        }
    }

    #[test]
    fn what_waits_is_bounded_and_gone_after_a_comparison() {
        let mut pages = good();
        for n in (1..1000).rev() {
            pages.note_change(&change(n, n + 1));
        }
        assert_eq!(pages.waiting.len(), MAX_PENDING);
        assert!(pages.compare(attr(744)));
        pages.mark_dropped(pages.invalidations());
        // It is the end of a change that was told before the comparison, and has no say after it.
        assert!(pages.waiting.is_empty() && pages.compare(attr(745)));
    }

    #[test]
    fn only_pages_from_before_the_last_change_of_another_have_to_go() {
        let mut pages = good();
        assert!(pages.compare(attr(1)));
        let first = pages.invalidations();
        assert!(pages.compare(attr(2)));
        pages.mark_dropped(first);
        assert!(!pages.are_valid(), "they may be from between the two changes");
        pages.mark_dropped(pages.invalidations());
        pages.mark_dropped(first);
        assert!(pages.are_valid());
        assert!(
            pages.queue_drop() && !pages.queue_drop() && pages.urgent_drops_done(),
            "what is gone already"
        );
        pages.invalidate();
        assert!(!pages.queue_drop() && !pages.urgent_drops_done());
        let invalidations = pages.take_queued_drop();
        pages.mark_dropped(invalidations);
        assert!(pages.urgent_drops_done() && pages.are_valid());
        pages.invalidate();
        assert!(!pages.are_valid() && pages.compare(attr(2)));
    }
}
