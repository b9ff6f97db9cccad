//! Dentries: the names that the kernel was told, and the inodes to which they lead.
//!
//! The kernel resolves a name from its cache until the name's lifetime has expired. The mount records these names: to expire
//! those in a directory that another client has changed, to revalidate them when a file is opened, and to give the paths of
//! files in messages.

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

/// The most components of a path; a server whose directory contains itself would make it endless.
const MAX_PATH_COMPONENTS: usize = 4096;
/// The most negative names (names that do not exist) that the kernel may cache.
const MAX_NEGATIVE: usize = 16 << 10;
/// The least interval between searches for negative names that have expired.
const LOOK: Duration = Duration::from_secs(1);

/// A name in the directory with this inode number.
type Name<'n> = (u64, &'n [u8]);
/// The same, kept.
type OwnedName = (u64, Arc<[u8]>);

/// Identifies one answer by which the kernel was allowed to cache a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheStamp {
    count: u64,
    /// A notification that expires it is under way.
    expiring: bool,
}

/// A name that the kernel may have cached: its directory's number, its text, and the answer.
pub(crate) type CachedName = (u64, Arc<[u8]>, CacheStamp);

/// The answer that the kernel had for a name.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// It leads to this inode.
    Inode { number: u64, cached: Option<CacheStamp> },
    /// It does not exist; cached until then.
    Negative { until: Instant },
}

/// The names of an inode, at least one.
struct Names {
    /// The one that was seen last.
    last: OwnedName,
    others: Vec<OwnedName>,
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &OwnedName> {
        std::iter::once(&self.last).chain(&self.others)
    }
}

/// The names of inodes, by their numbers, and what each leads to. What other clients rename has its old name until that is
/// looked up again.
#[derive(Default)]
pub(crate) struct Dentries {
    directories: HashMap<u64, HashMap<Arc<[u8]>, Target>>,
    by_inode: HashMap<u64, Names>,
    negative_count: usize,
    last_stamp: u64,
    /// When it was last looked for absent names whose time is over.
    last_sweep: Option<Instant>,
}

impl Dentries {
    /// The kernel is told that `name` leads to the inode `number`.
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

    /// Makes a known name the last one of its inode.
    fn mark_last_seen(&mut self, number: u64, name: Name<'_>) {
        let Some(names) = self.by_inode.get_mut(&number) else { return };
        if let Some(seen) = names.others.iter_mut().find(|(dir, text)| (*dir, &**text) == name) {
            std::mem::swap(seen, &mut names.last);
        }
    }

    /// The kernel is to be told that there is no `name`, for `ttl` from `now` on; `false`: it was told so of too many, so it is not to
    /// cache this one.
    pub(crate) fn insert_negative(&mut self, name: Name<'_>, now: Instant, ttl: Duration) -> bool {
        self.remove(name);
        if self.negative_count >= MAX_NEGATIVE
            && self.last_sweep.is_none_or(|then| now.duration_since(then) >= LOOK)
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

    /// `name` leads nowhere any more, that the kernel knows of.
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

    /// Takes a name from an inode.
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

    /// What had the name `from` has the name `to` now, for the kernel too.
    pub(crate) fn rename(&mut self, from: Name<'_>, to: Name<'_>) {
        let target = self.directories.get(&from.0).and_then(|names| names.get(from.1)).copied();
        self.remove(from);
        match target {
            Some(Target::Inode { number, .. }) => self.insert(number, to),
            _ => self.remove(to),
        }
    }

    /// The kernel does not know the inode any more.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(names) = self.by_inode.remove(&number) {
            names.all().for_each(|(dir, text)| self.remove((*dir, text)));
        }
        // It holds a directory as long as something in it, but for names that are not there.
        if let Some(names) = self.directories.remove(&number) {
            self.negative_count -= count_negative(names.values());
        }
        shrink(&mut self.by_inode);
        shrink(&mut self.directories);
    }

    /// The names by which the kernel may reach an inode without asking.
    pub(crate) fn cached_names(&self, number: u64) -> Vec<CachedName> {
        let cached = |(dir, text): &OwnedName| {
            let target = self.directories.get(dir)?.get(text)?;
            let Target::Inode { cached: Some(stamp), .. } = target else { return None };
            Some((*dir, Arc::clone(text), *stamp))
        };
        self.by_inode.get(&number).map(|names| names.all().filter_map(cached).collect()).unwrap_or_default()
    }

    /// The kernel asks for a name before it uses it, if it was not told of it again.
    pub(crate) fn finish_expiry(&mut self, (dir, text, stamp): &CachedName) {
        let target = self.directories.get_mut(dir).and_then(|names| names.get_mut(text));
        if let Some(Target::Inode { cached, .. }) = target {
            cached.take_if(|now| now.count == stamp.count);
        }
    }

    /// The names in a directory that the kernel may use without asking, for it to be told to ask; until then they count as
    /// cached ([`Self::expired`]). Each is given once.
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

    /// As [`Self::expire`], of one name.
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

    /// The path from the root of the mount, if all of it is known.
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

/// Gives memory back that a table does not need any more.
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

    /// Names in a fixed order.
    fn sorted(names: impl IntoIterator<Item = Arc<[u8]>>) -> Vec<String> {
        let mut names: Vec<_> = names.into_iter().map(|n| String::from_utf8_lossy(&n).into_owned()).collect();
        names.sort();
        names
    }

    fn cached(dentries: &Dentries, number: u64) -> Vec<String> {
        sorted(dentries.cached_names(number).into_iter().map(|(_, name, _)| name))
    }

    /// The kernel is told to ask for the names of a directory: which.
    fn expire(dentries: &mut Dentries, dir: u64) -> Vec<String> {
        let names = dentries.begin_expiry(dir);
        names.iter().for_each(|name| dentries.finish_expiry(name));
        sorted(names.into_iter().map(|(_, name, _)| name))
    }

    #[test]
    fn paths_follow_renames_and_unknown_ones_are_not_made_up() {
        let mut d = Dentries::default();
        d.insert(2, (ROOT, b"docs"));
        d.insert(3, (2, b"draft"));
        d.insert(4, (2, b"final"));
        assert_eq!(path(&d, 3).as_deref(), Some("docs/draft"));
        // What is replaced has no name any more, wherever the directory goes.
        d.rename((2, b"draft"), (2, b"final"));
        d.rename((ROOT, b"docs"), (ROOT, b"papers"));
        assert_eq!(path(&d, 3).as_deref(), Some("papers/final"));
        assert_eq!(path(&d, 4), None);
        // Another file was found under the name.
        d.insert(5, (2, b"final"));
        assert_eq!((path(&d, 3), path(&d, 5).as_deref()), (None, Some("papers/final")));
        // Something that was never seen has the directory's name now.
        d.rename((ROOT, b"never seen"), (ROOT, b"papers"));
        assert_eq!(path(&d, 2), None);
        d.forget(2);
        assert_eq!(path(&d, 5), None);
        d.forget(5);
        assert!(d.by_inode.is_empty() && d.directories.is_empty());
    }

    #[test]
    fn a_directory_below_itself_has_no_path() {
        let mut d = Dentries::default();
        d.insert(2, (3, b"a"));
        d.insert(3, (2, b"b"));
        assert_eq!(d.path(3), None);
    }

    #[test]
    fn a_file_has_all_names_by_which_the_kernel_reaches_it() {
        let mut d = Dentries::default();
        for name in [b"x", b"y", b"z", b"x"] {
            d.insert(2, (ROOT, name));
        }
        assert_eq!(cached(&d, 2), ["x", "y", "z"]);
        assert_eq!(path(&d, 2).as_deref(), Some("x"), "the one that was seen last");
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
    fn the_names_of_a_directory_expire_once_and_stay_known() {
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
        assert_eq!((names.len(), d.begin_expiry(2).len()), (1, 0), "the kernel is being told");
        assert_eq!(cached(&d, 3), ["file"], "but may not know yet");
        d.insert(3, (2, b"file"));
        d.finish_expiry(&names[0]);
        assert_eq!(cached(&d, 3), ["file"], "it was told of it again");
        assert_eq!(expire(&mut d, 2), ["file"]);
        assert_eq!((cached(&d, 3), cached(&d, 2)), (vec![], vec!["dir".into()]), "names elsewhere stay");
        d.insert(3, (2, b"file"));
        assert!(
            d.insert_negative((2, b"nothing"), NOW, LIFE) && d.begin_name_expiry((2, b"nothing")).is_some()
        );
        assert!(d.begin_name_expiry((2, b"file")).is_some() && d.begin_name_expiry((2, b"file")).is_none());
        assert_eq!(d.negative_count, 0);
    }

    #[test]
    fn names_that_are_not_there_are_bounded() {
        let mut d = Dentries::default();
        for n in 0..MAX_NEGATIVE as u32 {
            assert!(d.insert_negative((ROOT, &n.to_le_bytes()), NOW, Duration::ZERO));
        }
        // The time of all is over.
        assert!(d.insert_negative((ROOT, b"one more"), NOW, LIFE) && d.negative_count == 1);
        for n in 1..MAX_NEGATIVE as u32 {
            assert!(d.insert_negative((2, &n.to_le_bytes()), NOW, LIFE));
        }
        assert!(!d.insert_negative((3, b"too many"), NOW, LIFE));
        assert!(d.insert_negative((2, &1_u32.to_le_bytes()), NOW, LIFE), "one of them again");
        // It is made, and the directory goes.
        d.insert(9, (ROOT, b"one more"));
        d.forget(2);
        assert_eq!((d.negative_count, d.directories.len()), (0, 1));
    }
}
