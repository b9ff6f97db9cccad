//! The table of delegations.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::channel::oneshot;
use millrace_nfs::v4::Stateid;

/// Maximum number of delegations of a client.
const MAX_DELEGATIONS: usize = 4096;

/// Whether a delegation may be trusted: what its holder reads without a lock.
#[derive(Debug, Default)]
pub(in crate::v4) struct Trust {
    ended: AtomicBool,
    /// The number of the last use, among those of all delegations.
    used: AtomicU64,
}

impl Trust {
    pub(in crate::v4) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Records a use.
    pub(in crate::v4) fn touch(&self, uses: &AtomicU64) {
        self.used.store(uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A delegation that the client has not returned.
struct Held {
    stateid: Stateid,
    trust: Arc<Trust>,
    /// Notifies the holder of the end.
    ended: Option<oneshot::Sender<()>>,
    /// The server does not have it any more.
    is_lost: bool,
    /// The holder has given it up.
    is_given_up: bool,
}

impl Held {
    fn end(&mut self) {
        self.trust.ended.store(true, Ordering::Release);
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(());
        }
    }
}

enum Entry {
    /// The client has requested a delegation. `ended`: the server has recalled it before its reply was received.
    Requested {
        ended: bool,
    },
    Held(Held),
}

/// The delegations by file handle.
pub(super) struct Table {
    files: HashMap<Vec<u8>, Entry>,
    /// Number of uses of all delegations.
    uses: Arc<AtomicU64>,
    limit: usize,
}

/// A delegation for its holder.
pub(in crate::v4) struct New {
    pub(in crate::v4) trust: Arc<Trust>,
    pub(in crate::v4) uses: Arc<AtomicU64>,
    pub(in crate::v4) ended: oneshot::Receiver<()>,
}

impl Default for Table {
    fn default() -> Self {
        Self { files: HashMap::new(), uses: Arc::default(), limit: MAX_DELEGATIONS }
    }
}

impl Table {
    fn held(&mut self) -> impl Iterator<Item = &mut Held> {
        self.files.values_mut().filter_map(|entry| match entry {
            Entry::Held(held) => Some(held),
            Entry::Requested { .. } => None,
        })
    }

    /// Begins a request. `false` if there is one, or a delegation that is not returned.
    pub(super) fn ask(&mut self, file: &[u8]) -> bool {
        // One delegation must end before the client requests more.
        self.keep(self.limit - 1);
        if self.files.len() >= 2 * self.limit || self.files.contains_key(file) {
            return false;
        }
        self.files.insert(file.to_vec(), Entry::Requested { ended: false });
        true
    }

    /// Ends a request without a delegation.
    pub(super) fn refused(&mut self, file: &[u8]) {
        if matches!(self.files.get(file), Some(Entry::Requested { .. })) {
            self.files.remove(file);
        }
    }

    /// Ends a request with a delegation, which may have ended already.
    pub(super) fn granted(&mut self, file: &[u8], stateid: Stateid) -> New {
        let has_ended = matches!(self.files.get(file), Some(Entry::Requested { ended: true }));
        let (sender, ended) = oneshot::channel();
        let trust = Arc::new(Trust::default());
        trust.touch(&self.uses);
        let mut held = Held {
            stateid,
            trust: Arc::clone(&trust),
            ended: Some(sender),
            is_lost: false,
            is_given_up: false,
        };
        if has_ended {
            held.end();
        }
        self.files.insert(file.to_vec(), Entry::Held(held));
        New { trust, uses: Arc::clone(&self.uses), ended }
    }

    /// Ends a delegation. `None` if there is none. The server may recall a delegation before the client has received it: the
    /// recall of a requested delegation counts when that is granted.
    pub(super) fn recall(&mut self, file: &[u8], stateid: &Stateid) -> Option<()> {
        match self.files.get_mut(file)? {
            Entry::Requested { ended } => *ended = true,
            Entry::Held(held) if held.stateid.other == stateid.other => held.end(),
            Entry::Held(_) => return None,
        }
        Some(())
    }

    /// Ends the delegations that were not used for the longest time, so that at most `keep` are trusted.
    pub(super) fn keep(&mut self, keep: usize) {
        if self.files.len() <= keep {
            return;
        }
        let mut trusted: Vec<_> = self.held().filter(|held| !held.trust.has_ended()).collect();
        let surplus = trusted.len().saturating_sub(keep);
        trusted.sort_by_key(|held| held.trust.used.load(Ordering::Relaxed));
        trusted.into_iter().take(surplus).for_each(Held::end);
    }

    /// Ends all delegations, requested ones included. `lost`: the server does not have them any more.
    pub(super) fn end_all(&mut self, lost: bool) {
        for entry in self.files.values_mut() {
            match entry {
                Entry::Requested { ended } => *ended = true,
                Entry::Held(held) => {
                    held.end();
                    held.is_lost |= lost;
                }
            }
        }
    }

    /// Ends all delegations, and removes those that the server has, which are to be returned.
    pub(super) fn take_all(&mut self) -> Vec<(Vec<u8>, Stateid)> {
        self.end_all(false);
        let taken = self.files.extract_if(|_, entry| matches!(entry, Entry::Held(held) if !held.is_lost));
        let returned = taken.filter_map(|(file, entry)| match entry {
            Entry::Held(held) => Some((file, held.stateid)),
            Entry::Requested { .. } => None,
        });
        returned.collect()
    }

    /// Ends a delegation that its holder gives up. Returns whether the server must get it back, once; a lost one is removed.
    pub(super) fn give_up(&mut self, file: &[u8], stateid: &Stateid) -> bool {
        let Some(Entry::Held(held)) = self.files.get_mut(file) else { return false };
        if held.stateid.other != stateid.other || std::mem::replace(&mut held.is_given_up, true) {
            return false;
        }
        held.end();
        let is_lost = held.is_lost;
        if is_lost {
            self.files.remove(file);
        }
        !is_lost
    }

    /// Removes a delegation that was returned.
    pub(super) fn remove(&mut self, file: &[u8], stateid: &Stateid) {
        if matches!(self.files.get(file), Some(Entry::Held(held)) if held.stateid.other == stateid.other) {
            self.files.remove(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn stateid(n: u8) -> Stateid {
        Stateid { seqid: 1, other: [n; 12] }
    }

    fn table(limit: usize) -> Table {
        Table { limit, ..Table::default() }
    }

    fn granted(table: &mut Table, file: u8) -> New {
        assert!(table.ask(&[file]));
        table.granted(&[file], stateid(file))
    }

    #[test]
    fn a_recall_ends_the_delegation_that_it_names() {
        let mut t = table(8);
        let mut new = granted(&mut t, 1);
        assert!(!new.trust.has_ended() && new.ended.try_recv() == Ok(None));
        assert_eq!(t.recall(&[1], &stateid(2)), None);
        assert_eq!(t.recall(&[2], &stateid(1)), None);
        assert!(!new.trust.has_ended());
        // The server may repeat the recall.
        for _ in 0..2 {
            assert_eq!(t.recall(&[1], &Stateid { seqid: 0, ..stateid(1) }), Some(()));
        }
        assert!(new.trust.has_ended() && new.ended.try_recv() == Ok(Some(())));
        assert!(!t.ask(&[1]), "it is not returned yet");
        assert!(!t.give_up(&[1], &stateid(2)), "another one");
        assert!(t.give_up(&[1], &stateid(1)) && t.recall(&[1], &stateid(1)).is_some());
        assert!(!t.give_up(&[1], &stateid(1)), "it is returned once");
        t.remove(&[1], &stateid(2));
        assert!(!t.ask(&[1]));
        t.remove(&[1], &stateid(1));
        assert!(t.files.is_empty() && t.recall(&[1], &stateid(1)).is_none());
    }

    #[test]
    fn a_delegation_that_is_recalled_before_the_reply_is_never_trusted() {
        let mut t = table(8);
        assert!(t.ask(&[1]) && !t.ask(&[1]));
        assert_eq!(t.recall(&[1], &stateid(1)), Some(()));
        let mut new = t.granted(&[1], stateid(1));
        assert!(new.trust.has_ended() && new.ended.try_recv() == Ok(Some(())));
        assert!(t.give_up(&[1], &stateid(1)));
        // The recall does not concern the next request.
        t.remove(&[1], &stateid(1));
        assert!(!granted(&mut t, 1).trust.has_ended());
        t.refused(&[1]);
        assert_eq!(t.files.len(), 1, "a delegation is no request");
        assert!(t.ask(&[2]));
        t.refused(&[2]);
        assert_eq!(t.files.len(), 1);
    }

    #[test]
    fn lost_delegations_are_not_returned() {
        let mut t = table(8);
        let (first, second) = (granted(&mut t, 1), granted(&mut t, 2));
        assert!(t.ask(&[3]));
        t.end_all(false);
        assert!(first.trust.has_ended() && second.trust.has_ended() && t.give_up(&[1], &stateid(1)));
        t.end_all(true);
        assert!(!t.give_up(&[2], &stateid(2)) && !t.files.contains_key(&[2][..]));
        assert!(t.granted(&[3], stateid(3)).trust.has_ended() && t.give_up(&[3], &stateid(3)));
    }

    #[test]
    fn the_least_recently_used_delegations_end_first() {
        let mut t = table(4);
        let new: Vec<_> = (0..4).map(|n| granted(&mut t, n)).collect();
        new[0].trust.touch(&new[0].uses);
        let last = granted(&mut t, 9);
        let ended = |new: &[New]| new.iter().map(|n| n.trust.has_ended()).collect::<Vec<_>>();
        assert_eq!((ended(&new), last.trust.has_ended()), (vec![false, true, false, false], false));
        t.keep(2);
        assert_eq!((ended(&new), last.trust.has_ended()), (vec![false, true, true, true], false));
        t.keep(0);
        assert!(new[0].trust.has_ended() && last.trust.has_ended());
    }

    proptest! {
        /// At most `limit` delegations are trusted, and none after one of the events that end it.
        #[test]
        fn trust_ends_with_each_event_and_is_bounded(steps in prop::collection::vec((0_u8..8, 0_u8..12), 1..200)) {
            let (mut t, mut held) = (table(4), BTreeMap::new());
            for (step, file) in steps {
                let is_held = held.contains_key(&file);
                match step {
                    0..=2 => {
                        let asked = t.ask(&[file]);
                        prop_assert!(!asked || !is_held);
                        if asked {
                            let recalled = step == 1;
                            if recalled {
                                t.recall(&[file], &stateid(file));
                            }
                            let new = t.granted(&[file], stateid(file));
                            prop_assert_eq!(new.trust.has_ended(), recalled);
                            held.insert(file, new);
                        }
                    }
                    3 => {
                        let known = t.recall(&[file], &stateid(file)).is_some();
                        prop_assert_eq!(known, is_held);
                        prop_assert!(!known || held[&file].trust.has_ended());
                    }
                    4 => {
                        t.end_all(file % 2 == 0);
                        prop_assert!(held.values().all(|new| new.trust.has_ended()));
                    }
                    5 => {
                        t.keep(file.into());
                        let trusted = held.values().filter(|new| !new.trust.has_ended()).count();
                        prop_assert!(trusted <= file.into());
                    }
                    _ => {
                        t.give_up(&[file], &stateid(file));
                        t.remove(&[file], &stateid(file));
                        held.remove(&file);
                    }
                }
                let trusted = held.values().filter(|new| !new.trust.has_ended()).count();
                prop_assert!(trusted <= 4);
                prop_assert_eq!(t.files.len(), held.len());
            }
        }
    }
}
