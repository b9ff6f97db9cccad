//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR and LINK.

use std::{ops::ControlFlow, sync::Arc};

use super::{
    MemoryFs, NAME_MAX, TARGET_MAX,
    attributes::{check_values, set_times},
    content::{Content, Truncated},
    directory::Directory,
    inode::{Body, Inode, InodeState},
    permission::{self, EXECUTE, SET_GID, WRITE, check_dir, check_sticky, check_write},
    space::{charge, entry_bytes, object_bytes},
};
use crate::{
    Attr, CreateHow, Created, FileKind, FsError, FsResult, Handle, Identity, NewNode, SetAttr, Wcc, WccAttr,
};

/// Classification of a name.
pub(super) enum Name<'a> {
    /// `.`
    Current,
    /// `..`
    Parent,
    /// An entry of the directory.
    Entry(&'a [u8]),
}

/// Classifies a name. The empty name and names with `/` or NUL are [`FsError::Inval`].
pub(super) fn classify(name: &[u8]) -> FsResult<Name<'_>> {
    match name {
        b"." => Ok(Name::Current),
        b".." => Ok(Name::Parent),
        _ if name.len() > NAME_MAX => Err(FsError::NameTooLong),
        _ if name.is_empty() || name.contains(&b'/') || name.contains(&0) => Err(FsError::Inval),
        _ => Ok(Name::Entry(name)),
    }
}

/// Requires an entry name; `.` and `..` fail with `otherwise`.
pub(super) fn entry_name(name: &[u8], otherwise: FsError) -> FsResult<&[u8]> {
    if let Name::Entry(name) = classify(name)? { Ok(name) } else { Err(otherwise) }
}

/// Requires a removable name (RFC 1813 sections 3.3.12 and 3.3.13 on `.` and `..`).
fn removable_name(name: &[u8]) -> FsResult<&[u8]> {
    match classify(name)? {
        Name::Current => Err(FsError::Inval),
        Name::Parent => Err(FsError::Exist),
        Name::Entry(name) => Ok(name),
    }
}

impl MemoryFs {
    pub(super) fn lookup_now(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Handle, Attr)> {
        let dir = self.inode(dir)?;
        let st = dir.read()?;
        let entries = st.directory()?;
        check_dir(&st, caller, EXECUTE)?;
        match classify(name)? {
            Name::Current => Ok((self.handle(&dir), self.attr(&dir, &st))),
            Name::Parent => {
                drop(st);
                self.parent(&dir)
            }
            Name::Entry(name) => {
                let child = self.table.get(entries.find(name).ok_or(FsError::NoEnt)?)?;
                let child_st = child.read()?;
                Ok((self.handle(&child), self.attr(&child, &child_st)))
            }
        }
    }

    /// Returns the parent of `dir`, which must not be locked: parents are locked before children.
    pub(super) fn parent(&self, dir: &Inode) -> FsResult<(Handle, Attr)> {
        loop {
            let id = dir.read()?.directory()?.parent();
            // If the parent is gone, a rename has changed it, or `dir` is gone too.
            let Ok(parent) = self.table.get(id) else { continue };
            let Ok(st) = parent.read() else { continue };
            return Ok((self.handle(&parent), self.attr(&parent, &st)));
        }
    }

    /// A step of CREATE: all steps but the last truncate the existing file.
    pub(super) fn create_now(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        how: &CreateHow,
    ) -> FsResult<ControlFlow<Created>> {
        let dir = self.inode(dir)?;
        let mut st = dir.write()?;
        st.directory()?;
        check_dir(&st, caller, EXECUTE)?;
        let name = entry_name(name, FsError::Exist)?;
        if let Some(id) = st.directory()?.find(name) {
            let file = self.table.get(id)?;
            let (created, truncated) = self.create_existing(caller, &dir, &st, &file, how)?;
            drop(st);
            return Ok(if truncated.unfinished {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(created)
            });
        }
        let (set, verifier) = match how {
            CreateHow::Unchecked(set) | CreateHow::Guarded(set) => (*set, None),
            // Without a mode, the client sets it with SETATTR; until then only the owner has access.
            CreateHow::Exclusive(v, set) => (SetAttr { mode: set.mode.or(Some(0o600)), ..*set }, Some(*v)),
        };
        let mut content = Content::new(verifier);
        content.set_size(&self.quota, set.size.unwrap_or(0));
        let created =
            self.add_entry(caller, &dir, &mut st, name, FileKind::Regular, Body::File(content), &set)?;
        Ok(ControlFlow::Break(created))
    }

    /// CREATE if the name exists.
    fn create_existing(
        &self,
        caller: &Identity,
        dir: &Inode,
        dir_st: &InodeState,
        file: &Inode,
        how: &CreateHow,
    ) -> FsResult<(Created, Truncated)> {
        let mut st = file.write()?;
        let Body::File(content) = &st.body else { return Err(FsError::Exist) };
        let size = match how {
            CreateHow::Guarded(_) => return Err(FsError::Exist),
            CreateHow::Exclusive(v, _) if content.verifier() == Some(*v) => None,
            CreateHow::Exclusive(..) => return Err(FsError::Exist),
            CreateHow::Unchecked(set) => set.size,
        };
        let mut truncated = Truncated::default();
        if let Some(size) = size {
            check_values(file.kind, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            check_write(&st, caller)?;
            truncated = self.resize(&mut st, caller, size, self.now())?;
        }
        let dir_attr = self.attr(dir, dir_st);
        let dir = Wcc { before: Some(WccAttr::from(&dir_attr)), after: Some(dir_attr) };
        Ok((Created { handle: self.handle(file), attr: self.attr(file, &st), dir }, truncated))
    }

    pub(super) fn create_node_now(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> FsResult<Created> {
        let dir = self.inode(dir)?;
        let mut st = dir.write()?;
        st.directory()?;
        check_dir(&st, caller, EXECUTE)?;
        let name = entry_name(name, FsError::Exist)?;
        if st.directory()?.find(name).is_some() {
            return Err(FsError::Exist);
        }
        let (kind, body) = match node {
            NewNode::Directory => (FileKind::Directory, Body::Directory(Box::new(Directory::new(dir.id)))),
            NewNode::Symlink(target) => (FileKind::Symlink, Body::Symlink(check_target(target)?)),
            NewNode::Block(major, minor) => (FileKind::Block, Body::Device(*major, *minor)),
            NewNode::Character(major, minor) => (FileKind::Character, Body::Device(*major, *minor)),
            NewNode::Socket => (FileKind::Socket, Body::Plain),
            NewNode::Fifo => (FileKind::Fifo, Body::Plain),
        };
        if matches!(kind, FileKind::Block | FileKind::Character) {
            permission::check_root(caller)?;
        }
        self.add_entry(caller, &dir, &mut st, name, kind, body, set)
    }

    /// Creates an object and its entry in `dir`, which is locked and has no entry of this name.
    #[allow(clippy::too_many_arguments)] // Each is needed, and there are two callers.
    fn add_entry(
        &self,
        caller: &Identity,
        dir: &Inode,
        dir_st: &mut InodeState,
        name: &[u8],
        kind: FileKind,
        body: Body,
        set: &SetAttr,
    ) -> FsResult<Created> {
        check_dir(dir_st, caller, WRITE | EXECUTE)?;
        check_values(kind, set)?;
        let state = self.new_state(caller, dir_st, kind, body, set);
        let child = self.insert(name, kind, state)?;
        let before = Some(WccAttr::from(&self.attr(dir, dir_st)));
        dir_st.directory_mut()?.set(name, child.id);
        if kind == FileKind::Directory {
            dir_st.nlink += 1;
        }
        dir_st.set_mtime_and_ctime(self.now());
        let attr = self.attr(&child, &*child.read()?);
        Ok(Created {
            handle: self.handle(&child),
            attr,
            dir: Wcc { before, after: Some(self.attr(dir, dir_st)) },
        })
    }

    /// Inserts an object into the table, and charges it and its entry `name`.
    fn insert(&self, name: &[u8], kind: FileKind, state: InodeState) -> FsResult<Arc<Inode>> {
        let bytes = object_bytes(&state.body) + entry_bytes(name);
        self.objects.add()?;
        let created = charge(&self.quota, bytes).and_then(|()| {
            let created = self.table.insert(|id| Inode::new(id, kind, state));
            created.inspect_err(|_| self.quota.refund(bytes))
        });
        created.inspect_err(|_| self.objects.remove())
    }

    /// Initial state of an object created in `dir`. A set-GID directory passes its group on. Owner and group
    /// in `set` are applied if `caller` is permitted to set them, and otherwise ignored, as other servers do.
    fn new_state(
        &self,
        caller: &Identity,
        dir: &InodeState,
        kind: FileKind,
        body: Body,
        set: &SetAttr,
    ) -> InodeState {
        let inherits = dir.mode & SET_GID != 0;
        let uid = set.uid.filter(|_| caller.uid == 0).unwrap_or(caller.uid);
        let gid = set.gid.filter(|gid| permission::check_group(caller, *gid).is_ok());
        let gid = gid.unwrap_or(if inherits { dir.gid } else { caller.gid });
        let mode = match kind {
            FileKind::Symlink => 0o777,
            FileKind::Directory => set.mode.unwrap_or(0o755),
            _ => set.mode.unwrap_or(0o644),
        };
        let mut mode = permission::settable_mode(mode & !set.umask, gid, caller);
        if kind == FileKind::Directory && inherits {
            mode |= SET_GID;
        }
        let now = self.now();
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        let mut st = InodeState {
            mode,
            nlink,
            holds: 0,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            change: now.change(),
            body,
            xattrs: None,
        };
        set_times(&mut st, set, now);
        st
    }

    /// Returns the body of the removed object if that was its last link, to be freed.
    pub(super) fn remove_now(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Wcc, Option<Body>)> {
        let dir = self.inode(dir)?;
        let mut st = dir.write()?;
        st.directory()?;
        let name = removable_name(name)?;
        let child = self.removable_entry(caller, &st, name)?;
        if child.is_dir() {
            return Err(FsError::IsDir);
        }
        let mut child_st = child.write()?;
        check_sticky(&st, child_st.uid, caller)?;
        let before = Some(WccAttr::from(&self.attr(&dir, &st)));
        let now = self.now();
        st.directory_mut()?.remove(name);
        self.quota.refund(entry_bytes(name));
        st.set_mtime_and_ctime(now);
        let removed_body = self.unlink(&child, &mut child_st, now);
        let after = Some(self.attr(&dir, &st));
        Ok((Wcc { before, after }, removed_body))
    }

    pub(super) fn rmdir_now(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> FsResult<Wcc> {
        let dir = self.inode(dir)?;
        let mut st = dir.write()?;
        st.directory()?;
        let name = removable_name(name)?;
        let child = self.removable_entry(caller, &st, name)?;
        if !child.is_dir() {
            return Err(FsError::NotDir);
        }
        let mut child_st = child.write()?;
        check_sticky(&st, child_st.uid, caller)?;
        if !child_st.directory()?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        let before = Some(WccAttr::from(&self.attr(&dir, &st)));
        let now = self.now();
        st.directory_mut()?.remove(name);
        self.quota.refund(entry_bytes(name));
        st.nlink -= 1;
        st.set_mtime_and_ctime(now);
        let removed_body = self.unlink(&child, &mut child_st, now);
        let after = Some(self.attr(&dir, &st));
        drop((child_st, st));
        drop(removed_body);
        Ok(Wcc { before, after })
    }

    /// Finds the object of an entry to be removed.
    fn removable_entry(&self, caller: &Identity, dir: &InodeState, name: &[u8]) -> FsResult<Arc<Inode>> {
        check_dir(dir, caller, EXECUTE)?;
        let child = self.table.get(dir.directory()?.find(name).ok_or(FsError::NoEnt)?)?;
        check_dir(dir, caller, WRITE)?;
        Ok(child)
    }

    /// Removes one link of an object (for a directory, the only one). Returns the body if it was the last
    /// one and there is no hold, to be dropped after the locks are released.
    pub(super) fn unlink(&self, inode: &Inode, st: &mut InodeState, now: crate::Time) -> Option<Body> {
        st.set_ctime(now);
        st.nlink = if inode.is_dir() { 0 } else { st.nlink.saturating_sub(1) };
        st.is_dead().then(|| self.dispose(inode, st))
    }

    /// Removes an object that has neither a link nor a hold. Returns the body, to be dropped after the locks are
    /// released.
    pub(super) fn dispose(&self, inode: &Inode, st: &mut InodeState) -> Body {
        // The slots of the content are released when the last reader has dropped them.
        let xattrs = st.xattrs.take();
        self.quota.refund(object_bytes(&st.body) + xattrs.map_or(0, |xattrs| xattrs.bytes()));
        self.objects.remove();
        self.table.remove(inode.id);
        std::mem::replace(&mut st.body, Body::Plain)
    }

    pub(super) fn link_now(
        &self,
        caller: &Identity,
        file: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Attr, Wcc)> {
        let (file, dir) = (self.inode(file)?, self.inode(dir)?);
        let mut st = dir.write()?;
        st.directory()?;
        if file.is_dir() {
            return Err(FsError::Inval);
        }
        check_dir(&st, caller, EXECUTE)?;
        let name = entry_name(name, FsError::Exist)?;
        if st.directory()?.find(name).is_some() {
            return Err(FsError::Exist);
        }
        check_dir(&st, caller, WRITE)?;
        let mut file_st = file.write()?;
        if file_st.nlink == 0 {
            return Err(FsError::NoEnt); // The file has no name, and exists only while it is held.
        }
        if file_st.nlink >= self.config.link_max {
            return Err(FsError::MLink);
        }
        charge(&self.quota, entry_bytes(name))?;
        let before = Some(WccAttr::from(&self.attr(&dir, &st)));
        let now = self.now();
        st.directory_mut()?.set(name, file.id);
        st.set_mtime_and_ctime(now);
        file_st.nlink += 1;
        file_st.set_ctime(now);
        Ok((self.attr(&file, &file_st), Wcc { before, after: Some(self.attr(&dir, &st)) }))
    }
}

fn check_target(target: &[u8]) -> FsResult<Box<[u8]>> {
    if target.len() > TARGET_MAX {
        return Err(FsError::NameTooLong);
    }
    if target.is_empty() || target.contains(&0) {
        return Err(FsError::Inval);
    }
    Ok(target.into())
}
