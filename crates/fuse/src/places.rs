//! Names under which files were last seen, so that a message can say which one it means.

use std::{
    collections::HashMap,
    ffi::OsStr,
    hash::{BuildHasher, RandomState},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use crate::inode::ROOT;

/// The longest path in names; a server that says of a directory that it is below itself makes longer ones.
const DEEPEST: usize = 4096;

/// A name in a directory, which is told by its inode's number.
type Name<'n> = (u64, &'n [u8]);

struct Place {
    dir: u64,
    name: Box<[u8]>,
}

/// The last known names of inodes, by their numbers. Of a file with several, the one that was seen last. What other
/// clients rename is known by its old name until it is looked up again.
#[derive(Default)]
pub(crate) struct Places {
    of: HashMap<u64, Place>,
    /// Who has a name, by the name's hash. Where two names have one hash, the one is taken for the other's successor,
    /// and a file is told by its number.
    by_name: HashMap<u64, u64>,
    hasher: RandomState,
}

impl Places {
    /// `number` was seen under `name`.
    pub(crate) fn seen(&mut self, number: u64, name: Name<'_>) {
        let key = self.hasher.hash_one(name);
        let known = self.of.get(&number).is_some_and(|p| (p.dir, &*p.name) == name);
        if known && self.by_name.get(&key) == Some(&number) {
            return;
        }
        self.forget(number);
        if let Some(replaced) = self.by_name.insert(key, number) {
            self.of.remove(&replaced);
        }
        self.of.insert(number, Place { dir: name.0, name: name.1.into() });
    }

    /// What had the name `from` has the name `to` now.
    pub(crate) fn renamed(&mut self, from: Name<'_>, to: Name<'_>) {
        let key = self.hasher.hash_one(from);
        if let Some(number) = self.by_name.get(&key).copied() {
            self.seen(number, to);
        }
    }

    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(Place { dir, name }) = self.of.remove(&number) {
            let key = self.hasher.hash_one((dir, &*name));
            self.by_name.remove(&key);
        }
    }

    /// The path from the root of the mount, if all of it is known.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let place = self.of.get(&at).filter(|_| names.len() < DEEPEST)?;
            names.push(OsStr::from_bytes(&place.name));
            at = place.dir;
        }
        Some(names.iter().rev().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_renames_and_unknown_ones_are_not_made_up() {
        let mut places = Places::default();
        places.seen(2, (ROOT, b"docs"));
        places.seen(3, (2, b"draft"));
        places.seen(4, (2, b"final"));
        let path = |p: &Places, n| p.path(n).map(|p| p.to_str().unwrap().to_owned());
        assert_eq!(path(&places, 3).as_deref(), Some("docs/draft"));
        // What is replaced has no name any more, wherever the directory goes.
        places.renamed((2, b"draft"), (2, b"final"));
        places.renamed((ROOT, b"docs"), (ROOT, b"papers"));
        assert_eq!(path(&places, 3).as_deref(), Some("papers/final"));
        assert_eq!(path(&places, 4), None);
        places.renamed((ROOT, b"never seen"), (ROOT, b"papers"));
        assert_eq!(path(&places, 2).as_deref(), Some("papers"));
        // Another file was found under the name.
        places.seen(5, (2, b"final"));
        assert_eq!((path(&places, 3), path(&places, 5).as_deref()), (None, Some("papers/final")));
        places.forget(2);
        assert_eq!(path(&places, 5), None);
        places.forget(5);
        assert!(places.of.is_empty() && places.by_name.is_empty());
    }

    #[test]
    fn a_directory_below_itself_has_no_path() {
        let mut places = Places::default();
        places.seen(2, (3, b"a"));
        places.seen(3, (2, b"b"));
        assert_eq!(places.path(3), None);
    }
}
