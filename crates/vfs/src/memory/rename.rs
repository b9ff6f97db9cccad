//! RENAME. Renames run one at a time; see the module's notes on locks.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;

use super::{
    MemoryFs,
    inode::{Body, Inode, InodeId, State},
    namespace::entry_name,
    permission::{EXECUTE, WRITE, check_dir, check_sticky},
    space::entry_bytes,
};
use crate::{FsError, FsResult, Handle, Identity, Time, Wcc, WccAttr};

/// The deepest directory that something may be renamed out of or into. Paths of programs end long before.
const DEPTH_MAX: usize = 10_000;

type Locked<'a> = RwLockWriteGuard<'a, State>;

/// The one or two directories of a rename, locked.
struct Dirs<'a> {
    from: Locked<'a>,
    /// `None`: the same as `from`.
    to: Option<Locked<'a>>,
}

impl Dirs<'_> {
    fn to(&self) -> &State {
        self.to.as_ref().unwrap_or(&self.from)
    }

    fn to_mut(&mut self) -> &mut State {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// What is moved, and what is in its way.
struct Objects {
    moved: Arc<Inode>,
    replaced: Option<Arc<Inode>>,
}

/// A rename whose directories were found.
struct Rename<'a> {
    who: &'a Identity,
    from: &'a [u8],
    to: &'a [u8],
    to_id: InodeId,
    /// The directories above either one, and the directories themselves; empty if both are the same.
    above_from: Vec<InodeId>,
    above_to: Vec<InodeId>,
}

impl MemoryFs {
    pub(super) fn rename_now(
        &self,
        who: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> FsResult<(Wcc, Wcc)> {
        let _one_at_a_time = self.rename_lock.lock();
        let (from_dir, to_dir) = (self.inode(from_dir)?, self.inode(to_dir)?);
        if !from_dir.is_dir() || !to_dir.is_dir() {
            return Err(FsError::NotDir);
        }
        // Within one directory nothing that is moved or replaced can be above it.
        let same = from_dir.id == to_dir.id;
        let call = Rename {
            who,
            from: entry_name(from, FsError::Inval)?,
            to: entry_name(to, FsError::Inval)?,
            to_id: to_dir.id,
            above_from: self.above_unless(same, &from_dir)?,
            above_to: self.above_unless(same, &to_dir)?,
        };
        let mut dirs = call.lock(&from_dir, &to_dir)?;
        let wcc_before = |st: &State, inode: &Inode| Some(WccAttr::from(&self.attr(inode, st)));
        let before = (wcc_before(&dirs.from, &from_dir), wcc_before(dirs.to(), &to_dir));
        let gone = match self.find(&call, &dirs)? {
            Some(objects) => self.carry_out(&call, &mut dirs, &objects)?,
            None => None,
        };
        let after = (self.attr(&from_dir, &dirs.from), self.attr(&to_dir, dirs.to()));
        drop(dirs);
        drop(gone);
        Ok((Wcc { before: before.0, after: Some(after.0) }, Wcc { before: before.1, after: Some(after.1) }))
    }

    /// `dir` and the directories above it, unless that is `pointless`. They stay as they are while renames are
    /// locked out. A tree deeper than [`DEPTH_MAX`] is not searched to its end, since all other renames wait.
    fn above_unless(&self, pointless: bool, dir: &Arc<Inode>) -> FsResult<Vec<InodeId>> {
        let mut out = Vec::new();
        if pointless {
            return Ok(out);
        }
        out.push(dir.id);
        let mut id = dir.read()?.directory()?.parent();
        while out.last() != Some(&id) {
            if out.len() >= DEPTH_MAX {
                return Err(FsError::NameTooLong);
            }
            out.push(id);
            id = self.table.get(id)?.read()?.directory()?.parent();
        }
        Ok(out)
    }

    /// Finds the objects and checks that they may be renamed; `None` if there is nothing to do.
    fn find(&self, call: &Rename<'_>, dirs: &Dirs<'_>) -> FsResult<Option<Objects>> {
        check_dir(&dirs.from, call.who, EXECUTE)?;
        check_dir(dirs.to(), call.who, EXECUTE)?;
        let moved_id = dirs.from.directory()?.find(call.from).ok_or(FsError::NoEnt)?;
        let replaced_id = dirs.to().directory()?.find(call.to);
        check_dir(&dirs.from, call.who, WRITE)?;
        check_dir(dirs.to(), call.who, WRITE)?;
        if replaced_id == Some(moved_id) {
            return Ok(None);
        }
        if call.above_to.contains(&moved_id) {
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
            if call.above_from.contains(&replaced.id) {
                return Err(FsError::NotEmpty);
            }
        }
        Ok(Some(Objects { moved, replaced }))
    }

    /// Checks what needs the objects' locks, and renames. Gives the body of a replaced object that is gone.
    fn carry_out(&self, call: &Rename<'_>, dirs: &mut Dirs<'_>, objects: &Objects) -> FsResult<Option<Body>> {
        let (mut moved, replaced) = objects.lock()?;
        check_sticky(&dirs.from, moved.uid, call.who)?;
        let is_dir = objects.moved.is_dir();
        if is_dir && dirs.to.is_some() {
            check_dir(&moved, call.who, WRITE)?; // Its `..` changes.
        }
        if let Some(replaced) = &replaced {
            check_sticky(dirs.to(), replaced.uid, call.who)?;
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
        moved.changed(now);
        dirs.enter(call, objects.moved.id, now)?;
        match (replaced, &objects.replaced) {
            (Some(mut st), Some(inode)) => Ok(self.unlink(inode, &mut st, now)),
            _ => Ok(None),
        }
    }

    /// One name goes, and another one comes unless it `exists`.
    fn charge_names(&self, call: &Rename<'_>, exists: bool) -> FsResult<()> {
        let new = if exists { 0 } else { entry_bytes(call.to) };
        self.quota.recharge(new, entry_bytes(call.from)).map_err(|_| FsError::NoSpc)
    }
}

impl Rename<'_> {
    /// Locks the directories, the upper one first.
    fn lock<'a>(&self, from: &'a Inode, to: &'a Inode) -> FsResult<Dirs<'a>> {
        if from.id == to.id {
            return Ok(Dirs { from: from.write()?, to: None });
        }
        let to_above_from = self.above_from.contains(&to.id);
        let from_above_to = self.above_to.contains(&from.id);
        if from_above_to || (!to_above_from && from.id.index < to.id.index) {
            let from = from.write()?;
            Ok(Dirs { from, to: Some(to.write()?) })
        } else {
            let to = to.write()?;
            Ok(Dirs { from: from.write()?, to: Some(to) })
        }
    }
}

impl Dirs<'_> {
    /// Changes the entries and the directories' times.
    fn enter(&mut self, call: &Rename<'_>, moved: InodeId, now: Time) -> FsResult<()> {
        match &mut self.to {
            None => self.from.directory_mut()?.rename(call.from, call.to),
            Some(to) => {
                self.from.directory_mut()?.remove(call.from);
                to.directory_mut()?.set(call.to, moved);
                to.modified(now);
            }
        }
        self.from.modified(now);
        Ok(())
    }
}

impl Objects {
    /// Locks both, the lower index first.
    fn lock(&self) -> FsResult<(Locked<'_>, Option<Locked<'_>>)> {
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
