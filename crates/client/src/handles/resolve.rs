//! Path resolution.

use std::io::ErrorKind as K;

use super::{Client, Object, operations::COMMON_NAME_MAX};
use crate::{
    Error,
    ops::{Attributes, FileHandle, FileType, Wcc},
    v4::compounds::{MAX_COMPONENTS, Walk},
};

/// Maximum number of symbolic links followed in one path, as in Linux.
pub(crate) const MAX_LINKS: usize = 40;
/// Maximum number of components of one path, including those of followed links.
const MAX_STEPS: usize = 4096;

impl Client {
    /// Resolves `path` from the export's root, with or without a leading `/`; `..` at the root is the root.
    /// Symbolic links inside the export are followed, including the last component.
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Path`] (too many links, a link that leads outside the export) and the errors
    /// of a call.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Attributes), Error> {
        let path = path.as_ref();
        let o = self.walk(path, true).await.map_err(|e| e.at(path))?;
        Ok((o.handle, o.attributes))
    }

    /// As [`Self::resolve`], without following a symbolic link in the last component.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub async fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Attributes), Error> {
        let path = path.as_ref();
        let o = self.walk(path, false).await.map_err(|e| e.at(path))?;
        Ok((o.handle, o.attributes))
    }

    /// Resolves the parent directory of `path`; returns it with the last component, which need not exist.
    ///
    /// # Errors
    /// As [`Self::resolve`]; [`Error::Path`] if the path has no last component or ends with `..`.
    pub async fn resolve_parent(&self, path: impl AsRef<[u8]>) -> Result<(FileHandle, Vec<u8>), Error> {
        let path = path.as_ref();
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |n| n + 1);
        let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |n| n + 1);
        let name = &path[start..end];
        if matches!(name, b"" | b"." | b"..") {
            return Err(bad_path(
                path,
                K::InvalidInput,
                "the path does not end with the name of a directory entry",
            ));
        }
        let parent = self.walk(&path[..start], true).await.map_err(|e| e.at(&path[..start]))?;
        if parent.attributes.file_type != FileType::Directory {
            return Err(bad_path(&path[..start], K::NotADirectory, "not a directory"));
        }
        Ok((parent.handle, name.to_vec()))
    }

    async fn walk(&self, path: &[u8], follow_last: bool) -> Result<Object, Error> {
        // The objects on the path, below the root.
        let mut trail: Vec<Object> = Vec::new();
        // Remaining components, in reverse order.
        let mut todo = components(path);
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = todo.last() {
            if steps >= MAX_STEPS {
                return Err(bad_path(path, K::InvalidFilename, "too many components"));
            }
            if name.as_slice() == b".." {
                if trail.last().is_some_and(|o| o.attributes.file_type != FileType::Directory) {
                    let reason = "a component before .. is not a directory";
                    return Err(bad_path(path, K::NotADirectory, reason));
                }
                trail.pop();
                todo.pop();
                steps += 1;
                continue;
            }
            let dir = trail.last().map_or(self.root(), |o| o.handle);
            let found = self.lookup_all(dir, &todo).await?;
            let mut link = None;
            for object in found {
                todo.pop();
                steps += 1;
                if object.attributes.file_type == FileType::Symlink && (follow_last || !todo.is_empty()) {
                    link = Some(object);
                    break;
                }
                trail.push(object);
            }
            let Some(object) = link else { continue };
            links += 1;
            if links > MAX_LINKS {
                return Err(bad_path(path, K::InvalidInput, "too many levels of symbolic links"));
            }
            let target = self.readlink(object.handle).await?;
            let inside = self.inside_export(&target).ok_or_else(|| {
                let target = String::from_utf8_lossy(&target).into_owned();
                bad_path(
                    path,
                    K::CrossesDevices,
                    &format!("its symbolic link to {target} leads outside the export"),
                )
            })?;
            if target.starts_with(b"/") {
                trail.clear();
            }
            todo.extend(components(inside));
        }
        match trail.pop() {
            Some(object) => Ok(object),
            None => {
                let (handle, dir) = (self.root(), Wcc::default());
                Ok(Object { handle, attributes: self.getattr(handle).await?, dir })
            }
        }
    }

    /// Looks up the last name of `todo` in `dir`, and with NFSv4 in the same call some of the names before it, each in
    /// the object of the previous one, up to a `..`. Returns the objects that were found, at least one.
    async fn lookup_all(&self, dir: FileHandle, todo: &[Vec<u8>]) -> Result<Vec<Object>, Error> {
        let names = todo.iter().rev().map(Vec::as_slice);
        let names: Vec<_> = names.take(MAX_COMPONENTS).take_while(|name| *name != b"..").collect();
        if names.len() > 1 && names.iter().all(|name| name.len() <= COMMON_NAME_MAX) {
            let mut walk = Walk { dir, names: &names, read: None };
            if let Some(walked) = self.walk_names(&mut walk, None).await? {
                let object = |(handle, attributes)| Object { handle, attributes, dir: Wcc::default() };
                return Ok(walked.found.into_iter().map(object).collect());
            }
        }
        let Some(name) = names.first() else { return Ok(Vec::new()) };
        Ok(vec![self.lookup(dir, name).await?])
    }

    /// Returns the target path of a symbolic link at `link` with the text `text`; `None` if it is outside the
    /// export.
    pub(crate) fn link_target(&self, link: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let inside = self.inside_export(text)?;
        if text.starts_with(b"/") {
            return Some(inside.to_vec());
        }
        let end = link.iter().rposition(|b| *b != b'/').map_or(0, |n| n + 1);
        let parent = link[..end].iter().rposition(|b| *b == b'/').map_or(0, |n| n + 1);
        Some([&link[..parent], inside].concat())
    }

    /// Returns the target of a link relative to the export's root; an absolute target must be below the
    /// export's path.
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
