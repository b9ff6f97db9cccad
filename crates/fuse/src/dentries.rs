//! Dentries: the names that the kernel has cached, and the inodes they refer to.
//!
//! The kernel resolves a cached name without a request until its timeout. The mount records the names to
//! expire those in a directory that another client has changed, to revalidate them when a file is opened, and
//! to show paths in messages.

use std::{
    collections::{
        HashMap,
        hash_map::{Entry, Values},
    },
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use millrace_runtime::Instant;

use crate::inode::ROOT;

/// Maximum path length in components; bounds the walk if a server reports a directory inside itself.
const MAX_PATH_COMPONENTS: usize = 4096;
/// Maximum number of negative entries (names that do not exist) that the kernel may cache.
const MAX_NEGATIVE: usize = 16 << 10;
/// Minimum interval between searches for expired negative entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A name in the directory with this inode number.
type Name<'n> = (u64, &'n [u8]);
/// An owned [`Name`].
type OwnedName = (u64, Arc<[u8]>);

/// Identifies one reply that allowed the kernel to cache a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheStamp {
    count: u64,
    /// A notification that expires the name is being sent.
    expiring: bool,
}

/// A name that the kernel may have cached: the directory's inode number, the name, and the reply.
pub(crate) type CachedName = (u64, Arc<[u8]>, CacheStamp);

/// The reply that the kernel got for a name.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// The name refers to this inode.
    Inode { number: u64, cached: Option<CacheStamp> },
    /// The name does not exist; cached until then.
    Negative { until: Instant },
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
}

/// Names by directory and by inode. A file renamed by another client keeps its old name here until that name
/// is looked up again.
#[derive(Default)]
pub(crate) struct Dentries {
    directories: HashMap<u64, HashMap<Arc<[u8]>, Target>>,
    by_inode: HashMap<u64, Names>,
    negative_count: usize,
    last_stamp: u64,
    /// Time of the last search for expired negative entries.
    last_sweep: Option<Instant>,
}

impl Dentries {
    /// Records that the kernel was told that `name` refers to the inode `number`.
    pub(crate) fn insert(&mut self, number: u64, name: Name<'_>) {
        self.last_stamp += 1;
        let target =
            Target::Inode { number, cached: Some(CacheStamp { count: self.last_stamp, expiring: false }) };
        if let Some(known) = self.directories.get_mut(&name.0).and_then(|names| names.get_mut(name.1))
            && matches!(known, Target::Inode { number: n, .. } if *n == number)
        {
            *known = target;
            self.mark_last_seen(number, name);
            return;
        }
        self.remove(name);
        let text: Arc<[u8]> = name.1.into();
        self.directories.entry(name.0).or_default().insert(Arc::clone(&text), target);
        match self.by_inode.entry(number) {
            Entry::Occupied(names) => {
                let names = names.into_mut();
                let before = std::mem::replace(&mut names.last, (name.0, text));
                names.others.push(before);
            }
            Entry::Vacant(vacant) => drop(vacant.insert(Names { last: (name.0, text), others: Vec::new() })),
        }
    }

    /// Makes a recorded name the most recent one of its inode.
    fn mark_last_seen(&mut self, number: u64, name: Name<'_>) {
        let Some(names) = self.by_inode.get_mut(&number) else { return };
        if let Some(seen) = names.others.iter_mut().find(|(dir, text)| (*dir, &**text) == name) {
            std::mem::swap(seen, &mut names.last);
        }
    }

    /// Records a negative entry that the kernel may cache for `ttl` from `now`. `false`: too many are cached,
    /// so the kernel must not cache this one.
    pub(crate) fn insert_negative(&mut self, name: Name<'_>, now: Instant, ttl: Duration) -> bool {
        self.remove(name);
        if self.negative_count >= MAX_NEGATIVE
            && self.last_sweep.is_none_or(|then| now.duration_since(then) >= SWEEP_INTERVAL)
        {
            self.remove_expired_negatives(now);
        }
        if self.negative_count >= MAX_NEGATIVE {
            return false;
        }
        let target = Target::Negative { until: now + ttl };
        self.directories.entry(name.0).or_default().insert(name.1.into(), target);
        self.negative_count += 1;
        true
    }

    fn remove_expired_negatives(&mut self, now: Instant) {
        self.last_sweep = Some(now);
        let is_kept = |target: &Target| !matches!(target, Target::Negative { until } if *until <= now);
        for names in self.directories.values_mut() {
            names.retain(|_, target| is_kept(target));
        }
        self.directories.retain(|_, names| !names.is_empty());
        self.negative_count = self.directories.values().map(|names| count_negative(names.values())).sum();
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: Name<'_>) {
        let Entry::Occupied(mut names) = self.directories.entry(name.0) else { return };
        let Some(target) = names.get_mut().remove(name.1) else { return };
        if names.get().is_empty() {
            names.remove();
        }
        match target {
            Target::Negative { .. } => self.negative_count -= 1,
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
        let target = self.directories.get(&from.0).and_then(|names| names.get(from.1)).copied();
        self.remove(from);
        match target {
            Some(Target::Inode { number, .. }) => self.insert(number, to),
            _ => self.remove(to),
        }
    }

    /// Removes an inode that the kernel has forgotten.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(names) = self.by_inode.remove(&number) {
            names.all().for_each(|(dir, text)| self.remove((*dir, text)));
        }
        // The kernel holds a directory as long as any dentry in it, except negative ones.
        if let Some(names) = self.directories.remove(&number) {
            self.negative_count -= count_negative(names.values());
        }
        shrink(&mut self.by_inode);
        shrink(&mut self.directories);
    }

    /// Names by which the kernel can reach an inode without a request.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<CachedName> {
        let cached = |(dir, text): &OwnedName| {
            let target = self.directories.get(dir)?.get(text)?;
            let Target::Inode { cached: Some(stamp), .. } = target else { return None };
            Some((*dir, Arc::clone(text), *stamp))
        };
        self.by_inode.get(&number).map(|names| names.all().filter_map(cached).collect()).unwrap_or_default()
    }

    /// Records that the kernel has been told to expire a name, unless it was looked up again since.
    pub(crate) fn finish_expiry(&mut self, (dir, text, stamp): &CachedName) {
        let target = self.directories.get_mut(dir).and_then(|names| names.get_mut(text));
        if let Some(Target::Inode { cached, .. }) = target {
            cached.take_if(|now| now.count == stamp.count);
        }
    }

    /// Returns the cached names in a directory that must be expired. They count as cached until
    /// [`Self::finish_expiry`]. Each name is returned once.
    pub(crate) fn begin_expiry(&mut self, dir: u64) -> Vec<CachedName> {
        let Some(names) = self.directories.get_mut(&dir) else { return Vec::new() };
        let mut expired = Vec::new();
        names.retain(|name, target| match target {
            Target::Inode { cached, .. } => {
                if let Some(stamp) = cached.as_mut().filter(|stamp| !stamp.expiring) {
                    stamp.expiring = true;
                    expired.push((dir, Arc::clone(name), *stamp));
                }
                true
            }
            Target::Negative { .. } => {
                self.negative_count -= 1;
                expired.push((dir, Arc::clone(name), CacheStamp { count: 0, expiring: true }));
                false
            }
        });
        if names.is_empty() {
            self.directories.remove(&dir);
        }
        expired
    }

    /// Like [`Self::begin_expiry`], for one name.
    pub(crate) fn begin_name_expiry(&mut self, name: Name<'_>) -> Option<CachedName> {
        let names = self.directories.get_mut(&name.0)?;
        let text = Arc::clone(names.get_key_value(name.1)?.0);
        match names.get_mut(name.1)? {
            Target::Inode { cached, .. } => {
                let stamp = cached.as_mut().filter(|stamp| !stamp.expiring)?;
                stamp.expiring = true;
                Some((name.0, text, *stamp))
            }
            Target::Negative { .. } => {
                self.remove(name);
                Some((name.0, text, CacheStamp { count: 0, expiring: true }))
            }
        }
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

fn count_negative(targets: Values<'_, Arc<[u8]>, Target>) -> usize {
    targets.filter(|target| matches!(target, Target::Negative { .. })).count()
}

/// Returns memory that a table no longer needs.
pub(crate) fn shrink<K: std::hash::Hash + Eq, V>(table: &mut HashMap<K, V>) {
    const SMALL: usize = 1024;
    if table.capacity() > SMALL && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(0);
    const LIFE: Duration = Duration::from_secs(3600);

    fn path(dentries: &Dentries, number: u64) -> Option<String> {
        dentries.path(number).map(|p| p.to_str().unwrap().to_owned())
    }

    fn sorted(names: impl IntoIterator<Item = Arc<[u8]>>) -> Vec<String> {
        let mut names: Vec<_> = names.into_iter().map(|n| String::from_utf8_lossy(&n).into_owned()).collect();
        names.sort();
        names
    }

    fn cached(dentries: &Dentries, number: u64) -> Vec<String> {
        sorted(dentries.cached_names(number).into_iter().map(|(_, name, _)| name))
    }

    /// Expires the names in a directory and returns them.
    fn expire(dentries: &mut Dentries, dir: u64) -> Vec<String> {
        let names = dentries.begin_expiry(dir);
        names.iter().for_each(|name| dentries.finish_expiry(name));
        sorted(names.into_iter().map(|(_, name, _)| name))
    }

    #[test]
    fn paths_follow_renames() {
        let mut d = Dentries::default();
        d.insert(2, (ROOT, b"docs"));
        d.insert(3, (2, b"draft"));
        d.insert(4, (2, b"final"));
        assert_eq!(path(&d, 3).as_deref(), Some("docs/draft"));
        // A replaced file has no name, even after its directory is renamed.
        d.rename((2, b"draft"), (2, b"final"));
        d.rename((ROOT, b"docs"), (ROOT, b"papers"));
        assert_eq!(path(&d, 3).as_deref(), Some("papers/final"));
        assert_eq!(path(&d, 4), None);
        // Another file was found under the name.
        d.insert(5, (2, b"final"));
        assert_eq!((path(&d, 3), path(&d, 5).as_deref()), (None, Some("papers/final")));
        // A directory that was never looked up replaces `papers`.
        d.rename((ROOT, b"never seen"), (ROOT, b"papers"));
        assert_eq!(path(&d, 2), None);
        d.forget(2);
        assert_eq!(path(&d, 5), None);
        d.forget(5);
        assert!(d.by_inode.is_empty() && d.directories.is_empty());
    }

    #[test]
    fn directory_cycle_has_no_path() {
        let mut d = Dentries::default();
        d.insert(2, (3, b"a"));
        d.insert(3, (2, b"b"));
        assert_eq!(d.path(3), None);
    }

    #[test]
    fn cached_names_lists_all_hard_links() {
        let mut d = Dentries::default();
        for name in [b"x", b"y", b"z", b"x"] {
            d.insert(2, (ROOT, name));
        }
        assert_eq!(cached(&d, 2), ["x", "y", "z"]);
        assert_eq!(path(&d, 2).as_deref(), Some("x"), "most recently seen");
        d.remove((ROOT, b"x"));
        d.rename((ROOT, b"y"), (ROOT, b"w"));
        assert_eq!(cached(&d, 2), ["w", "z"]);
        d.insert(3, (ROOT, b"w"));
        assert_eq!((cached(&d, 2), cached(&d, 3)), (vec!["z".into()], vec!["w".into()]));
        d.forget(2);
        d.forget(3);
        assert!(d.by_inode.is_empty() && d.directories.is_empty());
    }

    #[test]
    fn names_expire_once_and_stay_recorded() {
        let mut d = Dentries::default();
        d.insert(2, (ROOT, b"dir"));
        d.insert(3, (2, b"file"));
        d.insert(4, (2, b"other"));
        assert!(d.insert_negative((2, b"nothing"), NOW, LIFE));
        assert_eq!(expire(&mut d, 2), ["file", "nothing", "other"]);
        assert!(d.begin_expiry(2).is_empty() && d.cached_names(3).is_empty());
        assert_eq!(path(&d, 3).as_deref(), Some("dir/file"));
        d.insert(3, (2, b"file"));
        let names = d.begin_expiry(2);
        assert_eq!((names.len(), d.begin_expiry(2).len()), (1, 0), "a notification is pending");
        assert_eq!(cached(&d, 3), ["file"], "not expired yet");
        d.insert(3, (2, b"file"));
        d.finish_expiry(&names[0]);
        assert_eq!(cached(&d, 3), ["file"], "looked up again since");
        assert_eq!(expire(&mut d, 2), ["file"]);
        assert_eq!(
            (cached(&d, 3), cached(&d, 2)),
            (vec![], vec!["dir".into()]),
            "names in other directories stay"
        );
        d.insert(3, (2, b"file"));
        assert!(
            d.insert_negative((2, b"nothing"), NOW, LIFE) && d.begin_name_expiry((2, b"nothing")).is_some()
        );
        assert!(d.begin_name_expiry((2, b"file")).is_some() && d.begin_name_expiry((2, b"file")).is_none());
        assert_eq!(d.negative_count, 0);
    }

    #[test]
    fn negative_entries_are_bounded() {
        let mut d = Dentries::default();
        for n in 0..MAX_NEGATIVE as u32 {
            assert!(d.insert_negative((ROOT, &n.to_le_bytes()), NOW, Duration::ZERO));
        }
        // All earlier entries have expired.
        assert!(d.insert_negative((ROOT, b"one more"), NOW, LIFE) && d.negative_count == 1);
        for n in 1..MAX_NEGATIVE as u32 {
            assert!(d.insert_negative((2, &n.to_le_bytes()), NOW, LIFE));
        }
        assert!(!d.insert_negative((3, b"too many"), NOW, LIFE));
        assert!(d.insert_negative((2, &1_u32.to_le_bytes()), NOW, LIFE), "an existing entry");
        // The name is created, and the directory is forgotten.
        d.insert(9, (ROOT, b"one more"));
        d.forget(2);
        assert_eq!((d.negative_count, d.directories.len()), (0, 1));
    }
}
