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
                path if pattern.starts_with('/') || path.contains('/') => with_literal_braces(path),
                path => format!("**/{}", with_literal_braces(path)),
            };
            set.add(GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build()?);
        }
        Ok(Self { objects: objects.build()?, directories: directories.build()? })
    }

    /// Whether the object `path`, whose names are separated by `/`, matches a pattern.
    pub fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        let path = OsStr::from_bytes(path);
        self.objects.is_match(path) || is_directory && self.directories.is_match(path)
    }
}

/// Escapes braces, which have a meaning for `globset` only.
fn with_literal_braces(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    // The index of the first character of a class, which may be its end.
    let mut class = None;
    let mut chars = pattern.chars().enumerate();
    while let Some((at, c)) = chars.next() {
        match (c, class) {
            ('!' | '^', Some(first)) if first == at => class = Some(at + 1),
            (']', Some(first)) if first != at => class = None,
            ('[', None) => class = Some(at + 1),
            ('\\', None) => {
                out.push(c);
                out.extend(chars.next().map(|(_, escaped)| escaped));
                continue;
            }
            ('{' | '}', None) => out.push('\\'),
            _ => {}
        }
        out.push(c);
    }
    out
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
            ("{a,b}", "x/{a,b}"),
            ("\\{[]{]?", "{{}"),
            ("[!{]}", "]}"),
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
            ("{a,b}", "a"),
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
