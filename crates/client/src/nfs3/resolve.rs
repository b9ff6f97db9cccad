//! From paths to handles.

use std::io::ErrorKind as K;

use millrace_nfs::v3::{Fattr, FileHandle, FileType, WccData};

use super::{Client, Object};
use crate::Error;

/// Symbolic links followed in one path (as Linux does).
pub(crate) const MAX_LINKS: usize = 40;
/// Components walked in one path, those of followed links included.
const MAX_STEPS: usize = 4096;

impl Client {
    /// The object at `path`, which is taken from the export's root whether it begins with `/` or not; `..` stops
    /// there. Symbolic links are followed inside the export, also the last one.
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Path`] (too many links, a link that leaves the export) and those of a call.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Fattr), Error> {
        let path = path.as_ref();
        let o = self.walk(path, true).await.map_err(|e| e.at(path))?;
        Ok((o.handle, o.attributes))
    }

    /// As [`Self::resolve`], but if the last component is a symbolic link, the link itself.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub async fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Fattr), Error> {
        let path = path.as_ref();
        let o = self.walk(path, false).await.map_err(|e| e.at(path))?;
        Ok((o.handle, o.attributes))
    }

    /// The directory that contains `path`, and the last component, which need not exist.
    ///
    /// # Errors
    /// As [`Self::resolve`]; [`Error::Path`] when the path has no last component or ends in `..`.
    pub async fn resolve_parent(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Vec<u8>), Error> {
        let path = path.as_ref();
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |n| n + 1);
        let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |n| n + 1);
        let name = &path[start..end];
        if matches!(name, b"" | b"." | b"..") {
            return Err(bad_path(path, K::InvalidInput, "it names no entry of a directory"));
        }
        let parent = self.walk(&path[..start], true).await.map_err(|e| e.at(&path[..start]))?;
        if parent.attributes.file_type != FileType::Directory {
            return Err(bad_path(&path[..start], K::NotADirectory, "not a directory"));
        }
        Ok((parent.handle, name.to_vec()))
    }

    async fn walk(&self, path: &[u8], follow_last: bool) -> Result<Object, Error> {
        let root = self.root();
        let mut trail =
            vec![Object { handle: root, attributes: self.getattr(root).await?, dir: WccData::default() }];
        // Components still to walk, the next one at the end.
        let mut todo = components(path);
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = todo.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(bad_path(path, K::InvalidFilename, "too many components"));
            }
            if name == b".." {
                if trail.last().is_some_and(|o| o.attributes.file_type != FileType::Directory) {
                    let reason = "a component before .. is not a directory";
                    return Err(bad_path(path, K::NotADirectory, reason));
                }
                if trail.len() > 1 {
                    trail.pop();
                }
                continue;
            }
            let Some(dir) = trail.last().copied() else { return Err(bad_path(path, K::Other, "no root")) };
            let object = self.lookup(dir.handle, &name).await?;
            if object.attributes.file_type != FileType::Symlink || (todo.is_empty() && !follow_last) {
                trail.push(object);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(bad_path(path, K::InvalidInput, "too many symbolic links, or a loop of them"));
            }
            let target = self.readlink(object.handle).await?;
            let inside = self.inside_export(&target).ok_or_else(|| {
                let target = String::from_utf8_lossy(&target).into_owned();
                bad_path(path, K::CrossesDevices, &format!("its symbolic link to {target} leaves the export"))
            })?;
            if target.starts_with(b"/") {
                trail.truncate(1);
            }
            todo.extend(components(inside));
        }
        trail.pop().ok_or_else(|| bad_path(path, K::Other, "no root"))
    }

    /// The path to which a symbolic link at `link` with the text `text` leads; `None` when that is outside the export.
    pub(crate) fn link_target(&self, link: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let inside = self.inside_export(text)?;
        if text.starts_with(b"/") {
            return Some(inside.to_vec());
        }
        let end = link.iter().rposition(|b| *b != b'/').map_or(0, |n| n + 1);
        let parent = link[..end].iter().rposition(|b| *b == b'/').map_or(0, |n| n + 1);
        Some([&link[..parent], inside].concat())
    }

    /// A link's text relative to where it is followed: an absolute one must point below the export's own path.
    fn inside_export<'t>(&self, target: &'t [u8]) -> Option<&'t [u8]> {
        if !target.starts_with(b"/") {
            return Some(target);
        }
        let rest = target.strip_prefix(self.export().trim_end_matches('/').as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
    }
}

/// The components of a path in reverse, without empty ones and `.`.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|b| *b == b'/').rev();
    parts.filter(|c| !c.is_empty() && *c != b".").map(<[u8]>::to_vec).collect()
}

pub(crate) fn bad_path(path: &[u8], kind: K, reason: &str) -> Error {
    Error::Path { path: String::from_utf8_lossy(path).into_owned(), reason: reason.to_owned(), kind }
}
