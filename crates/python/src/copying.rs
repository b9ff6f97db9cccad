//! Copies of files between the local file system and the export, with the copy engine.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_copy::{Error, Event, Item, LocalTree, Options, RemoteTree, Report, Source, Target, TreeCopy};
use tokio::sync::oneshot;

use crate::{
    connection::Mount,
    errors::{Failure, Place, text},
};

/// Copies the local file `from` to the path `to` of the export.
pub(crate) async fn put(
    mount: &Mount,
    from: &Path,
    to: &Path,
    progress: Arc<AtomicU64>,
) -> Result<u64, Failure> {
    let client = mount.client().await?;
    let copied = async {
        let (parent, name) = client.by_handle().resolve_parent(to.as_os_str().as_bytes()).await?;
        // Item::local follows no symbolic link.
        let followed = std::fs::canonicalize(from).map_err(|source| Error::Local {
            action: "open",
            path: from.to_owned(),
            source,
        })?;
        let item = Item::local(&followed, name)?;
        let (source, target) =
            (LocalTree::new(client.arena().clone()), RemoteTree::new(client.by_handle().clone()));
        copy(mount, (source, item), (target, parent), progress).await
    };
    copied.await.map_err(|e| Failure::of_copy(e, Place::local(from), Place::export(to)))
}

/// Copies the file `from` of the export to the local path `to`.
pub(crate) async fn get(
    mount: &Mount,
    from: &Path,
    to: &Path,
    progress: Arc<AtomicU64>,
) -> Result<u64, Failure> {
    let client = mount.client().await?;
    let Some(name) = to.file_name().map(OsStr::as_bytes) else {
        return Err(Failure::Value(format!("{} has no file name", to.display())));
    };
    let into = match to.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let copied = async {
        let (node, attributes) = client.by_handle().resolve(from.as_os_str().as_bytes()).await?;
        let item = Item { path: text(from), name: name.to_vec(), node, meta: (&attributes).into() };
        let (source, target) =
            (RemoteTree::new(client.by_handle().clone()), LocalTree::new(client.arena().clone()));
        copy(mount, (source, item), (target, into), progress).await
    };
    copied.await.map_err(|e| Failure::of_copy(e, Place::export(from), Place::local(to)))
}

/// Copies one file. When the caller drops the future, the copy stops and removes its temporary file in the background.
async fn copy<S: Source, T: Target>(
    mount: &Mount,
    (source, item): (S, Item<S::Node>),
    (target, into): (T, T::Node),
    progress: Arc<AtomicU64>,
) -> Result<u64, Error> {
    let (keep, dropped) = oneshot::channel::<()>();
    let task = mount.runtime.spawn(async move {
        let options = Options { recursive: false, ..Options::default() };
        let count = move |event: Event<'_>| {
            if let Event::Written { bytes } = event {
                progress.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        };
        let copy = TreeCopy::new(&source, &target, options).on_event(count);
        copy.interrupted_by(async { drop(dropped.await) }).run(vec![item], into).await
    });
    let report: Report = task.await.map_err(|_| Error::Task)?;
    drop(keep);
    match report.failed.into_iter().next() {
        Some(failed) => Err(failed.error),
        None => Ok(report.bytes),
    }
}
