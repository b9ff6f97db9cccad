//! `millrace chmod`, `chown` and `touch`.

use futures::{StreamExt, stream};
use millrace_client::{
    Error,
    ops::{Attributes, CreateHow, FileHandle, FileType, SetAttributes, SetTime},
};
use millrace_copy::umask;
use millrace_program::{executor, failure::CommandResult};

use super::{each, list::Listing};
use crate::{
    args::{ChmodArgs, ChownArgs, TouchArgs},
    session::{Session, below},
};

/// Number of calls in flight in a directory.
const PARALLEL: usize = 16;

pub(super) fn chmod(args: &ChmodArgs) -> CommandResult {
    let mask = umask();
    let attributes = |a: &Attributes| {
        let mode = args.mode.apply(a.mode & 0o7777, a.file_type == FileType::Directory, mask);
        // A symbolic link has no permissions.
        (a.file_type != FileType::Symlink)
            .then(|| SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    };
    executor::small()?.block_on(each(&args.urls, async |session| {
        change(session, session.resolve().await?, args.recursive, &attributes).await
    }))
}

pub(super) fn chown(args: &ChownArgs) -> CommandResult {
    let (uid, gid) = (args.owner.uid, args.owner.gid);
    let attributes = |_: &Attributes| Some(SetAttributes { uid, gid, ..SetAttributes::default() });
    executor::small()?.block_on(each(&args.urls, async |session| {
        // As chown(1) -R without -H or -L.
        let is_link_changed = args.recursive && !session.wants_dir;
        let found = if is_link_changed { session.resolve_link().await? } else { session.resolve().await? };
        change(session, found, args.recursive, &attributes).await
    }))
}

/// Sets the attributes that `attributes` returns of the object `root` that the URL names and, if `recursive`, of all below
/// it. One that cannot be changed is named on standard error, and the others are changed.
async fn change(
    session: &Session,
    (root, found): (FileHandle, Attributes),
    recursive: bool,
    attributes: &impl Fn(&Attributes) -> Option<SetAttributes>,
) -> CommandResult {
    let set = async |object: FileHandle, found: &Attributes| -> Result<(), Error> {
        match attributes(found) {
            Some(attributes) => session.client.setattr(object, attributes, None).await.map(drop),
            None => Ok(()),
        }
    };
    let failed = |e| session.failed("change", e);
    set(root, &found).await.map_err(failed)?;
    let mut listing = Listing::all(session);
    let is_tree = recursive && found.file_type == FileType::Directory;
    let mut todo: Vec<_> = is_tree.then(|| (root, Vec::new())).into_iter().collect();
    while let Some((directory, path)) = todo.pop() {
        let entries = listing.list_or_name(directory, &path).await.map_err(failed)?.unwrap_or_default();
        let set = entries.iter().map(|e| set(e.handle, &e.attributes));
        let done: Vec<_> = stream::iter(set).buffered(PARALLEL).collect().await;
        for (entry, done) in entries.into_iter().zip(done) {
            let path = below(&path, &entry.name);
            if let Err(e) = done {
                listing.failed("change", &path, e).map_err(failed)?;
            }
            if entry.attributes.file_type == FileType::Directory {
                todo.push((entry.handle, path));
            }
        }
    }
    Ok(listing.outcome())
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
