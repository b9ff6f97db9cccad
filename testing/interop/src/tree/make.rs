//! Makes a tree with examples of everything that a file system stores.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{self, BufWriter, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

/// Sizes at boundaries of pages, inline messages, records and buffers of the server.
const SIZES: [usize; 14] =
    [0, 1, 511, 1024, 3900, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_144, 1_048_576, 1_048_577];
/// An arbitrary moment in 2001, the base of times.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// The size of a tree.
struct Scale {
    big_file: usize,
    crowd: usize,
    holes: u64,
}

const FULL: Scale = Scale { big_file: 64 << 20, crowd: 5000, holes: 64 << 20 };
const QUICK: Scale = Scale { big_file: 8 << 20, crowd: 500, holes: 8 << 20 };

/// Makes the tree of `seed` as the new directory `root`. The same seed and size produce the same tree
/// anywhere.
///
/// # Errors
/// When an entry cannot be made, with its path.
pub(crate) fn make(root: &Path, seed: u64, quick: bool) -> Result<()> {
    let scale = if quick { QUICK } else { FULL };
    let mut maker = Maker { random: SplitMix64::seed_from_u64(seed), times: 0, directories: Vec::new() };
    maker.directory(root)?;
    maker.sizes(&root.join("sizes"))?;
    maker.file(&root.join("big"), scale.big_file)?;
    maker.holes(&root.join("sparse"), scale.holes)?;
    maker.names(&root.join("names"))?;
    maker.links(&root.join("links"))?;
    maker.modes(&root.join("modes"))?;
    maker.crowd(&root.join("crowd"), scale.crowd)?;
    maker.depth(&root.join("deep"), 24)?;
    maker.close()
}

struct Maker {
    random: SplitMix64,
    times: u64,
    /// Directories, whose times are set last, because new entries change them.
    directories: Vec<PathBuf>,
}

impl Maker {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.random.fill_bytes(&mut out);
        out
    }

    fn directory(&mut self, path: &Path) -> Result<()> {
        fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
        self.directories.push(path.to_owned());
        Ok(())
    }

    fn file(&mut self, path: &Path, len: usize) -> Result<()> {
        let make = |bytes: &mut dyn FnMut(usize) -> Vec<u8>| -> io::Result<File> {
            let mut out = BufWriter::new(File::create_new(path)?);
            for at in (0..len).step_by(1 << 20) {
                out.write_all(&bytes((len - at).min(1 << 20)))?;
            }
            Ok(out.into_inner()?)
        };
        let file =
            make(&mut |n| self.bytes(n)).with_context(|| format!("cannot create {}", path.display()))?;
        file.set_modified(self.time())?;
        Ok(())
    }

    /// A time with all digits of its nanoseconds, different at each call.
    fn time(&mut self) -> SystemTime {
        self.times += 1;
        SystemTime::UNIX_EPOCH
            + EPOCH
            + Duration::new(self.times * 86_461, (self.random.next_u64() % 1_000_000_000) as u32)
    }

    fn sizes(&mut self, dir: &Path) -> Result<()> {
        self.directory(dir)?;
        SIZES.iter().try_for_each(|len| self.file(&dir.join(format!("{len:07}")), *len))
    }

    /// Data at the beginning, in the middle and near the end; holes between and after.
    fn holes(&mut self, path: &Path, len: u64) -> Result<()> {
        let file = File::create_new(path)?;
        for at in [0, len / 2 + 12_345, len - 70_000] {
            file.write_all_at(&self.bytes(10_000), at)?;
        }
        file.set_len(len + 54_321)?;
        Ok(file.set_modified(self.time())?)
    }

    fn names(&mut self, dir: &Path) -> Result<()> {
        self.directory(dir)?;
        let long = "x".repeat(255);
        let names: [&[u8]; 9] = [
            b"with space",
            b" leading and trailing ",
            b"-dash",
            b".dot",
            "überprüft".as_bytes(),
            "日本語 ✓".as_bytes(),
            b"quote\"back\\slash",
            b"not \xff utf-8",
            long.as_bytes(),
        ];
        names.iter().try_for_each(|n| self.file(&dir.join(OsStr::from_bytes(n)), 100))?;
        self.directory(&dir.join("a directory"))?;
        self.file(&dir.join("a directory/in it"), 10)
    }

    fn links(&mut self, dir: &Path) -> Result<()> {
        self.directory(dir)?;
        self.directory(&dir.join("below"))?;
        let long = format!("/{}", "d/".repeat(500));
        for (name, target) in [
            ("relative", "below/2"),
            ("dangling", "no/such thing"),
            ("absolute", "/etc/hosts"),
            ("long", &long),
        ] {
            symlink(target, dir.join(name))?;
        }
        self.file(&dir.join("1"), 5000)?;
        for name in ["below/2", "below/3"] {
            fs::hard_link(dir.join("1"), dir.join(name))?;
        }
        Ok(())
    }

    fn modes(&mut self, dir: &Path) -> Result<()> {
        self.directory(dir)?;
        for (n, mode) in [0o600, 0o755, 0o444, 0o000, 0o4755, 0o2755, 0o1644].into_iter().enumerate() {
            let path = dir.join(format!("{n}-{mode:04o}"));
            self.file(&path, 64)?;
            match chown(&path, Some(1000 + n as u32), Some(2000 + n as u32)) {
                // Without root, everything belongs to the caller.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
        for (name, mode) in [("private", 0o700), ("sticky", 0o1777)] {
            self.directory(&dir.join(name))?;
            fs::set_permissions(dir.join(name), Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn crowd(&mut self, dir: &Path, count: usize) -> Result<()> {
        self.directory(dir)?;
        for n in 0..count {
            let len = self.random.next_u64() % 200;
            self.file(&dir.join(format!("entry-{n:05}")), len as usize)?;
        }
        Ok(())
    }

    fn depth(&mut self, dir: &Path, levels: usize) -> Result<()> {
        self.directory(dir)?;
        match levels {
            0 => self.file(&dir.join("bottom"), 1),
            _ => self.depth(&dir.join(format!("level-{levels}")), levels - 1),
        }
    }

    fn close(mut self) -> Result<()> {
        for dir in std::mem::take(&mut self.directories).iter().rev() {
            File::open(dir)?.set_modified(self.time())?;
        }
        Ok(())
    }
}
