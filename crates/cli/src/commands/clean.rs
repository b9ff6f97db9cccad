//! `millrace clean`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_client::{
    is_temporary_name,
    ops::{FileHandle, FileType},
};
use millrace_copy::{Error, FileKind, LocalTree, Metadata, RemoteTree, Source};
use millrace_program::{
    args::url_text,
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
    units::ByteSize,
};

use crate::{
    args::CleanArgs,
    describe::{printable, shown},
    file_error::FileError,
    session::{Session, below, is_url},
};

/// What a search has found, and the number of objects that could not be read or removed.
#[derive(Default)]
struct Found {
    files: u64,
    bytes: u64,
    failed: u64,
}

pub(super) fn run(args: &CleanArgs) -> CommandResult {
    let mut found = Found::default();
    executor::small()?.block_on(async {
        for place in &args.places {
            match search_in(place, args, &mut found).await {
                Ok(()) => {}
                Err(e) if args.places.len() == 1 || e.is_silent() => return Err(e),
                Err(e) => {
                    eprintln!("millrace: {e}");
                    found.failed += 1;
                }
            }
        }
        Ok(())
    })?;
    if found.files > 0 && !args.remove {
        let size = ByteSize(found.bytes).human();
        eprintln!("millrace: {} temporary files, {size}; add --remove to remove them", found.files);
    }
    Ok(if found.failed == 0 { Outcome::Done } else { Outcome::Partial })
}

/// Searches the directory `place` of a server or of this host.
async fn search_in(place: &OsStr, args: &CleanArgs, found: &mut Found) -> Result<(), Failure> {
    if is_url(place) {
        return Session::with(&url_text(place), async |session| {
            let (root, attributes) = session.resolve().await?;
            if attributes.file_type != FileType::Directory {
                return Err(Failure::new(format!("{} is not a directory", session.text)));
            }
            let remove = async |dir: &FileHandle, name: &[u8]| -> Result<(), Error> {
                Ok(session.client.remove(*dir, name).await.map(drop)?)
            };
            let tree = RemoteTree::new(session.client.clone());
            search(&tree, (root, Vec::new(), &session.text), remove, args, found).await
        })
        .await;
    }
    let remove = async |dir: &PathBuf, name: &[u8]| -> Result<(), Error> {
        let path = dir.join(OsStr::from_bytes(name));
        fs::remove_file(&path).map_err(|source| Error::Local { action: "remove", path, source })
    };
    let tree = LocalTree::new(Arena::new(ArenaConfig::default()));
    let name = place.to_string_lossy();
    let root = (PathBuf::from(place), place.as_bytes().to_vec(), &*name);
    search(&tree, root, remove, args, found).await
}

/// Prints the temporary files below the directory `root`, whose path begins their paths and whose name is `place`, and removes
/// them if requested.
async fn search<S: Source>(
    tree: &S,
    (root, path, place): (S::Node, Vec<u8>, &str),
    remove: impl AsyncFn(&S::Node, &[u8]) -> Result<(), Error>,
    args: &CleanArgs,
    found: &mut Found,
) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // The change time: a copy sets the modification time to that of its source before it renames the file.
    let is_old = |meta: &Metadata| i64::try_from(now).is_ok_and(|now| now - meta.ctime.seconds >= args.older);
    let mut failed = |path: &[u8], e: Error| {
        eprintln!("millrace: {}", FileError::from(&e).of(&printable(path)));
        found.failed += 1;
    };
    let mut todo = vec![(root, path)];
    let mut is_root = true;
    while let Some((dir, path)) = todo.pop() {
        let entries = match tree.list(&dir).await {
            Err(e) if is_root || e.is_fatal() => return Err(Failure::new(FileError::from(&e).of(place))),
            Err(e) => {
                failed(&path, e);
                continue;
            }
            Ok(entries) => entries,
        };
        is_root = false;
        for (name, e) in entries.failed {
            failed(&below(&path, &name), e);
        }
        for entry in entries.found.into_iter().rev() {
            let path = below(&path, &entry.name);
            match entry.meta.kind {
                FileKind::Directory => todo.push((entry.node, path)),
                FileKind::File | FileKind::Symlink
                    if is_temporary_name(&entry.name) && is_old(&entry.meta) =>
                {
                    if args.remove
                        && let Err(e) = remove(&dir, &entry.name).await
                    {
                        failed(&path, e);
                        continue;
                    }
                    found.files += 1;
                    found.bytes += entry.meta.size;
                    output::write(&[shown(&path), b"\n".to_vec()].concat())?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}
