//! `millrace chmod`, `chown` and `touch`.

use futures::{StreamExt, stream};
use millrace_cli_common::{
    executor,
    failure::{CommandResult, Failure, Outcome},
};
use millrace_client::{
    Error,
    ops::{CreateHow, FileHandle, SetAttributes, SetTime},
};
use millrace_copy::{FileKind, Metadata, RemoteTree, Source};

use super::each;
use crate::{
    args::{ChmodArgs, ChownArgs, TouchArgs, mask},
    describe::printable,
    file_error::FileError,
    session::{Session, below},
};

/// Number of calls in flight in a directory.
const PARALLEL: usize = 16;

pub(super) fn chmod(args: &ChmodArgs) -> CommandResult {
    let mask = mask();
    let attributes = |meta: &Metadata| {
        let mode = args.mode.apply(meta.mode, meta.kind == FileKind::Directory, mask);
        // A symbolic link has no permissions.
        (meta.kind != FileKind::Symlink)
            .then(|| SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    };
    executor::small()?
        .block_on(each(&args.urls, async |session| change(session, args.recursive, &attributes).await))
}

pub(super) fn chown(args: &ChownArgs) -> CommandResult {
    let (uid, gid) = (args.owner.uid, args.owner.gid);
    let attributes = |_: &Metadata| Some(SetAttributes { uid, gid, ..SetAttributes::default() });
    executor::small()?
        .block_on(each(&args.urls, async |session| change(session, args.recursive, &attributes).await))
}

/// Sets the attributes that `attributes` returns of the object that the URL names and, if `recursive`, of all below it. One
/// that cannot be changed is named on standard error, and the others are changed.
async fn change(
    session: &Session,
    recursive: bool,
    attributes: &impl Fn(&Metadata) -> Option<SetAttributes>,
) -> CommandResult {
    let set = async |object: FileHandle, meta: &Metadata| -> Result<(), Error> {
        match attributes(meta) {
            Some(attributes) => session.client.setattr(object, attributes, None).await.map(drop),
            None => Ok(()),
        }
    };
    let (root, found) = session.resolve().await?;
    let meta = Metadata::from(&found);
    set(root, &meta).await.map_err(|e| session.failed("change", e))?;
    if !recursive || meta.kind != FileKind::Directory {
        return Ok(Outcome::Done);
    }
    let tree = RemoteTree::new(session.client.clone());
    let (mut todo, mut failed) = (vec![(root, Vec::new())], 0_u64);
    let mut name = |path: &[u8], e: &millrace_copy::Error| {
        let (path, text) = (printable(path), &session.text);
        eprintln!("millrace: cannot change {path} in {text}: {}", FileError::from(e));
        failed += 1;
    };
    while let Some((directory, path)) = todo.pop() {
        let entries = match tree.list(&directory).await {
            Err(e) if e.is_fatal() => return Err(Failure::new(FileError::from(&e).of(&session.text))),
            Err(e) => {
                name(&path, &e);
                continue;
            }
            Ok(entries) => entries,
        };
        for (entry, e) in entries.failed {
            name(&below(&path, &entry), &e);
        }
        let set = &set;
        let found = entries.found.iter().map(|e| async move { (e, set(e.node, &e.meta).await) });
        let found: Vec<_> = stream::iter(found).buffered(PARALLEL).collect().await;
        for (entry, done) in found {
            let path = below(&path, &entry.name);
            match done.map_err(millrace_copy::Error::from) {
                Err(e) if e.is_fatal() => return Err(Failure::new(FileError::from(&e).of(&session.text))),
                Err(e) => name(&path, &e),
                Ok(()) => {}
            }
            if entry.meta.kind == FileKind::Directory {
                todo.push((entry.node, path));
            }
        }
    }
    Ok(if failed == 0 { Outcome::Done } else { Outcome::Partial })
}

pub(super) fn touch(args: &TouchArgs) -> CommandResult {
    let time = args.date.map_or(SetTime::ServerTime, SetTime::ClientTime);
    let times = SetAttributes { atime: time, mtime: time, ..SetAttributes::default() };
    executor::small()?.block_on(each(&args.urls, async |session| {
        let object = match session.resolve_optional().await? {
            Some((object, _)) => object,
            None if args.no_create => return Ok(()),
            None => {
                let (dir, name) = session.parent().await?;
                let new = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
                let made = session.client.create(dir, &name, CreateHow::Unchecked(new)).await;
                made.map_err(|e| session.failed("create", e))?.handle
            }
        };
        let set = session.client.setattr(object, times, None).await;
        set.map(drop).map_err(|e| session.failed("set the times of", e))
    }))
}
