//! The entries of one directory.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::inode::InodeId;

/// The cookie of `.`, after which the scan goes on.
pub(super) const COOKIE_SELF: u64 = 1;
/// The cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;

/// Names to inodes, found by hash and listed in the order in which they were entered.
///
/// A cookie belongs to an entry from its creation to its removal and is never used again, so a scan that continues after
/// a cookie meets every entry that was there all the time exactly once, whatever else comes and goes. A rename within
/// the directory keeps the cookie of the entry, so that a scan ends although entries are renamed while it goes on; over an
/// existing name it keeps the cookie of that name, which is there all the time. Names come from peers; the hash is keyed
/// at random, so that peers cannot choose names that collide.
pub(super) struct Directory {
    by_name: HashMap<Arc<[u8]>, Place>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, InodeId)>,
    last_cookie: u64,
    parent: InodeId,
}

#[derive(Clone, Copy)]
struct Place {
    cookie: u64,
    id: InodeId,
}

impl Directory {
    /// An empty directory inside `parent` (the root: itself).
    pub(super) fn new(parent: InodeId) -> Self {
        Self { by_name: HashMap::new(), by_cookie: BTreeMap::new(), last_cookie: COOKIE_PARENT, parent }
    }

    pub(super) fn parent(&self) -> InodeId {
        self.parent
    }

    pub(super) fn set_parent(&mut self, parent: InodeId) {
        self.parent = parent;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// A size that changes with the number of entries, as users expect of a directory.
    pub(super) fn apparent_size(&self) -> u64 {
        (self.by_name.len() as u64 + 2) * 32
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<InodeId> {
        self.by_name.get(name).map(|p| p.id)
    }

    /// Enters `name`, or points it to another inode, keeping its cookie.
    pub(super) fn set(&mut self, name: &[u8], id: InodeId) {
        if let Some(place) = self.by_name.get_mut(name) {
            place.id = id;
            if let Some((_, entry)) = self.by_cookie.get_mut(&place.cookie) {
                *entry = id;
            }
            return;
        }
        self.last_cookie += 1; // 64 bits: not exhausted at any rate of change.
        let name: Arc<[u8]> = name.into();
        self.by_cookie.insert(self.last_cookie, (Arc::clone(&name), id));
        self.by_name.insert(name, Place { cookie: self.last_cookie, id });
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(place) = self.by_name.remove(name) {
            self.by_cookie.remove(&place.cookie);
            self.shrink();
        }
    }

    /// Gives the entry `from` the name `to`, in the place of an entry of that name if there is one.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(place) = self.by_name.remove(from) else { return };
        if self.by_name.contains_key(to) {
            self.by_cookie.remove(&place.cookie);
            self.set(to, place.id);
            self.shrink();
        } else {
            let name: Arc<[u8]> = to.into();
            self.by_cookie.insert(place.cookie, (Arc::clone(&name), place.id));
            self.by_name.insert(name, place);
        }
    }

    /// Returns memory of entries that were removed, so that what is left is in proportion to the entries there are.
    fn shrink(&mut self) {
        let len = self.by_name.len();
        if self.by_name.capacity() > 3 * len {
            self.by_name.shrink_to(len + len / 4);
        }
    }

    /// Whether `cookie` was given out by this directory (0: the start).
    pub(super) fn issued(&self, cookie: u64) -> bool {
        cookie <= self.last_cookie
    }

    /// The entries after `cookie`, in order.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], InodeId)> {
        let from = Bound::Excluded(cookie.max(COOKIE_PARENT));
        self.by_cookie.range((from, Bound::Unbounded)).map(|(c, (name, id))| (*c, &**name, *id))
    }
}
