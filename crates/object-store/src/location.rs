//! Locations of objects and paths of files.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path as FilePath, PathBuf},
};

use millrace_client::is_temporary_name;
use object_store::{Result, path, path::Path};

use crate::error;

/// The path of the directory with the prefix `prefix` below `root`. Segments of a [`Path`] are not empty, `.` or `..`,
/// and become file names unchanged.
pub(crate) fn directory(root: &FilePath, prefix: Option<&Path>) -> PathBuf {
    prefix
        .filter(|prefix| !prefix.is_root())
        .map_or_else(|| root.to_owned(), |prefix| root.join(prefix.as_ref()))
}

/// The path of the file of an object below `root`.
pub(crate) fn file(root: &FilePath, location: &Path) -> Result<PathBuf> {
    let name = location.filename().unwrap_or_default();
    let reason = match name {
        "" => "an object needs a name".to_owned(),
        _ if is_temporary_name(name.as_bytes()) => {
            format!(
                "{location}: names that end with .millrace- and 16 hexadecimal digits are reserved for incomplete objects"
            )
        }
        _ => return Ok(root.join(location.as_ref())),
    };
    Err(error::generic(reason))
}

/// The location of the entry `name` of the directory with the prefix `prefix`.
pub(crate) fn of_entry(prefix: &Path, name: &OsStr) -> Result<Path> {
    let full = if prefix.is_root() {
        name.as_bytes().to_vec()
    } else {
        [prefix.as_ref().as_bytes(), b"/", name.as_bytes()].concat()
    };
    let text = std::str::from_utf8(&full).map_err(|source| path::Error::NonUnicode {
        path: String::from_utf8_lossy(&full).into_owned(),
        source,
    })?;
    Ok(Path::parse(text)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_file_of_an_object_has_its_name_unchanged() {
        let root = FilePath::new("dir");
        for text in ["a", "a/b.parquet", "a%2Fb/c", "%Q", "sp ace/😀", "a#1", "..a/...", "{x}/[y]~*?"] {
            let location = Path::parse(text).unwrap();
            let path = file(root, &location).unwrap();
            assert_eq!(path.to_str().unwrap(), format!("dir/{text}"));
            let (prefix, name) = text.rsplit_once('/').unwrap_or(("", text));
            let prefix = Path::parse(prefix).unwrap();
            assert_eq!(of_entry(&prefix, OsStr::new(name)).unwrap(), location);
        }
    }

    #[test]
    fn temporary_names_and_the_root_are_no_objects() {
        let reserved = ".x.millrace-0123456789abcdef";
        for text in ["", reserved, &format!("a/{reserved}")] {
            assert!(file(FilePath::new(""), &Path::parse(text).unwrap()).is_err(), "{text}");
        }
        assert!(of_entry(&Path::ROOT, OsStr::from_bytes(b"\xff")).is_err());
        assert!(of_entry(&Path::ROOT, OsStr::new("new\nline")).is_err());
    }

    proptest! {
        /// Each valid location leads to a path below the root and back.
        #[test]
        fn locations_are_those_of_their_files(text in "\\PC{1,20}(/\\PC{1,20}){0,3}") {
            let Ok(location) = Path::parse(&text) else { return Ok(()) };
            let path = file(FilePath::new("root"), &location).unwrap();
            let below = path.strip_prefix("root").unwrap();
            prop_assert!(below.components().all(|c| matches!(c, std::path::Component::Normal(_))));
            let prefix = Path::parse(below.parent().unwrap().to_str().unwrap()).unwrap();
            prop_assert_eq!(of_entry(&prefix, below.file_name().unwrap()).unwrap(), location);
        }
    }
}
