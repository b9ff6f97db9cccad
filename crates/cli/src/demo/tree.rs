//! Selection of the directory that the demo copies.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use millrace_buffer::Views;
use millrace_copy::{Entries, Error, FileKind, LocalReader, LocalTree, Metadata, Source};
use millrace_program::failure::Failure;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use crate::{file_error::FileError, scratch::Scratch};

/// Maximum total size and number of files of the demo.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

/// The files that the demo copies.
pub(super) struct Selection {
    pub(super) root: PathBuf,
    /// Description of the tree.
    pub(super) what: &'static str,
    /// Paths of the selected regular files, symbolic links and directories.
    pub(super) included: Arc<HashSet<PathBuf>>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Whether the limits excluded files.
    pub(super) cut: bool,
    /// Removes a generated tree when dropped.
    _generated: Option<Scratch>,
}

/// Selects `dir`, the Rust toolchain's documentation or libraries, or generates a tree.
pub(super) fn choose(dir: Option<&Path>, limits: Limits) -> Result<Selection, Failure> {
    if let Some(dir) = dir {
        let selection = Selection::of(dir, "given on the command line", limits)
            .map_err(|e| Failure::from(FileError::local("read", dir, &e)))?;
        if selection.files == 0 {
            return Err(Failure::new(format!(
                "{} has no files to copy; name another directory",
                dir.display()
            )));
        }
        return Ok(selection);
    }
    let sysroot = sysroot();
    let places = [
        ("share/doc", "the Rust toolchain's documentation"),
        ("lib/rustlib", "the Rust toolchain's libraries"),
    ];
    for (place, what) in places {
        let Some(dir) = sysroot.as_ref().map(|s| s.join(place)) else { continue };
        match Selection::of(&dir, what, limits) {
            // A toolchain without documentation has only a few licence texts there.
            Ok(selection) if selection.bytes >= 16 << 20 => return Ok(selection),
            _ => {}
        }
    }
    let scratch = Scratch::new()
        .and_then(|s| generate(s.path(), limits).map(|()| s))
        .map_err(|e| Failure::new(format!("cannot generate a tree: {e}; name a directory to copy")))?;
    let mut selection = Selection::of(scratch.path(), "a generated tree", limits)
        .map_err(|e| Failure::from(FileError::local("read", scratch.path(), &e)))?;
    selection._generated = Some(scratch);
    Ok(selection)
}

fn sysroot() -> Option<PathBuf> {
    let out = Command::new("rustc").args(["--print", "sysroot"]).stderr(Stdio::null()).output().ok()?;
    let path = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| PathBuf::from(path.trim_end()))
}

impl Selection {
    /// Selects the files of `root` in order of their paths, up to `limits`. Unreadable files are excluded.
    fn of(root: &Path, what: &'static str, limits: Limits) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let mut out = Self {
            root: root.clone(),
            what,
            included: Arc::default(),
            files: 0,
            bytes: 0,
            cut: false,
            _generated: None,
        };
        let mut included = HashSet::new();
        let mut todo = vec![root.clone()];
        while let Some(dir) = todo.pop() {
            let mut entries: Vec<PathBuf> = match fs::read_dir(&dir) {
                Ok(list) => list.filter_map(|e| e.ok().map(|e| e.path())).collect(),
                Err(e) if dir == root => return Err(e),
                Err(_) => continue,
            };
            entries.sort_unstable_by(|a, b| b.cmp(a));
            included.insert(dir);
            for path in entries {
                let Ok(meta) = path.symlink_metadata().map(|m| Metadata::from(&m)) else { continue };
                match meta.kind {
                    FileKind::Directory => todo.push(path),
                    FileKind::Symlink => {
                        included.insert(path);
                    }
                    FileKind::File if out.files >= limits.files || out.bytes + meta.size > limits.bytes => {
                        out.cut = true;
                    }
                    FileKind::File if fs::File::open(&path).is_ok() => {
                        out.files += 1;
                        out.bytes += meta.size;
                        included.insert(path);
                    }
                    _ => {}
                }
            }
            if out.files >= limits.files && !todo.is_empty() {
                out.cut = true;
                break;
            }
        }
        out.included = Arc::new(included);
        Ok(out)
    }
}

/// Generates a tree of files of 0 bytes to 8 MiB, 64 MiB in total.
fn generate(root: &Path, limits: Limits) -> io::Result<()> {
    let mut random = SplitMix64::seed_from_u64(1);
    let mut left = limits.bytes.min(64 << 20);
    for n in 0..limits.files.min(1000) {
        let dir = root.join(format!("{:02}", n % 20));
        fs::create_dir_all(&dir)?;
        let size = if n % 100 == 99 { 8 << 20 } else { (n * n * 37) % 100_000 }.min(left);
        left -= size;
        let mut bytes = vec![0_u8; size as usize];
        random.fill_bytes(&mut bytes);
        fs::write(dir.join(format!("{n:04}.bin")), bytes)?;
    }
    Ok(())
}

/// The local file system, restricted to the selected files.
#[derive(Clone)]
pub(super) struct Subset {
    pub(super) tree: LocalTree,
    pub(super) included: Arc<HashSet<PathBuf>>,
}

impl Source for Subset {
    type Node = PathBuf;
    type Reader = LocalReader;

    async fn list(&self, dir: &PathBuf) -> Result<Entries<PathBuf>, Error> {
        let mut entries = self.tree.list(dir).await?;
        entries.found.retain(|e| self.included.contains(&e.node));
        Ok(entries)
    }

    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Error> {
        self.tree.read_link(link).await
    }

    async fn open(&self, file: &PathBuf) -> Result<LocalReader, Error> {
        self.tree.open(file).await
    }

    async fn read(&self, file: &LocalReader, offset: u64, len: usize) -> Result<Views, Error> {
        self.tree.read(file, offset, len).await
    }

    fn preferred_record(&self) -> usize {
        self.tree.preferred_record()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tree_has_small_and_large_files() {
        let scratch = Scratch::new().unwrap();
        let limits = Limits { bytes: 20 << 20, files: 200 };
        generate(scratch.path(), limits).unwrap();
        let c = Selection::of(scratch.path(), "", limits).unwrap();
        assert_eq!((c.files, c.cut), (200, false));
        assert!(c.bytes > 16 << 20 && c.bytes <= 20 << 20, "{}", c.bytes);
    }

    #[test]
    fn limits_are_observed_and_reported() {
        let scratch = Scratch::new().unwrap();
        for i in 0..10 {
            fs::write(scratch.path().join(format!("{i}")), vec![1; 1000]).unwrap();
        }
        let all = Selection::of(scratch.path(), "", Limits { bytes: 10_000, files: 10 }).unwrap();
        assert_eq!((all.files, all.bytes, all.cut), (10, 10_000, false));
        let few = Selection::of(scratch.path(), "", Limits { bytes: 10_000, files: 3 }).unwrap();
        assert_eq!((few.files, few.cut, few.included.len()), (3, true, 4));
        let small = Selection::of(scratch.path(), "", Limits { bytes: 2500, files: 10 }).unwrap();
        assert_eq!((small.files, small.bytes, small.cut), (2, 2000, true));
    }

    #[test]
    fn read_only_scratch_directories_are_removed() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new().unwrap();
        let dir = scratch.path().join("a");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("b"), b"").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
