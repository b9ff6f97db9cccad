//! Comparison of a copy with the original.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// Number of files with the same SHA-256, mode and modification time.
    pub(super) same: u64,
    /// Total size of these files.
    pub(super) bytes: u64,
    /// Paths that differ or are missing.
    pub(super) differ: Vec<String>,
}

/// Compares the paths in `included`, which are below `original`, with their copies below `copy`.
pub(super) fn same(original: &Path, copy: &Path, included: &HashSet<PathBuf>) -> io::Result<Verified> {
    let mut out = Verified::default();
    for path in included {
        let Ok(name) = path.strip_prefix(original) else { continue };
        let (a, b) = (path, copy.join(name));
        let meta = fs::symlink_metadata(a)?;
        let equal = match fs::symlink_metadata(&b) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e),
            Ok(other) if meta.file_type() != other.file_type() => false,
            Ok(_) if meta.is_symlink() => fs::read_link(a)? == fs::read_link(&b)?,
            Ok(other) if meta.is_dir() => meta.mode() == other.mode(),
            Ok(other) => {
                let attributes = |m: &fs::Metadata| (m.mode(), m.size(), m.mtime(), m.mtime_nsec());
                attributes(&meta) == attributes(&other) && sum(a)? == sum(&b)?
            }
        };
        if !equal {
            out.differ.push(name.display().to_string());
        } else if meta.is_file() {
            out.same += 1;
            out.bytes += meta.size();
        }
    }
    out.differ.sort();
    Ok(out)
}

fn sum(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut sum = Sha256::new();
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.finalize().into()),
            n => sum.update(&piece[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn one_changed_byte_one_missing_file_and_one_changed_time_are_found() {
        let s = Scratch::new().unwrap();
        let (a, b) = (s.path().join("a"), s.path().join("b"));
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        for dir in [&a, &b] {
            fs::create_dir(dir).unwrap();
            for name in ["same", "byte", "gone", "time"] {
                fs::write(dir.join(name), b"content").unwrap();
                File::open(dir.join(name)).unwrap().set_modified(old).unwrap();
            }
        }
        fs::write(b.join("byte"), b"contenT").unwrap();
        File::open(b.join("byte")).unwrap().set_modified(old).unwrap();
        fs::remove_file(b.join("gone")).unwrap();
        fs::write(b.join("time"), b"content").unwrap();
        let included = ["same", "byte", "gone", "time"].iter().map(|n| a.join(n)).collect();
        let v = same(&a, &b, &included).unwrap();
        assert_eq!((v.same, v.bytes), (1, 7));
        assert_eq!(v.differ, ["byte", "gone", "time"]);
    }
}
