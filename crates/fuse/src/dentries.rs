//! Dentries: the names that the kernel has cached, and the inodes they refer to.
//!
//! The kernel resolves a cached name without a request until its timeout. The mount records the names to
//! expire those in a directory that another client has changed, to revalidate them when a file is opened, and
//! to show paths in messages.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use millrace_runtime::Instant;

/// Inode number of the root (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = 1;
/// Maximum path length in components; bounds the walk if a server reports a directory inside itself.
const MAX_PATH_COMPONENTS: usize = 4096;
/// Maximum number of negative entries (names that do not exist) that the kernel may cache.
const MAX_NEGATIVE: usize = 16 << 10;
/// Maximum number of expired negative entries that are removed when one is inserted. More than one, so that
/// their number decreases.
const NEGATIVES_REMOVED: usize = 2;
/// Maximum number of names that one call of [`Dentries::begin_expiry`] returns: it bounds the time for which
/// the caller holds the lock.
const EXPIRY_BATCH: usize = 256;

/// A name in the directory with this inode number.
type Name<'n> = (u64, &'n [u8]);
/// An owned [`Name`].
type OwnedName = (u64, Arc<[u8]>);

/// Identifies one reply that allowed the kernel to cache a name; later replies have greater stamps.
pub(crate) type CacheStamp = u64;

/// A name that the kernel may have cached: the directory's inode number, the name, and the reply.
pub(crate) type CachedName = (u64, Arc<[u8]>, CacheStamp);

/// The reply that the kernel got for a name.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// The name refers to this inode.
    Inode { number: u64, cached: Option<CacheStamp> },
    /// The name does not exist; cached until then.
    Negative { until: Instant, stamp: CacheStamp },
}

impl Target {
    fn stamp(self) -> Option<CacheStamp> {
        match self {
            Self::Inode { cached, .. } => cached,
            Self::Negative { stamp, .. } => Some(stamp),
        }
    }
}

/// The recorded names in a directory.
#[derive(Default)]
pub(crate) struct Directory {
    names: HashMap<Arc<[u8]>, Target>,
    /// The names that the kernel may have cached, except those whose expiry is in progress.
    cached: BTreeMap<CacheStamp, Arc<[u8]>>,
}

impl Directory {
    /// Records a reply with a new stamp.
    fn insert(&mut self, text: Arc<[u8]>, target: Target) {
        if let Some(stamp) = target.stamp() {
            self.cached.insert(stamp, Arc::clone(&text));
        }
        if let Some(before) = self.names.insert(text, target).and_then(Target::stamp) {
            self.cached.remove(&before);
        }
    }

    fn remove(&mut self, text: &[u8]) -> Option<Target> {
        let target = self.names.remove(text)?;
        target.stamp().and_then(|stamp| self.cached.remove(&stamp));
        Some(target)
    }
}

/// The names of one inode; never empty.
struct Names {
    /// The most recently seen name.
    last: OwnedName,
    others: Vec<OwnedName>,
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &OwnedName> {
        std::iter::once(&self.last).chain(&self.others)
    }

    /// Makes a name, which may be a new one, the most recently seen one.
    fn mark_last_seen(&mut self, name: OwnedName) {
        if self.last == name {
            return;
        }
        match self.others.iter_mut().find(|other| **other == name) {
            Some(seen) => std::mem::swap(seen, &mut self.last),
            None => self.others.push(std::mem::replace(&mut self.last, name)),
        }
    }
}

/// Names by directory and by inode. A file renamed by another client keeps its old name here until that name
/// is looked up again.
#[derive(Default)]
pub(crate) struct Dentries {
    directories: HashMap<u64, Directory>,
    by_inode: HashMap<u64, Names>,
    /// Negative entries by the end of their time. Those of a forgotten directory stay until then.
    negative: BTreeMap<(Instant, CacheStamp), OwnedName>,
    last_stamp: CacheStamp,
    /// Number of names visited by the methods that handle several names.
    #[cfg(test)]
    visited: usize,
}

impl Dentries {
    /// Records a reply to the kernel that `name` refers to the inode `number`.
    pub(crate) fn insert(&mut self, number: u64, name: Name<'_>) {
        let known = self.directories.get(&name.0).and_then(|dir| dir.names.get_key_value(name.1));
        let text = match known {
            Some((text, Target::Inode { number: n, .. })) if *n == number => Arc::clone(text),
            _ => {
                self.remove(name);
                name.1.into()
            }
        };
        self.last_stamp += 1;
        let target = Target::Inode { number, cached: Some(self.last_stamp) };
        self.directories.entry(name.0).or_default().insert(Arc::clone(&text), target);
        match self.by_inode.entry(number) {
            Entry::Occupied(names) => names.into_mut().mark_last_seen((name.0, text)),
            Entry::Vacant(vacant) => drop(vacant.insert(Names { last: (name.0, text), others: Vec::new() })),
        }
    }

    /// Records a negative entry that the kernel may cache for `ttl` from `now`. `false`: too many are cached,
    /// so the kernel must not cache this one.
    pub(crate) fn insert_negative(&mut self, name: Name<'_>, now: Instant, ttl: Duration) -> bool {
        self.remove(name);
        self.remove_expired_negatives(now);
        if self.negative.len() >= MAX_NEGATIVE {
            return false;
        }
        self.last_stamp += 1;
        let (text, until, stamp) = (Arc::<[u8]>::from(name.1), now + ttl, self.last_stamp);
        self.negative.insert((until, stamp), (name.0, Arc::clone(&text)));
        self.directories.entry(name.0).or_default().insert(text, Target::Negative { until, stamp });
        true
    }

    /// Removes up to [`NEGATIVES_REMOVED`] expired negative entries.
    fn remove_expired_negatives(&mut self, now: Instant) {
        for _ in 0..NEGATIVES_REMOVED {
            let Some(first) = self.negative.first_entry().filter(|first| first.key().0 <= now) else {
                return;
            };
            let ((_, stamp), (dir, text)) = first.remove_entry();
            #[cfg(test)]
            (self.visited += 1);
            // The directory may have been forgotten, and its number may be in use again.
            let target = self.directories.get(&dir).and_then(|dir| dir.names.get(&text));
            if target.and_then(|target| target.stamp()) == Some(stamp) {
                self.remove((dir, &text));
            }
        }
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: Name<'_>) {
        let Entry::Occupied(mut dir) = self.directories.entry(name.0) else { return };
        let Some(target) = dir.get_mut().remove(name.1) else { return };
        if dir.get().names.is_empty() {
            dir.remove();
        }
        match target {
            Target::Negative { until, stamp } => drop(self.negative.remove(&(until, stamp))),
            Target::Inode { number, .. } => self.detach(number, name),
        }
    }

    /// Removes a name from the names of an inode.
    fn detach(&mut self, number: u64, name: Name<'_>) {
        let Entry::Occupied(mut of) = self.by_inode.entry(number) else { return };
        let names = of.get_mut();
        if (names.last.0, &*names.last.1) != name {
            names.others.retain(|(dir, text)| (*dir, &**text) != name);
        } else if let Some(other) = names.others.pop() {
            names.last = other;
        } else {
            of.remove();
        }
    }

    /// Records a rename.
    pub(crate) fn rename(&mut self, from: Name<'_>, to: Name<'_>) {
        let target = self.directories.get(&from.0).and_then(|dir| dir.names.get(from.1)).copied();
        self.remove(from);
        match target {
            Some(Target::Inode { number, .. }) => self.insert(number, to),
            _ => self.remove(to),
        }
    }

    /// The inode number that a name refers to.
    pub(crate) fn number(&self, name: Name<'_>) -> Option<u64> {
        match self.directories.get(&name.0)?.names.get(name.1)? {
            Target::Inode { number, .. } => Some(*number),
            Target::Negative { .. } => None,
        }
    }

    /// Returns the stamp of a name that refers to the inode `inode`, or `None` if it refers to another one. The
    /// stamp is `None` if the kernel has expired the name.
    fn reply(&self, (dir, text): &OwnedName, inode: u64) -> Option<Option<CacheStamp>> {
        match self.directories.get(dir)?.names.get(text)? {
            Target::Inode { number, cached } if *number == inode => Some(*cached),
            _ => None,
        }
    }

    /// Removes an inode that the kernel has forgotten. Returns the names in it if it is a directory; their
    /// number is not bounded, so the caller drops them without holding a lock.
    pub(crate) fn forget(&mut self, number: u64) -> Option<Directory> {
        if let Some(names) = self.by_inode.remove(&number) {
            for name in names.all() {
                if self.reply(name, number).is_some() {
                    self.remove((name.0, &name.1));
                }
            }
        }
        // The kernel holds a directory as long as any dentry in it, except negative ones.
        let names = self.directories.remove(&number);
        shrink(&mut self.by_inode);
        shrink(&mut self.directories);
        names
    }

    /// Names by which the kernel can reach an inode without a request.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<CachedName> {
        let cached =
            |name: &OwnedName| Some((name.0, Arc::clone(&name.1), self.reply(name, number).flatten()?));
        self.by_inode.get(&number).map(|names| names.all().filter_map(cached).collect()).unwrap_or_default()
    }

    /// The stamp of the last reply.
    pub(crate) fn last_stamp(&self) -> CacheStamp {
        self.last_stamp
    }

    /// Returns cached names in a directory that must be expired: those up to the stamp `last`, each once, and
    /// at most [`EXPIRY_BATCH`]. Call it until it returns none. The names count as cached until
    /// [`Self::finish_expiry`].
    pub(crate) fn begin_expiry(&mut self, dir: u64, last: CacheStamp) -> Vec<CachedName> {
        let mut expired = Vec::new();
        while expired.len() < EXPIRY_BATCH
            && let Some(names) = self.directories.get_mut(&dir)
            && let Some(first) = names.cached.first_entry().filter(|first| *first.key() <= last)
        {
            let (stamp, text) = first.remove_entry();
            let is_negative = matches!(names.names.get(&text), Some(Target::Negative { .. }));
            #[cfg(test)]
            (self.visited += 1);
            if is_negative {
                self.remove((dir, &text));
            }
            expired.push((dir, text, stamp));
        }
        expired
    }

    /// Like [`Self::begin_expiry`], for one name.
    pub(crate) fn begin_name_expiry(&mut self, name: Name<'_>) -> Option<CachedName> {
        let dir = self.directories.get_mut(&name.0)?;
        let (text, target) = dir.names.get_key_value(name.1)?;
        let stamp = target.stamp()?;
        let (text, is_negative) = (Arc::clone(text), matches!(target, Target::Negative { .. }));
        dir.cached.remove(&stamp)?;
        if is_negative {
            self.remove(name);
        }
        Some((name.0, text, stamp))
    }

    /// Records that the kernel has been notified to expire a name, unless it was looked up again since.
    pub(crate) fn finish_expiry(&mut self, (dir, text, stamp): &CachedName) {
        let Some(dir) = self.directories.get_mut(dir) else { return };
        dir.cached.remove(stamp);
        if let Some(Target::Inode { cached, .. }) = dir.names.get_mut(text) {
            cached.take_if(|now| now == stamp);
        }
    }

    /// The directory of the most recently seen name of an inode.
    pub(crate) fn parent(&self, number: u64) -> Option<u64> {
        self.by_inode.get(&number).map(|names| names.last.0)
    }

    /// The path relative to the root of the mount, if all components are known.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (dir, name) = &self.by_inode.get(&at).filter(|_| names.len() < MAX_PATH_COMPONENTS)?.last;
            names.push(OsStr::from_bytes(name));
            at = *dir;
        }
        Some(names.iter().rev().collect())
    }
}

/// Returns memory that a table no longer needs.
pub(crate) fn shrink<K: std::hash::Hash + Eq, V>(table: &mut HashMap<K, V>) {
    const SMALL: usize = 1024;
    if table.capacity() > SMALL && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
mod tests;
