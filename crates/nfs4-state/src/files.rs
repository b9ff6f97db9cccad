//! The files that have state, found by opaque keys.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_nfs::v4::ClientId;
use parking_lot::Mutex;
use siphasher::sip::SipHasher13;

use crate::{
    client::Client,
    delegation::Delegations,
    locks::FileLocks,
    share::{self, Share},
    table::Name,
    visits::count_visits,
};

/// Number of maps, so that threads seldom wait for each other.
const SHARDS: usize = 64;

/// The state of one file.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// The opens, by what they permit and deny, client, and number of the stateid.
    opens: BTreeMap<(Share, ClientId, u32), Arc<Client>>,
    /// Number of opens with each of the bits of [`Share::access`] and [`Share::deny`].
    access: [usize; 2],
    deny: [usize; 2],
    pub(crate) locks: FileLocks,
    /// Keeps the file while it is open.
    hold: Option<Hold>,
    pub(crate) delegations: Delegations,
}

/// Keeps a file of a file system; dropped with the last open.
type Hold = Box<dyn Any + Send + Sync>;

fn count(counts: &mut [usize; 2], bits: u8, change: impl Fn(&mut usize)) {
    counts.iter_mut().enumerate().filter(|(n, _)| bits & 1 << n != 0).for_each(|(_, count)| change(count));
}

fn any(counts: [usize; 2], bits: u8) -> bool {
    counts.iter().enumerate().any(|(n, count)| bits & 1 << n != 0 && *count != 0)
}

impl File {
    fn is_empty(&self) -> bool {
        self.opens.is_empty() && self.locks.is_empty() && self.delegations.is_empty()
    }

    /// Whether an open denies access to others.
    fn denies(&self) -> bool {
        self.deny != [0; 2]
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.opens.is_empty()
    }

    /// Keeps `hold` until the last open ends. Returns it if it is not needed.
    pub(crate) fn hold(&mut self, hold: Hold) -> Option<Hold> {
        if self.hold.is_some() || !self.is_open() {
            return Some(hold);
        }
        self.hold.replace(hold)
    }

    /// The client of an open with another number that excludes `share`.
    pub(crate) fn conflict(&self, share: Share, own: Option<(ClientId, u32)>) -> Option<&Arc<Client>> {
        if !any(self.deny, share.access) && !any(self.access, share.deny) {
            return None;
        }
        let first = |other| self.opens_with(other).find(|(id, _)| Some(*id) != own);
        let conflicting = Share::all().filter(|other| other.conflicts(share)).filter_map(first);
        conflicting.min_by_key(|(id, _)| *id).map(|(_, client)| client)
    }

    /// The opens with a share reservation, in the order of clients and numbers.
    fn opens_with(&self, share: Share) -> impl DoubleEndedIterator<Item = ((ClientId, u32), &Arc<Client>)> {
        let (first, last) = (ClientId { number: 0 }, ClientId { number: u64::MAX });
        let range = self.opens.range((share, first, 0)..=(share, last, u32::MAX));
        range.inspect(|_| count_visits(1)).map(|((_, id, number), client)| ((*id, *number), client))
    }

    /// Whether a client other than `own` has the file open, for writing only or at all.
    pub(crate) fn is_open_by_others(&self, own: ClientId, writing: bool) -> bool {
        // The first or the last one is of another client if any is.
        let is_of_others = |share| {
            let mut opens = self.opens_with(share);
            [opens.next(), opens.next_back()].into_iter().flatten().any(|((id, _), _)| id != own)
        };
        let matches = |share: &Share| !writing || share.access & share::WRITE != 0;
        Share::all().filter(matches).any(is_of_others)
    }

    /// Sets what the open with `number` permits and denies; `None` ends it.
    pub(crate) fn set_open(&mut self, client: &Arc<Client>, number: u32, share: Option<Share>) {
        let key = |share| (share, client.id(), number);
        let old = Share::all().find(|share| self.opens.remove(&key(*share)).is_some());
        self.opens.extend(share.map(|share| (key(share), Arc::clone(client))));
        let (old, new) = (old.unwrap_or_default(), share.unwrap_or_default());
        count(&mut self.access, new.access, |n| *n += 1);
        count(&mut self.deny, new.deny, |n| *n += 1);
        count(&mut self.access, old.access, |n| *n -= 1);
        count(&mut self.deny, old.deny, |n| *n -= 1);
    }
}

/// All files that have state.
#[derive(Debug)]
pub(crate) struct Files {
    hash: SipHasher13,
    /// Number of files with an open that denies access to others.
    denying: AtomicUsize,
    shards: Box<[Mutex<HashMap<Name, File>>]>,
}

impl Files {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { hash: SipHasher13::new_with_key(secret), denying: AtomicUsize::new(0), shards }
    }

    fn shard(&self, key: &[u8]) -> &Mutex<HashMap<Name, File>> {
        &self.shards[self.hash.hash(key) as usize % SHARDS]
    }

    /// Changes the state of a file. `change` gets the key, too, which is shared by all that refer to the file.
    pub(crate) fn update<T>(&self, key: &[u8], change: impl FnOnce(&mut File, &Name) -> T) -> T {
        let mut shard = self.shard(key).lock();
        // Taken out and put back, because a map lends no key together with its value.
        let (key, mut file) = shard.remove_entry(key).unwrap_or_else(|| (key.into(), File::default()));
        let result = self.counted(&mut file, |file| change(file, &key));
        let ended = file.hold.take_if(|_| file.opens.is_empty());
        if !file.is_empty() {
            shard.insert(key, file);
        }
        // Dropping a hold may free an unlinked file.
        drop(shard);
        drop(ended);
        result
    }

    /// Visits all files.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&mut File, &Name)) {
        for shard in &self.shards {
            shard.lock().iter_mut().for_each(|(key, file)| self.counted(file, |file| visit(file, key)));
        }
    }

    /// Changes a file whose lock the caller holds, and counts whether it denies access.
    fn counted<T>(&self, file: &mut File, change: impl FnOnce(&mut File) -> T) -> T {
        let denied = file.denies();
        let result = change(file);
        match (denied, file.denies()) {
            (false, true) => self.denying.fetch_add(1, Ordering::SeqCst),
            (true, false) => self.denying.fetch_sub(1, Ordering::SeqCst),
            _ => return result,
        };
        result
    }

    /// Whether an open of any file denies access to others.
    pub(crate) fn deny_access(&self) -> bool {
        self.denying.load(Ordering::SeqCst) != 0
    }

    /// Reads the state of a file; `None` if it has no state.
    pub(crate) fn read<T>(&self, key: &[u8], read: impl FnOnce(&File) -> T) -> Option<T> {
        self.shard(key).lock().get(key).map(read)
    }
}

/// The access of a READ or WRITE with an anonymous stateid, which no open may deny.
pub(crate) fn transfer(write: bool) -> Share {
    Share { access: if write { share::WRITE } else { share::READ }, deny: 0 }
}
