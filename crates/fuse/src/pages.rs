//! Validity of the kernel's cached pages of a file and, by the same rules, of its cached names of a
//! directory.
//!
//! The pages are valid as long as the file on the server has the version under which they were read: the change
//! attribute of NFSv4, or size, mtime and ctime. Local writes change the version too, but the kernel's pages already
//! contain their data, so each local change advances the version from that before to that after it (`wcc_data`, RFC 1813
//! section 2.6). Replies arrive in any order: a change is queued here until the preceding one is known.
//!
//! Pages are kept only if they are proven valid. A remote change leaves a gap in the chain of local changes;
//! from there on the version does not advance, and differs from that in the next reply of the server. The
//! same holds for a local change whose reply lacks the version before it. (NFSv3 cannot show a change
//! that leaves size and times as they are, within the resolution of the server's clock.)

use millrace_client::ops::{Attributes, Wcc, WccAttr};

/// Maximum number of queued changes, more than a server reorders. Further ones are dropped, so the pages are
/// no longer proven valid.
const MAX_PENDING: usize = 256;

/// The version of an object on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// The change attribute.
    Change(u64),
    /// The attributes that change with the object.
    Attributes(WccAttr),
}

impl From<&Attributes> for Version {
    fn from(attributes: &Attributes) -> Self {
        attributes.change.map_or_else(|| Self::Attributes(attributes.into()), Self::Change)
    }
}

impl Version {
    /// The versions before and after a change, if the reply has both.
    fn around(wcc: &Wcc) -> Option<(Self, Self)> {
        match wcc.change {
            Some(change) => Some((Self::Change(change.before), Self::Change(change.after))),
            None => Some((Self::Attributes(wcc.before?), Self::after(wcc)?)),
        }
    }

    /// The version after a change, if the reply has it.
    pub(crate) fn after(wcc: &Wcc) -> Option<Self> {
        let change = wcc.change.map(|change| Self::Change(change.after));
        change.or_else(|| wcc.after.as_ref().map(Self::from))
    }
}

/// Validity of the kernel's pages of one file.
#[derive(Debug, Default)]
pub(crate) struct PageState {
    /// The version for which the pages are valid, except pages that older invalidations concern.
    valid_for: Option<Version>,
    /// Number of invalidations. The first comparison counts as one.
    invalidations: u64,
    /// Number of invalidations that the kernel has completed.
    dropped: u64,
    /// Local changes (versions before and after) whose predecessor is not known yet.
    waiting: Vec<(Version, Version)>,
    /// The reply to a local change lacked the version before or after it.
    has_unproven_change: bool,
    /// Number of invalidations that the kernel must complete at once.
    urgent: u64,
    /// A notification to the kernel is queued.
    queued: bool,
}

impl PageState {
    /// Records a local change.
    pub(crate) fn note_change(&mut self, wcc: &Wcc) {
        let Some((from, to)) = Version::around(wcc) else {
            self.has_unproven_change = true;
            return;
        };
        // A change that leaves the version unchanged has no place in the chain.
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

    /// Called when the last local change has completed, with the version after it, if it is known. Returns whether a
    /// remote change may have happened between local ones. In that case the pages become valid for `now` once
    /// the kernel has completed the invalidation.
    pub(crate) fn has_gap(&mut self, now: Option<Version>) -> bool {
        if !self.has_unproven_change && self.waiting.is_empty() {
            return false;
        }
        match now {
            Some(now) => self.compare(now),
            None => {
                self.invalidate();
                true
            }
        }
    }

    /// Marks the pages as stale: the server does not have their content.
    pub(crate) fn invalidate(&mut self) {
        self.valid_for = None;
        self.waiting = Vec::new();
        self.has_unproven_change = false;
        self.invalidations += 1;
    }

    /// Compares with the server's version while no local change is in progress. Returns whether the pages
    /// are stale; they become valid for `now` once the kernel has completed the invalidation.
    pub(crate) fn compare(&mut self, now: Version) -> bool {
        self.waiting = Vec::new();
        self.has_unproven_change = false;
        if self.valid_for == Some(now) {
            return false;
        }
        self.valid_for = Some(now);
        self.invalidations += 1;
        true
    }

    /// Whether the pages are valid for the version compared last, advanced by local changes.
    pub(crate) fn are_valid(&self) -> bool {
        self.dropped >= self.invalidations
    }

    /// Number of invalidations so far, for [`Self::mark_dropped`].
    pub(crate) fn invalidations(&self) -> u64 {
        self.invalidations
    }

    /// Records that the kernel has dropped the pages concerned by the first `invalidations`.
    pub(crate) fn mark_dropped(&mut self, invalidations: u64) {
        self.dropped = self.dropped.max(invalidations);
    }

    /// Requests that stale pages are dropped at once. Returns whether a notification must be queued.
    pub(crate) fn queue_drop(&mut self) -> bool {
        self.urgent = self.invalidations;
        !std::mem::replace(&mut self.queued, true)
    }

    /// Called when the notification is sent; returns the value to pass to [`Self::mark_dropped`] afterwards.
    pub(crate) fn take_queued_drop(&mut self) -> u64 {
        self.queued = false;
        self.invalidations
    }

    /// Whether all urgent invalidations are complete.
    pub(crate) fn urgent_drops_done(&self) -> bool {
        self.dropped >= self.urgent
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::ops::{ChangeNumbers, FileType, NfsTime, SpecData};

    use super::*;

    /// Attributes after the n-th change.
    fn at(n: u32) -> Attributes {
        let time = NfsTime { seconds: 1, nanoseconds: n };
        Attributes {
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
            change: None,
        }
    }

    fn attr(n: u32) -> Version {
        Version::from(&at(n))
    }

    fn change(from: u32, to: u32) -> Wcc {
        Wcc { before: Some(WccAttr::from(&at(from))), after: Some(at(to)), change: None }
    }

    /// Pages valid for the initial attributes.
    fn valid_pages() -> PageState {
        let mut pages = PageState::default();
        assert!(pages.compare(attr(0)) && !pages.are_valid());
        pages.mark_dropped(pages.invalidations());
        assert!(pages.are_valid());
        pages
    }

    /// All permutations of `n` elements.
    fn permutations(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let insert = |order: &Vec<usize>, at: usize| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        };
        permutations(n - 1)
            .iter()
            .flat_map(|o| (0..n).map(move |at| insert(o, at)).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn local_changes_in_any_order_keep_pages_valid() {
        let ours = [change(0, 1), change(1, 2), change(2, 2), change(2, 3), change(3, 4)];
        for order in permutations(ours.len()) {
            let mut pages = valid_pages();
            order.iter().for_each(|i| pages.note_change(&ours[*i]));
            assert!(!pages.compare(attr(4)) && pages.are_valid(), "{order:?}");
        }
    }

    #[test]
    fn remote_change_invalidates_pages() {
        // One of the changes from 0 to 5 is remote and thus unknown.
        for others in 0..5 {
            let ours: Vec<_> = (0..5).filter(|n| *n != others).map(|n| change(n, n + 1)).collect();
            for order in permutations(ours.len()) {
                let mut pages = valid_pages();
                order.iter().for_each(|i| pages.note_change(&ours[*i]));
                assert!(pages.compare(attr(5)) && !pages.are_valid(), "{others}: {order:?}");
            }
        }
    }

    #[test]
    fn change_without_wcc_data_invalidates_pages() {
        for wcc in [Wcc { before: None, ..change(0, 1) }, Wcc { after: None, ..change(0, 1) }] {
            let mut pages = valid_pages();
            pages.note_change(&wcc);
            pages.note_change(&change(1, 2));
            assert!(pages.compare(attr(2)) && !pages.are_valid());
        }
    }

    #[test]
    fn gap_between_local_changes_is_detected_after_the_last() {
        let ours = [change(0, 1), change(1, 2), change(2, 3)];
        for order in permutations(ours.len()) {
            let mut pages = valid_pages();
            order.iter().for_each(|i| pages.note_change(&ours[*i]));
            assert!(!pages.has_gap(Some(attr(3))), "{order:?}");
            // The argument is irrelevant: the reply processed last need not be that of the last change.
            assert!(!pages.has_gap(Some(attr(1))) && !pages.has_gap(None), "{order:?}");
        }
        for wcc in [change(1, 2), Wcc { before: None, ..change(0, 1) }] {
            let mut pages = valid_pages();
            pages.note_change(&wcc);
            let now = Version::after(&wcc);
            assert!(pages.has_gap(now) && !pages.are_valid());
            pages.mark_dropped(pages.invalidations());
            assert!(
                !pages.has_gap(now) && !pages.compare(now.unwrap()) && pages.are_valid(),
                "detected once"
            );
        }
    }

    /// A counted change of NFSv4.
    fn counted(before: u64, after: u64) -> Wcc {
        Wcc { change: Some(ChangeNumbers { before, after }), ..Wcc::default() }
    }

    #[test]
    fn change_attributes_show_the_changes_of_others() {
        let pages_at = |n| {
            let mut pages = PageState::default();
            pages.compare(Version::Change(n));
            pages.mark_dropped(pages.invalidations());
            pages
        };
        for order in permutations(3) {
            let mut pages = pages_at(5);
            order.iter().for_each(|i| pages.note_change(&counted(5 + *i as u64, 6 + *i as u64)));
            assert!(!pages.has_gap(Some(Version::Change(8))), "{order:?}");
            let now = Attributes { change: Some(8), ..at(1) };
            assert!(!pages.compare(Version::from(&now)) && pages.are_valid(), "{order:?}");
            // The same attributes after a change by another client.
            let now = Attributes { change: Some(9), ..at(1) };
            assert!(pages.compare(Version::from(&now)) && !pages.are_valid(), "{order:?}");
        }
        // Another client has changed 6 to 7.
        let mut pages = pages_at(5);
        [counted(5, 6), counted(7, 8)].iter().for_each(|wcc| pages.note_change(wcc));
        assert!(pages.has_gap(Some(Version::Change(8))) && !pages.are_valid());
        // COMMIT after that change is none of this client.
        let mut pages = pages_at(5);
        [counted(5, 6), counted(7, 7)].iter().for_each(|wcc| pages.note_change(wcc));
        assert!(pages.compare(Version::Change(7)) && !pages.are_valid());
        // A change of which nothing is known.
        let mut pages = pages_at(5);
        pages.note_change(&Wcc::default());
        assert!(pages.has_gap(None) && !pages.are_valid());
    }

    #[test]
    fn pending_changes_are_bounded_and_cleared_by_comparison() {
        let mut pages = valid_pages();
        for n in (1..1000).rev() {
            pages.note_change(&change(n, n + 1));
        }
        assert_eq!(pages.waiting.len(), MAX_PENDING);
        assert!(pages.compare(attr(744)));
        pages.mark_dropped(pages.invalidations());
        // A change recorded before the comparison has no effect after it.
        assert!(pages.waiting.is_empty() && pages.compare(attr(745)));
    }

    #[test]
    fn pages_are_valid_after_the_last_invalidation_completes() {
        let mut pages = valid_pages();
        assert!(pages.compare(attr(1)));
        let first = pages.invalidations();
        assert!(pages.compare(attr(2)));
        pages.mark_dropped(first);
        assert!(!pages.are_valid(), "pages may be from between the two changes");
        pages.mark_dropped(pages.invalidations());
        pages.mark_dropped(first);
        assert!(pages.are_valid());
        assert!(pages.queue_drop() && !pages.queue_drop() && pages.urgent_drops_done(), "already dropped");
        pages.invalidate();
        assert!(!pages.queue_drop() && !pages.urgent_drops_done());
        let invalidations = pages.take_queued_drop();
        pages.mark_dropped(invalidations);
        assert!(pages.urgent_drops_done() && pages.are_valid());
        pages.invalidate();
        assert!(!pages.are_valid() && pages.compare(attr(2)));
    }
}
