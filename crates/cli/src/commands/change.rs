//! `millrace rm`, `mkdir`, `mv` and `ln`.

use std::os::unix::ffi::OsStrExt;

use millrace_client::{
    Error,
    ops::{DirEntry, FileHandle, FileType, SetAttributes, Status},
};
use millrace_copy::is_valid_name;
use millrace_program::{
    args::url_text,
    executor,
    failure::{CommandResult, Failure, Outcome},
};

use super::each;
use crate::{
    args::{LnArgs, MkdirArgs, MvArgs, RmArgs},
    file_error::is_gone,
    session::{Session, below, last_component},
};

pub(super) fn rm(args: &RmArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        let found = match session.resolve_parent().await {
            Ok((dir, name)) => session.client.lookup(dir, &name).await,
            Err(Some(e)) => Err(e),
            Err(None) => return Err(session.is_root()),
        };
        let found = match found {
            Err(e) if args.force && e.is_not_found() => return Ok(Outcome::Done),
            other => other.map_err(|e| session.failed("remove", e))?,
        };
        if found.attributes.file_type == FileType::Directory && !args.recursive {
            return Err(Failure::new(format!(
                "{} is a directory; add -r to remove it with its contents",
                session.text
            )));
        }
        remove_tree(session).await
    }))
}

/// Removes the object that `session` names, with its contents. An entry that cannot be removed is named on standard error,
/// and the others are removed.
pub(crate) async fn remove_tree(session: &Session) -> CommandResult {
    let (dir, name) = session.parent().await?;
    let failed = |e| session.failed("remove", e);
    let found = session.client.lookup(dir, &name).await.map_err(failed)?;
    if found.attributes.file_type != FileType::Directory {
        ignore_gone(session.client.remove(dir, &name).await).map_err(failed)?;
        return Ok(Outcome::Done);
    }
    let mut removal = Removal { session, removed: 0, failed: 0 };
    removal.empty(found.handle).await.map_err(|e| session.failed("empty", e))?;
    match (removal.failed, removal.removed) {
        (0, _) => {
            ignore_gone(session.client.rmdir(dir, &name).await).map_err(failed)?;
            Ok(Outcome::Done)
        }
        (_, 0) => Ok(Outcome::Failed),
        _ => Ok(Outcome::Partial),
    }
}

/// The removal of the contents of a directory.
struct Removal<'s> {
    session: &'s Session,
    /// The number of entries removed.
    removed: u64,
    /// The number of entries that could not be removed. Each is named on standard error.
    failed: u64,
}

/// A directory that is being emptied.
struct Level {
    dir: FileHandle,
    /// Its path below the root. It is removed when it is empty.
    path: Vec<u8>,
    /// The remaining subdirectories.
    below: Vec<(FileHandle, Vec<u8>)>,
    /// The number of failures before its first entry.
    failed_before: u64,
}

impl Removal<'_> {
    /// Removes the contents of `root`. Symbolic links are removed, not followed.
    async fn empty(&mut self, root: FileHandle) -> Result<(), Error> {
        let entries = self.session.client.readdir(root).await?;
        let mut levels = vec![self.open_level(root, Vec::new(), entries).await?];
        while let Some(level) = levels.last_mut() {
            if let Some((dir, name)) = level.below.pop() {
                let path = below(&level.path, &name);
                match self.session.client.readdir(dir).await {
                    Ok(entries) => {
                        let next = self.open_level(dir, path, entries).await?;
                        levels.push(next);
                    }
                    Err(e) if is_gone(&e) => {}
                    Err(e) => self.failed(&path, e)?,
                }
                continue;
            }
            let Some(done) = levels.pop() else { break };
            // A directory with an entry that could not be removed remains; it needs no message.
            if let Some(above) = levels.last()
                && done.failed_before == self.failed
            {
                let name = done.path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                let removed = self.session.client.rmdir(above.dir, name).await;
                self.ended(&done.path, removed)?;
            }
        }
        Ok(())
    }

    /// Removes all entries of `dir` except directories, which it returns.
    async fn open_level(
        &mut self,
        dir: FileHandle,
        path: Vec<u8>,
        entries: Vec<DirEntry>,
    ) -> Result<Level, Error> {
        let (client, failed_before) = (&self.session.client, self.failed);
        let mut directories = Vec::new();
        for e in entries {
            if e.is_dot() {
                continue;
            }
            let path = below(&path, &e.name);
            if !is_valid_name(&e.name) {
                self.session.refused_name("remove", &path);
                self.failed += 1;
                continue;
            }
            let found = match (e.handle, e.attributes) {
                (Some(h), Some(a)) => Ok((h, a.file_type)),
                _ => client.lookup(dir, &e.name).await.map(|o| (o.handle, o.attributes.file_type)),
            };
            match found {
                Ok((handle, FileType::Directory)) => directories.push((handle, e.name)),
                // The type of an entry is unknown if LOOKUP is denied; REMOVE does not need it.
                _ => {
                    let removed = client.remove(dir, &e.name).await;
                    self.ended(&path, removed)?;
                }
            }
        }
        Ok(Level { dir, path, below: directories, failed_before })
    }

    /// Counts the removal of the entry `path`.
    fn ended<T>(&mut self, path: &[u8], removed: Result<T, Error>) -> Result<(), Error> {
        match ignore_gone(removed) {
            Ok(()) => self.removed += 1,
            Err(e) => self.failed(path, e)?,
        }
        Ok(())
    }

    /// Names an entry that cannot be removed. Returns the error if other calls would fail too.
    fn failed(&mut self, path: &[u8], e: Error) -> Result<(), Error> {
        self.session.failed_below("remove", path, e)?;
        self.failed += 1;
        Ok(())
    }
}

/// Treats an object that another client has removed as success.
fn ignore_gone<T>(r: Result<T, Error>) -> Result<(), Error> {
    match r {
        Err(e) if !is_gone(&e) => Err(e),
        _ => Ok(()),
    }
}

pub(super) fn mkdir(args: &MkdirArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        if args.parents {
            return make_all(session, args.mode).await;
        }
        let (dir, name) = match session.resolve_parent().await {
            Err(Some(e)) if e.is_not_found() => {
                return Err(Failure::new(format!(
                    "cannot create {}: its parent directory does not exist; add -p to create it too",
                    session.text
                )));
            }
            Err(Some(e)) => return Err(session.failed("find the directory of", e)),
            Err(None) => return Err(session.is_root()),
            Ok(found) => found,
        };
        let made = session.client.mkdir(dir, &name, mode(args.mode)).await;
        made.map(drop).map_err(|e| session.failed("create", e))
    }))
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Creates all missing directories of the path.
async fn make_all(session: &Session, bits: u32) -> Result<(), Failure> {
    let parts: Vec<&[u8]> =
        session.path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    let mut path = Vec::new();
    for part in parts {
        let above = path.clone();
        path.push(b'/');
        path.extend_from_slice(part);
        if part == b".." {
            continue;
        }
        let (dir, _) = session.client.resolve(&above).await.map_err(|e| session.failed("create", e))?;
        match session.client.mkdir(dir, part, mode(bits)).await {
            Ok(_) => {}
            Err(e) if e.status() == Some(Status::Exist) => {}
            Err(e) => return Err(session.failed("create", e)),
        }
    }
    let (_, a) = session.client.resolve(&path).await.map_err(|e| session.failed("create", e))?;
    if a.file_type != FileType::Directory {
        return Err(Failure::new(format!("{} exists and is not a directory", session.text)));
    }
    Ok(())
}

/// Returns the target directory and name for an object called `name`: `to` is a directory, or the new name.
async fn resolve_target(to: &Session, name: Vec<u8>) -> Result<(FileHandle, Vec<u8>), Failure> {
    match to.resolve_optional().await? {
        Some((dir, a)) if a.file_type == FileType::Directory => Ok((dir, name)),
        _ if to.wants_dir => Err(Failure::new(format!(
            "{} is not a directory; create it first, or omit the trailing /",
            to.text
        ))),
        _ => to.parent().await,
    }
}

fn check_same_export(a: &Session, b: &Session, instead: &str) -> Result<(), Failure> {
    if a.shares_export_with(b) {
        return Ok(());
    }
    Err(Failure::new(format!("{} and {} are in different exports; {instead}", a.text, b.text)))
}

pub(super) fn mv(args: &MvArgs) -> CommandResult {
    executor::small()?.block_on(Session::with(&args.from, async |from| {
        Session::with(&args.to, async |to| rename(from, to).await).await
    }))
}

async fn rename(from: &Session, to: &Session) -> CommandResult {
    check_same_export(from, to, "use `millrace cp`, then `millrace rm`")?;
    let (from_dir, from_name) = from.parent().await?;
    let (to_dir, to_name) = resolve_target(to, from_name.clone()).await?;
    let moved = from.client.rename(from_dir, &from_name, to_dir, &to_name).await;
    moved.map_err(|e| match e.status() {
        Some(Status::Inval) => Failure::new(format!(
            "cannot move {} to {}: a directory cannot be moved into itself, and a name cannot be . or ..",
            from.text, to.text
        )),
        _ => from.failed("move", e),
    })?;
    Ok(Outcome::Done)
}

pub(super) fn ln(args: &LnArgs) -> CommandResult {
    executor::small()?.block_on(Session::with(&args.link, async |link| {
        if args.symbolic {
            return make_symlink(args.target.as_bytes(), link).await;
        }
        Session::with(&url_text(&args.target), async |target| make_link(target, link).await).await
    }))
}

async fn make_symlink(target: &[u8], link: &Session) -> CommandResult {
    let last = last_component(target).unwrap_or_default();
    let (dir, name) = resolve_target(link, last.to_vec()).await?;
    let made = link.client.symlink(dir, &name, target, mode(0o777)).await;
    made.map_err(|e| link.failed("create", e))?;
    Ok(Outcome::Done)
}

async fn make_link(target: &Session, link: &Session) -> CommandResult {
    let instead = "a hard link must be in the same export: use -s, or `millrace cp`";
    check_same_export(target, link, instead)?;
    let (file, a) = target.resolve_link().await?;
    if a.file_type == FileType::Directory {
        return Err(Failure::new(format!(
            "{} is a directory, which cannot have hard links; use -s for a symbolic link",
            target.text
        )));
    }
    let (dir, name) = resolve_target(link, target.name()).await?;
    link.client.link(file, dir, &name).await.map_err(|e| link.failed("create", e))?;
    Ok(Outcome::Done)
}
