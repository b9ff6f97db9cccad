//! Temporary directories.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A directory in the system's directory for temporary files, accessible to this user only; removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates the directory.
    pub(crate) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("millrace-{:016x}", random()));
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path)?;
        Ok(Self(path))
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns a random number.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library seeds each `RandomState` with a different random key.
    RandomState::new().build_hasher().finish()
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Copied directories may be read-only.
        let _ = make_writable(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make_writable(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}
