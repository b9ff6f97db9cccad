//! Patterns of the names that a copy omits.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns of paths below a copied directory, each as a line of gitignore(5) without `!`.
///
/// A pattern with a `/` before its end is the whole path; another one is the last name of a path. `*` and `?` do not match
/// `/`, `**` does. With a `/` at its end it matches directories only.
#[derive(Debug, Clone, Default)]
pub struct Exclude {
    objects: GlobSet,
    directories: GlobSet,
}

/// A pattern that is not valid.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PatternError(#[from] globset::Error);

impl Exclude {
    /// Reads the patterns.
    ///
    /// # Errors
    /// One is not valid.
    pub fn new<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Result<Self, PatternError> {
        let (mut objects, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let (set, path) = match pattern.strip_suffix('/') {
                Some(path) => (&mut directories, path),
                None => (&mut objects, pattern),
            };
            let glob = match path.strip_prefix('/').unwrap_or(path) {
                "" => continue, // It matches nothing.
                path if pattern.starts_with('/') || path.contains('/') => path.to_owned(),
                path => format!("**/{path}"),
            };
            set.add(GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build()?);
        }
        Ok(Self { objects: objects.build()?, directories: directories.build()? })
    }

    /// Whether the object `path` is omitted.
    pub(crate) fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        let path = OsStr::from_bytes(path);
        self.objects.is_match(path) || is_directory && self.directories.is_match(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_gitignore() {
        let matches = |pattern: &str, path: &str, is_directory| {
            Exclude::new([pattern]).unwrap().matches(path.as_bytes(), is_directory)
        };
        for (pattern, path) in [
            ("*.o", "a.o"),
            ("*.o", "x/y/a.o"),
            ("target", "x/target"),
            ("/target", "target"),
            ("a/b", "a/b"),
            ("a/*", "a/b"),
            ("a/**", "a/b/c"),
            ("**/b/c", "a/b/c"),
            ("a/**/c", "a/c"),
            ("[ab]?", "x/a1"),
            ("\\*", "*"),
        ] {
            assert!(matches(pattern, path, false), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.o", "a.o/b"),
            ("/target", "x/target"),
            ("a/b", "x/a/b"),
            ("a/*", "a/b/c"),
            ("a/**", "a"),
            ("x/", "x"),
            ("\\*", "a"),
            ("", "a"),
            ("/", "a"),
        ] {
            assert!(!matches(pattern, path, false), "{pattern} {path}");
        }
        assert!(matches("x/", "a/x", true) && !matches("/x/", "a/x", true));
        assert!(Exclude::new(["*.o"]).unwrap().matches(b"\xff.o", false));
        assert!(Exclude::new(["["]).is_err());
        assert!(!Exclude::default().matches(b"a", true));
    }
}
