//! Directory entries.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::inode::InodeId;

/// Cookie of `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// Cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;

/// Maps names to inodes; lists them in order of creation.
///
/// A cookie belongs to one entry and is never reused, so a scan that continues after a cookie lists each
/// entry that exists throughout exactly once. A rename within the directory keeps the entry's cookie, so that
/// a scan terminates despite concurrent renames; a rename over an existing name keeps the cookie of that
/// name, which exists throughout. The hash is randomly keyed, so that clients cannot choose colliding names.
pub(super) struct Directory {
    by_name: HashMap<Arc<[u8]>, EntryRef>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, InodeId)>,
    last_cookie: u64,
    parent: InodeId,
}

#[derive(Clone, Copy)]
struct EntryRef {
    cookie: u64,
    id: InodeId,
}

impl Directory {
    /// Creates an empty directory in `parent` (for the root: itself).
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

    /// A size that reflects the number of entries.
    pub(super) fn apparent_size(&self) -> u64 {
        (self.by_name.len() as u64 + 2) * 32
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<InodeId> {
        self.by_name.get(name).map(|p| p.id)
    }

    /// Adds `name`, or changes its inode and keeps the cookie.
    pub(super) fn set(&mut self, name: &[u8], id: InodeId) {
        if let Some(entry_ref) = self.by_name.get_mut(name) {
            entry_ref.id = id;
            if let Some((_, entry)) = self.by_cookie.get_mut(&entry_ref.cookie) {
                *entry = id;
            }
            return;
        }
        self.last_cookie += 1; // 64 bits cannot overflow in practice.
        let name: Arc<[u8]> = name.into();
        self.by_cookie.insert(self.last_cookie, (Arc::clone(&name), id));
        self.by_name.insert(name, EntryRef { cookie: self.last_cookie, id });
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(entry_ref) = self.by_name.remove(name) {
            self.by_cookie.remove(&entry_ref.cookie);
            self.shrink();
        }
    }

    /// Renames an entry, replacing an existing entry `to`.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(entry_ref) = self.by_name.remove(from) else { return };
        if self.by_name.contains_key(to) {
            self.by_cookie.remove(&entry_ref.cookie);
            self.set(to, entry_ref.id);
            self.shrink();
        } else {
            let name: Arc<[u8]> = to.into();
            self.by_cookie.insert(entry_ref.cookie, (Arc::clone(&name), entry_ref.id));
            self.by_name.insert(name, entry_ref);
        }
    }

    /// Returns excess memory after entries were removed.
    fn shrink(&mut self) {
        let len = self.by_name.len();
        if self.by_name.capacity() > 3 * len {
            self.by_name.shrink_to(len + len / 4);
        }
    }

    /// Whether this directory has issued `cookie` (0: the start).
    pub(super) fn is_issued(&self, cookie: u64) -> bool {
        cookie <= self.last_cookie
    }

    /// Entries after `cookie`, in order.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], InodeId)> {
        let from = Bound::Excluded(cookie.max(COOKIE_PARENT));
        self.by_cookie.range((from, Bound::Unbounded)).map(|(c, (name, id))| (*c, &**name, *id))
    }
}
