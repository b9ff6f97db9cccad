//! RENAME. Renames are serialized; see the notes on locks in the parent module.

use std::sync::Arc;

use millrace_runtime::sync::RwLockWriteGuard;

use super::{
    MemoryFs,
    content::count_visits,
    inode::{Body, Inode, InodeId, InodeState},
    namespace::entry_name,
    permission::{EXECUTE, WRITE, check_dir, check_sticky},
    space::entry_bytes,
};
use crate::{FsError, FsResult, Handle, Identity, Time, Wcc, WccAttr};

/// Maximum depth of a directory that is source or target of a rename. Usable paths (`PATH_MAX`) have half of it.
const MAX_DEPTH: usize = 4096;

type StateGuard<'a> = RwLockWriteGuard<'a, InodeState>;

/// The locked source and target directories of a rename.
struct Dirs<'a> {
    from: StateGuard<'a>,
    /// `None`: the same as `from`.
    to: Option<StateGuard<'a>>,
}

impl Dirs<'_> {
    fn to(&self) -> &InodeState {
        self.to.as_ref().unwrap_or(&self.from)
    }

    fn to_mut(&mut self) -> &mut InodeState {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// The renamed object and the one it replaces.
struct RenameObjects {
    moved: Arc<Inode>,
    replaced: Option<Arc<Inode>>,
}

/// Parameters of a rename.
struct Rename<'a> {
    caller: &'a Identity,
    from: &'a [u8],
    to: &'a [u8],
    to_id: InodeId,
    /// The directories and their ancestors; empty if source and target are the same directory.
    ancestors_from: Vec<InodeId>,
    ancestors_to: Vec<InodeId>,
}

impl MemoryFs {
    /// Returns the body of a replaced object whose last link is gone, to be freed.
    pub(super) fn rename_now(
        &self,
        caller: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> FsResult<((Wcc, Wcc), Option<Body>)> {
        let _one_at_a_time = self.rename_lock.lock();
        let (from_dir, to_dir) = (self.inode(from_dir)?, self.inode(to_dir)?);
        if !from_dir.is_dir() || !to_dir.is_dir() {
            return Err(FsError::NotDir);
        }
        // Within one directory, neither object can be an ancestor of the directory.
        let same = from_dir.id == to_dir.id;
        let call = Rename {
            caller,
            from: entry_name(from, FsError::Inval)?,
            to: entry_name(to, FsError::Inval)?,
            to_id: to_dir.id,
            ancestors_from: self.ancestors(same, &from_dir)?,
            ancestors_to: self.ancestors(same, &to_dir)?,
        };
        let mut dirs = call.lock(&from_dir, &to_dir)?;
        let wcc_before = |st: &InodeState, inode: &Inode| Some(WccAttr::from(&self.attr(inode, st)));
        let before = (wcc_before(&dirs.from, &from_dir), wcc_before(dirs.to(), &to_dir));
        let removed_body = match self.resolve(&call, &dirs)? {
            Some(objects) => self.execute(&call, &mut dirs, &objects)?,
            None => None,
        };
        let after = (self.attr(&from_dir, &dirs.from), self.attr(&to_dir, dirs.to()));
        let wcc = |before, after| Wcc { before, after: Some(after) };
        Ok(((wcc(before.0, after.0), wcc(before.1, after.1)), removed_body))
    }

    /// Returns `dir` and its ancestors, or nothing if `skip`. They are constant while the rename lock is
    /// held. Fails beyond [`MAX_DEPTH`], because all other renames wait.
    fn ancestors(&self, skip: bool, dir: &Arc<Inode>) -> FsResult<Vec<InodeId>> {
        let mut out = Vec::new();
        if skip {
            return Ok(out);
        }
        out.push(dir.id);
        let mut id = dir.read()?.directory()?.parent();
        while out.last() != Some(&id) {
            if out.len() >= MAX_DEPTH {
                return Err(FsError::NameTooLong);
            }
            out.push(id);
            count_visits(1);
            id = self.table.get(id)?.read()?.directory()?.parent();
        }
        Ok(out)
    }

    /// Finds the objects and checks permissions. `None` if there is nothing to do.
    fn resolve(&self, call: &Rename<'_>, dirs: &Dirs<'_>) -> FsResult<Option<RenameObjects>> {
        check_dir(&dirs.from, call.caller, EXECUTE)?;
        check_dir(dirs.to(), call.caller, EXECUTE)?;
        let moved_id = dirs.from.directory()?.find(call.from).ok_or(FsError::NoEnt)?;
        let replaced_id = dirs.to().directory()?.find(call.to);
        check_dir(&dirs.from, call.caller, WRITE)?;
        check_dir(dirs.to(), call.caller, WRITE)?;
        if replaced_id == Some(moved_id) {
            return Ok(None);
        }
        if call.ancestors_to.contains(&moved_id) {
            return Err(FsError::Inval);
        }
        let moved = self.table.get(moved_id)?;
        let replaced = replaced_id.map(|id| self.table.get(id)).transpose()?;
        if let Some(replaced) = &replaced {
            match (moved.is_dir(), replaced.is_dir()) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                _ => {}
            }
            if call.ancestors_from.contains(&replaced.id) {
                return Err(FsError::NotEmpty);
            }
        }
        Ok(Some(RenameObjects { moved, replaced }))
    }

    /// Performs the checks that need the objects' locks, then renames. Returns the body of a replaced object whose last
    /// link is gone.
    fn execute(
        &self,
        call: &Rename<'_>,
        dirs: &mut Dirs<'_>,
        objects: &RenameObjects,
    ) -> FsResult<Option<Body>> {
        let (mut moved, replaced) = objects.lock()?;
        check_sticky(&dirs.from, moved.uid, call.caller)?;
        let is_dir = objects.moved.is_dir();
        if is_dir && dirs.to.is_some() {
            check_dir(&moved, call.caller, WRITE)?; // The `..` entry of the moved directory changes.
        }
        if let Some(replaced) = &replaced {
            check_sticky(dirs.to(), replaced.uid, call.caller)?;
            if is_dir && !replaced.directory()?.is_empty() {
                return Err(FsError::NotEmpty);
            }
        }
        self.charge_names(call, replaced.is_some())?;
        let now = self.now();
        if is_dir {
            moved.directory_mut()?.set_parent(call.to_id);
            dirs.from.nlink -= 1;
            dirs.to_mut().nlink += u32::from(replaced.is_none());
        }
        moved.set_ctime(now);
        dirs.update_entries(call, objects.moved.id, now)?;
        match (replaced, &objects.replaced) {
            (Some(mut st), Some(inode)) => Ok(self.unlink(inode, &mut st, now)),
            _ => Ok(None),
        }
    }

    /// Charges the new name, unless it exists, and refunds the old one.
    fn charge_names(&self, call: &Rename<'_>, exists: bool) -> FsResult<()> {
        let new = if exists { 0 } else { entry_bytes(call.to) };
        self.quota.recharge(new, entry_bytes(call.from)).map_err(|_| FsError::NoSpc)
    }
}

impl Rename<'_> {
    /// Locks the directories, ancestors first.
    fn lock<'a>(&self, from: &'a Inode, to: &'a Inode) -> FsResult<Dirs<'a>> {
        if from.id == to.id {
            return Ok(Dirs { from: from.write()?, to: None });
        }
        let to_is_ancestor = self.ancestors_from.contains(&to.id);
        let from_is_ancestor = self.ancestors_to.contains(&from.id);
        if from_is_ancestor || (!to_is_ancestor && from.id.index < to.id.index) {
            let from = from.write()?;
            Ok(Dirs { from, to: Some(to.write()?) })
        } else {
            let to = to.write()?;
            Ok(Dirs { from: from.write()?, to: Some(to) })
        }
    }
}

impl Dirs<'_> {
    /// Updates the entries and the times of the directories.
    fn update_entries(&mut self, call: &Rename<'_>, moved: InodeId, now: Time) -> FsResult<()> {
        match &mut self.to {
            None => self.from.directory_mut()?.rename(call.from, call.to),
            Some(to) => {
                self.from.directory_mut()?.remove(call.from);
                to.directory_mut()?.set(call.to, moved);
                to.set_mtime_and_ctime(now);
            }
        }
        self.from.set_mtime_and_ctime(now);
        Ok(())
    }
}

impl RenameObjects {
    /// Locks both objects in the order of their index.
    fn lock(&self) -> FsResult<(StateGuard<'_>, Option<StateGuard<'_>>)> {
        match &self.replaced {
            None => Ok((self.moved.write()?, None)),
            Some(replaced) if self.moved.id.index < replaced.id.index => {
                let moved = self.moved.write()?;
                Ok((moved, Some(replaced.write()?)))
            }
            Some(replaced) => {
                let replaced = replaced.write()?;
                Ok((self.moved.write()?, Some(replaced)))
            }
        }
    }
}
