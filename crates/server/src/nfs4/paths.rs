//! Steps from directory to directory, in exports and in the pseudo file system between them.
//!
//! An export appears at its path. Where that path lies in another export, the directory of the outer export is
//! covered, as by a mount; directories of the path that do not exist there are those of the pseudo file system.

use millrace_nfs::v4::Status;
use millrace_vfs::{Attr, FsError, Handle, Identity};

use super::{
    convert,
    object::{Caller, File, Object},
};
use crate::{
    export::{Export, Exports},
    namespace::Namespace,
};

/// Maximum length of a name in the pseudo file system in bytes.
pub(super) const MAX_NAME: u32 = 255;

/// The directories of one export table that one caller may access.
pub(super) struct Paths<'c> {
    pub(super) exports: &'c Exports,
    pub(super) caller: &'c Caller<'c>,
}

impl Paths<'_> {
    fn namespace(&self) -> &Namespace {
        self.exports.namespace()
    }

    /// The root of the export at `dir` for the caller.
    fn export_root(&self, dir: usize) -> Option<File> {
        let export = self.exports.at(self.namespace().node(dir).export?);
        self.caller.sees(export).then(|| File::root(export, self.caller))
    }

    /// Whether the caller may access `dir`: an export that admits the caller is there or below.
    pub(super) fn sees(&self, dir: usize) -> bool {
        let node = |dir| self.namespace().node(dir).export.map(|e| self.exports.at(e));
        let admits = |dir| node(dir).is_some_and(|export| self.caller.sees(export));
        admits(dir) || self.namespace().descendants(dir).any(admits)
    }

    /// The object at `dir` if no export contains it: the root of an export, or a pseudo directory.
    pub(super) fn at(&self, dir: usize) -> Object {
        self.export_root(dir).map_or(Object::Pseudo(dir), Object::File)
    }

    /// The root of all paths.
    pub(super) fn root(&self) -> Object {
        self.at(Namespace::ROOT)
    }

    /// The subdirectory `name` of a pseudo directory.
    pub(super) fn pseudo_child(&self, dir: usize, name: &[u8]) -> Result<Object, Status> {
        if name.len() > MAX_NAME as usize {
            return Err(Status::NameTooLong);
        }
        let child = self.namespace().child(dir, name).filter(|child| self.sees(*child));
        child.map(|child| self.at(child)).ok_or(Status::NoEnt)
    }

    /// The object `name` in the directory `dir` of an export, and its attributes if they are known.
    pub(super) async fn child(&self, dir: &File, name: &[u8]) -> Result<(Object, Option<Attr>), Status> {
        dir.check_visible()?;
        let nested = self.nested(dir, Some(name)).await;
        let nested = nested.first().copied();
        if let Some(root) = nested.and_then(|at| self.export_root(at)) {
            return Ok((Object::File(root), None));
        }
        match (dir.fs().lookup(dir.caller()?, &dir.handle, name).await, nested) {
            (Ok((handle, attr)), _) => Ok((Object::File(dir.sibling(handle)), Some(attr))),
            (Err(FsError::NoEnt), Some(at)) => Ok((Object::Pseudo(at), None)),
            (Err(e), _) => Err(convert::status(e)),
        }
    }

    /// The parent of a directory.
    ///
    /// # Errors
    /// NOENT for the root of all paths; NOTDIR if `dir` is not a directory; WRONGSEC if the parent is in the same export,
    /// and that does not accept the caller's flavor.
    pub(super) async fn parent(&self, dir: &Object) -> Result<Object, Status> {
        let at = match dir {
            Object::Pseudo(at) => *at,
            Object::File(file) if file.is_root() => {
                file.check_visible()?;
                self.position(&file.export).ok_or(Status::Stale)?
            }
            Object::File(file) => {
                let parent = file.fs().lookup(file.caller()?, &file.handle, b"..").await;
                let (handle, _) = parent.map_err(convert::status)?;
                return Ok(Object::File(file.sibling(handle)));
            }
        };
        let above = self.namespace().node(at).parent.ok_or(Status::NoEnt)?;
        Ok(self.inside(above).await)
    }

    /// The position of an export's root in the namespace.
    fn position(&self, export: &std::sync::Arc<Export>) -> Option<usize> {
        Some(self.namespace().mount(self.exports.position(export)?))
    }

    /// The object at `dir`, which is in an export if one contains it.
    async fn inside(&self, dir: usize) -> Object {
        if let Some(root) = self.export_root(dir) {
            return Object::File(root);
        }
        let outer = self.namespace().ancestors(dir).find_map(|at| Some((at, self.export_root(at)?)));
        let Some((at, root)) = outer else { return Object::Pseudo(dir) };
        match self.walk(&root.export, at, dir).await {
            Some(handle) => Object::File(root.sibling(handle)),
            None => Object::Pseudo(dir),
        }
    }

    /// The directory of `export`, which is at `root`, with the path of `dir`. The server itself resolves the
    /// path, without symbolic links, as for a mount.
    async fn walk(&self, export: &Export, root: usize, dir: usize) -> Option<Handle> {
        let mut handle = export.fs().root();
        for name in self.namespace().path(root, dir) {
            (handle, _) = export.fs().lookup(&Identity::root(), &handle, name).await.ok()?;
        }
        Some(handle)
    }

    /// The directories of the namespace in the directory `dir` of an export, or only the one with `name`, as far as the
    /// caller may access them. Most exports have no others below them.
    pub(super) async fn nested(&self, dir: &File, name: Option<&[u8]>) -> Vec<usize> {
        let mut found = Vec::new();
        let Some(root) = self.position(&dir.export) else { return found };
        for below in self.namespace().descendants(root) {
            let node = self.namespace().node(below);
            let (Some(parent), true) = (node.parent, name.is_none_or(|name| node.name == name)) else {
                continue;
            };
            if self.sees(below) && self.walk(&dir.export, root, parent).await == Some(dir.handle) {
                found.push(below);
            }
        }
        found
    }

    /// File ID of the directory that the root of `export` covers.
    pub(super) async fn covered(&self, export: &std::sync::Arc<Export>) -> Option<u64> {
        let at = self.position(export)?;
        let Some(above) = self.namespace().node(at).parent else {
            return Some(self.namespace().node(at).number);
        };
        let outer = self.namespace().ancestors(above).find_map(|at| Some((at, self.export_root(at)?)));
        if let Some((root, outer)) = outer
            && let Some(handle) = self.walk(&outer.export, root, at).await
            && let Ok(attr) = outer.fs().getattr(&handle).await
        {
            return Some(attr.fileid);
        }
        Some(self.namespace().node(at).number)
    }
}
