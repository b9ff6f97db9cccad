//! Describes the content of a tree, so that trees on different machines can be compared.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::{self, File, Metadata},
    io::Read,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Number of differences that are printed; the others are only counted.
const SHOWN: usize = 12;
/// Position of the time among the words of [`describe`] for a file.
const FILE_TIME: usize = 4;

/// The entries of a tree by their paths: kind, mode, owner, size, time, links, and the SHA-256 of the
/// content.
///
/// The text form has one line for each entry: `PATH<tab>ATTRIBUTES`, with unusual bytes of the path escaped.
/// Times of symbolic links and sizes and link counts of directories are left out, because they depend on the
/// file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest(BTreeMap<String, String>);

impl Manifest {
    /// The manifest of `root`, including `root` itself (as `.`).
    ///
    /// # Errors
    /// When an entry cannot be read, with its path.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut found = Vec::new();
        walk(root, Path::new("."), &mut found)?;
        found.sort();
        let mut groups = HashMap::new();
        let mut entries = BTreeMap::new();
        for path in found {
            let name = path.as_os_str().as_bytes().escape_ascii().to_string();
            let attributes = describe(&root.join(&path), &name, &mut groups)
                .with_context(|| path.display().to_string())?;
            entries.insert(name, attributes);
        }
        Ok(Self(entries))
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// When a line has no tab, or there is no line.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let entry = |l: &str| l.split_once('\t').map(|(p, a)| (p.to_owned(), a.to_owned()));
        let entries: Option<BTreeMap<_, _>> = text.lines().map(entry).collect();
        match entries {
            Some(entries) if !entries.is_empty() => Ok(Self(entries)),
            _ => bail!("this is not a manifest: {}", text.chars().take(200).collect::<String>()),
        }
    }

    /// Checks that `other`, called `name` in messages, is equal.
    ///
    /// # Errors
    /// With the entries that are missing, unexpected or different.
    pub(crate) fn expect_same(&self, other: &Self, name: &str) -> Result<()> {
        let mut lines = Vec::new();
        for (path, want) in &self.0 {
            match other.0.get(path) {
                None => lines.push(format!("{path}: missing")),
                Some(have) if have != want => lines.push(format!("{path}: {have} instead of {want}")),
                Some(_) => {}
            }
        }
        lines.extend(other.0.keys().filter(|p| !self.0.contains_key(*p)).map(|p| format!("{p}: unexpected")));
        if lines.is_empty() {
            return Ok(());
        }
        let count = lines.len();
        lines.truncate(SHOWN);
        bail!("{name} differs in {count} of {} entries:\n      {}", self.0.len(), lines.join("\n      "))
    }

    /// As [`Manifest::expect_same`], except that the time of one file may differ.
    ///
    /// # Errors
    /// With the entries that are missing, unexpected or different.
    pub(crate) fn expect_same_but_one_time(&self, other: &Self, name: &str) -> Result<()> {
        let both = self.0.iter().filter_map(|(path, want)| Some((want, other.0.get(path)?)));
        let mut changed = both.filter(|(want, have)| want != have);
        if self.0.len() == other.0.len()
            && let (Some((want, have)), None) = (changed.next(), changed.next())
            && timeless(want).is_some_and(|w| timeless(have) == Some(w))
        {
            return Ok(());
        }
        self.expect_same(other, name)
    }
}

/// The attributes of a file without its time.
fn timeless(attributes: &str) -> Option<Vec<&str>> {
    let mut words: Vec<_> = attributes.split(' ').collect();
    (words.first() == Some(&"file") && words.len() > FILE_TIME).then(|| {
        words.remove(FILE_TIME);
        words
    })
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(path, attributes)| writeln!(f, "{path}\t{attributes}"))
    }
}

fn walk(root: &Path, path: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let full = root.join(path);
    let meta = fs::symlink_metadata(&full).with_context(|| full.display().to_string())?;
    found.push(path.to_owned());
    if meta.is_dir() {
        for entry in fs::read_dir(&full).with_context(|| full.display().to_string())? {
            walk(root, &path.join(entry?.file_name()), found)?;
        }
    }
    Ok(())
}

/// The attributes of `path`. `groups` maps each inode with several links to the first name that was found.
fn describe(path: &Path, name: &str, groups: &mut HashMap<(u64, u64), String>) -> Result<String> {
    let m = fs::symlink_metadata(path)?;
    let owner = format!("{:04o} {}:{}", m.mode() & 0o7777, m.uid(), m.gid());
    let time = format!("{}.{:09}", m.mtime(), m.mtime_nsec());
    Ok(if m.is_dir() {
        format!("directory {owner} {time}")
    } else if m.is_symlink() {
        let target = fs::read_link(path)?;
        format!("symlink {}:{} {}", m.uid(), m.gid(), target.as_os_str().as_bytes().escape_ascii())
    } else if m.is_file() {
        let links = if m.nlink() > 1 { linked(&m, name, groups) } else { String::new() };
        format!("file {owner} {} {time}{links} {}", m.size(), sum(path)?)
    } else {
        format!("special {owner}")
    })
}

fn linked(m: &Metadata, name: &str, groups: &mut HashMap<(u64, u64), String>) -> String {
    let first = groups.entry((m.dev(), m.ino())).or_insert_with(|| name.to_owned());
    format!(" {} links, first {first}", m.nlink())
}

fn sum(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut sum = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.finalize().iter().map(|b| format!("{b:02x}")).collect()),
            n => sum.update(piece.get(..n).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tree::make;

    #[test]
    fn the_same_seed_makes_the_same_tree_and_every_change_is_reported() {
        let scratch = tempfile::tempdir().unwrap();
        let (a, b) = (scratch.path().join("a"), scratch.path().join("b"));
        make(&a, 7, true).unwrap();
        make(&b, 7, true).unwrap();
        let want = Manifest::of(&a).unwrap();
        assert_eq!(Manifest::parse(&want.to_string()).unwrap(), want);
        want.expect_same(&Manifest::of(&b).unwrap(), "b").unwrap();

        let time = fs::metadata(b.join("sizes/0001024")).unwrap().modified().unwrap();
        let mut bytes = fs::read(b.join("sizes/0001024")).unwrap();
        bytes[1000] ^= 1;
        fs::write(b.join("sizes/0001024"), bytes).unwrap();
        File::open(b.join("sizes/0001024")).unwrap().set_modified(time).unwrap();
        fs::set_permissions(b.join("sizes/0000001"), fs::Permissions::from_mode(0o711)).unwrap();
        File::open(b.join("sizes/0004096")).unwrap().set_modified(time).unwrap();
        fs::remove_file(b.join("links/relative")).unwrap();
        fs::remove_file(b.join("links/below/3")).unwrap();
        fs::copy(b.join("links/1"), b.join("links/below/3")).unwrap();
        fs::write(b.join("crowd/new"), "").unwrap();
        let e = want.expect_same(&Manifest::of(&b).unwrap(), "b").unwrap_err().to_string();
        let changed =
            ["0001024", "0000001", "0004096", "links/relative: missing", "links/1", "below/2", "below/3"];
        for name in changed.iter().chain(&["crowd/new: unexpected"]) {
            assert!(e.contains(name), "{e} does not contain {name}");
        }
    }
    #[test]
    fn only_the_time_of_one_file_may_differ() {
        let made = |a: (u32, &str), b: u32, rest: &str| {
            let file = |time, sum| format!("file 0644 0:0 5 {time}.000000000 {sum}");
            Manifest::parse(&format!("a\t{}\nb\t{}\n{rest}", file(a.0, a.1), file(b, "bb"))).unwrap()
        };
        let want = made((1, "aa"), 1, "d\tdirectory 0755 0:0 1.0");
        for (a, b, rest, same) in [
            ((1, "aa"), 1, "d\tdirectory 0755 0:0 1.0", true),
            ((2, "aa"), 1, "d\tdirectory 0755 0:0 1.0", true),
            ((2, "ab"), 1, "d\tdirectory 0755 0:0 1.0", false),
            ((2, "aa"), 2, "d\tdirectory 0755 0:0 1.0", false),
            ((1, "aa"), 1, "d\tdirectory 0755 0:0 2.0", false),
            ((1, "aa"), 1, "e\tdirectory 0755 0:0 1.0", false),
        ] {
            let have = made(a, b, rest);
            assert_eq!(want.expect_same_but_one_time(&have, "it").is_ok(), same, "{have}");
        }
    }
}
