//! `millrace put`, `get` and `cp`.

use std::{
    collections::HashSet,
    ffi::OsStr,
    io::IsTerminal,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_cli_common::{
    executor,
    failure::{CommandResult, Failure},
    output,
};
use millrace_copy::{
    Existing, FileKind, Item, LocalTree, Metadata, Options, Preserve, RemoteTree, Report, Source, Target,
    TreeCopy,
};
use millrace_nfs::v3::{FileHandle, FileType};

use crate::{
    args::{CopyArgs, CpArgs, GetArgs, PutArgs},
    copy_summary::{CopySummary, FailedFile},
    file_error::FileError,
    progress::CopyProgress,
    session::{self, Session, is_url},
};

pub(super) fn put(args: &PutArgs) -> CommandResult {
    let (to, from) = split(&args.paths)?;
    if let Some(url) = from.iter().find(|f| is_url(f)) {
        return Err(Failure::usage(format!("put copies local files, but {url} is a URL; use get or cp")));
    }
    if !is_url(to) {
        return Err(Failure::usage(format!(
            "put copies to a server, but {to} is not a URL; use nfs://HOST/EXPORT/PATH"
        )));
    }
    transfer(from, to, &args.copy)
}

pub(super) fn get(args: &GetArgs) -> CommandResult {
    let (from, to) = args.split();
    if let Some(path) = from.iter().find(|f| !is_url(f)) {
        return Err(Failure::usage(format!(
            "get copies from a server, but {path} is not a URL; use nfs://HOST/EXPORT/PATH, or put"
        )));
    }
    transfer(&from, &to, &args.copy)
}

pub(super) fn cp(args: &CpArgs) -> CommandResult {
    let (to, from) = split(&args.paths)?;
    if !is_url(to) && from.iter().all(|f| !is_url(f)) {
        return Err(Failure::usage("neither source nor target is a URL; use cp(1) for local copies"));
    }
    transfer(from, to, &args.copy)
}

fn split(paths: &[String]) -> Result<(&String, &[String]), Failure> {
    paths.split_last().ok_or_else(|| Failure::usage("name a source and a target"))
}

impl From<&CopyArgs> for Options {
    fn from(a: &CopyArgs) -> Self {
        Self {
            recursive: a.recursive,
            verify: a.verify,
            atomic: a.atomic,
            hard_links: a.hard_links,
            preserve: Preserve { owner: a.owner },
            parallel: a.parallel.into(),
            outstanding: a.outstanding.into(),
            record: a.record.map(|s| usize::try_from(s.0).unwrap_or(usize::MAX)),
        }
    }
}

fn transfer(from: &[String], to: &str, args: &CopyArgs) -> CommandResult {
    let rt = executor::large()?;
    let report = rt.block_on(async {
        if is_url(to) {
            let to_server = async |session: &Session| {
                let target = Destination::remote(session, from.len()).await?;
                let linked = async |path: Vec<u8>| linked_remotely(session, &path).await;
                let tree = RemoteTree::new(session.client.clone());
                all(from, &tree, (target, &session.path), &linked, Some(session), args).await
            };
            Session::open_again(to).await?.closed_after(to_server).await
        } else {
            let target = Destination::local(Path::new(to), from.len())?;
            let linked = async |path: Vec<u8>| linked_locally(Path::new(OsStr::from_bytes(&path)));
            all(from, &local_tree(), (target, to.as_bytes()), &linked, None, args).await
        }
    })?;
    // Do not wait for threads that are blocked on an unreachable server.
    rt.shutdown_background();
    if !args.json && !args.quiet && std::io::stderr().is_terminal() {
        eprintln!("{report}");
    }
    if args.json {
        output::line(&serde_json::to_string(&report).unwrap_or_default())?;
    }
    Ok(report.outcome())
}

fn local_tree() -> LocalTree {
    LocalTree::new(Arena::new(ArenaConfig::default()))
}

/// Target of the copies.
struct Destination<N> {
    dir: N,
    /// The new name of a single copy; `None` if each copy keeps the name of its source.
    name: Option<Vec<u8>>,
}

impl Destination<FileHandle> {
    async fn remote(session: &Session, sources: usize) -> Result<Self, Failure> {
        match session.resolve_optional().await? {
            Some((dir, a)) if a.file_type == FileType::Directory => return Ok(Self { dir, name: None }),
            found => check_single(&session.text, sources, session.wants_dir, found.is_some())?,
        }
        let (dir, name) = session.parent().await?;
        Ok(Self { dir, name: Some(name) })
    }
}

impl Destination<PathBuf> {
    fn local(path: &Path, sources: usize) -> Result<Self, Failure> {
        if path.is_dir() {
            return Ok(Self { dir: path.to_owned(), name: None });
        }
        let wants_dir = path.as_os_str().as_bytes().ends_with(b"/");
        check_single(&path.display().to_string(), sources, wants_dir, path.exists())?;
        let no_name = || Failure::new(format!("{} does not end with a file name", path.display()));
        let name = path.file_name().ok_or_else(no_name)?.as_bytes().to_vec();
        let dir = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        if !dir.is_dir() {
            return Err(Failure::new(format!(
                "the directory {} does not exist; create it first",
                dir.display()
            )));
        }
        Ok(Self { dir, name: Some(name) })
    }
}

/// Refuses a target that is no directory where only a directory will do.
fn check_single(target: &str, sources: usize, wants_dir: bool, exists: bool) -> Result<(), Failure> {
    if sources == 1 && !wants_dir {
        return Ok(());
    }
    let what = if exists { "is not a directory" } else { "does not exist" };
    Err(Failure::new(format!(
        "{target} {what}, but the target must be a directory; create it with mkdir first"
    )))
}

/// The object of the export that the symbolic link at `path` refers to; `None` if there is no link.
async fn linked_remotely(session: &Session, path: &[u8]) -> Result<Option<Existing<FileHandle>>, Failure> {
    let failed = |e| session.failed("find the target of a symbolic link in", e);
    match session.client.resolve_link(path).await {
        Ok((_, a)) if a.file_type == FileType::Symlink => {}
        Ok(_) => return Ok(None),
        Err(e) if e.is_not_found() => return Ok(None),
        Err(e) => return Err(failed(e)),
    }
    match session.client.resolve(path).await {
        Ok((node, a)) => Ok(Some(Existing { node, meta: (&a).into(), through_link: true })),
        Err(e) if e.is_not_found() => Err(dangling(&String::from_utf8_lossy(path))),
        Err(e) => Err(failed(e)),
    }
}

/// As [`linked_remotely`], in the local file system.
fn linked_locally(path: &Path) -> Result<Option<Existing<PathBuf>>, Failure> {
    if !path.is_symlink() {
        return Ok(None);
    }
    match path.metadata() {
        Ok(m) => Ok(Some(Existing { node: path.to_owned(), meta: (&m).into(), through_link: true })),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(dangling(&path.display().to_string())),
        Err(e) => Err(FileError::local("find the target of", path, &e).into()),
    }
}

fn dangling(path: &str) -> Failure {
    Failure::new(format!(
        "{path} is a symbolic link to a file that does not exist; remove the link or choose another target"
    ))
}

/// Copies the sources sequentially. Each copy has many files in flight.
async fn all<T: Target>(
    from: &[String],
    target: &T,
    (destination, path): (Destination<T::Node>, &[u8]),
    linked: &impl AsyncFn(Vec<u8>) -> Result<Option<Existing<T::Node>>, Failure>,
    target_session: Option<&Session>,
    args: &CopyArgs,
) -> Result<CopySummary, Failure> {
    // The object that a link at the name of a copy refers to. Only files are written through links.
    let over = async |name: &[u8], kind: FileKind| match (kind, &destination.name) {
        (FileKind::File, Some(_)) => linked(path.to_vec()).await,
        (FileKind::File, None) => linked([path, b"/", name].concat()).await,
        _ => Ok(None),
    };
    // Reject an invalid URL before the first copy.
    for url in from.iter().filter(|f| is_url(f)) {
        session::parse(url)?;
    }
    let mut total = CopySummary::default();
    let mut names = HashSet::new();
    for source in from {
        match one(source, target, (&destination, &over), target_session, &mut names, args).await {
            Ok(report) => total.add(report),
            Err(e) if from.len() == 1 => return Err(e),
            // Continue with the other sources.
            Err(e) => {
                eprintln!("millrace: {e}");
                total.failed.push(FailedFile { path: source.clone(), error: e.to_string() });
            }
        }
        if total.interrupted || total.stopped {
            break;
        }
    }
    Ok(total)
}

/// Copies one source. `names` are the names of the previous sources at the target.
async fn one<T: Target>(
    source: &str,
    target: &T,
    (destination, over): (
        &Destination<T::Node>,
        &impl AsyncFn(&[u8], FileKind) -> Result<Option<Existing<T::Node>>, Failure>,
    ),
    target_session: Option<&Session>,
    names: &mut HashSet<Vec<u8>>,
    args: &CopyArgs,
) -> Result<Report, Failure> {
    let mut unique = |name: &[u8]| {
        let conflict = || format!("{source} would replace another source of this copy; copy it separately");
        if names.insert(name.to_vec()) { Ok(()) } else { Err(Failure::new(conflict())) }
    };
    if is_url(source) {
        let from_server = async |session: &Session| {
            refuse_loop(session, target_session)?;
            // With one client for both files, the server can copy.
            let same = target_session.filter(|to| to.is_same_mount(session));
            let tree = RemoteTree::new(same.unwrap_or(session).client.clone());
            let item = remote_item(session, args.recursive).await?;
            unique(&item.name)?;
            let over = over(&item.name, item.meta.kind).await?;
            Ok(run((&tree, item), target, (destination, over), args).await)
        };
        return Session::open_again(source).await?.closed_after(from_server).await;
    }
    let item = local_item(Path::new(source), args.recursive)?;
    unique(&item.name)?;
    let over = over(&item.name, item.meta.kind).await?;
    Ok(run((&local_tree(), item), target, (destination, over), args).await)
}

async fn run<S: Source, T: Target>(
    (tree, mut item): (&S, Item<S::Node>),
    target: &T,
    (destination, over): (&Destination<T::Node>, Option<Existing<T::Node>>),
    args: &CopyArgs,
) -> Report {
    if let Some(name) = &destination.name {
        item.name = name.clone();
    }
    let progress = CopyProgress::new(args.quiet || args.json);
    let shown = progress.clone();
    let report = TreeCopy::new(tree, target, Options::from(args))
        .on_event(move |event| shown.show(&event))
        .interrupted_by(interrupted())
        .over(over)
        .run(vec![item], destination.dir.clone())
        .await;
    progress.finish();
    report
}

/// Rejects a copy of a directory into itself.
fn refuse_loop(from: &Session, to: Option<&Session>) -> Result<(), Failure> {
    let Some(to) = to.filter(|to| to.shares_export_with(from)) else { return Ok(()) };
    let parts = |p: &[u8]| -> Vec<Vec<u8>> {
        p.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".").map(<[u8]>::to_vec).collect()
    };
    if parts(&to.path) == parts(&from.path) {
        return Err(Failure::new(format!(
            "{} and {} are the same; choose another target",
            from.text, to.text
        )));
    }
    if parts(&to.path).starts_with(&parts(&from.path)) {
        return Err(Failure::new(format!(
            "{} cannot be copied to {}, which is below it",
            from.text, to.text
        )));
    }
    Ok(())
}

async fn remote_item(session: &Session, recursive: bool) -> Result<Item<FileHandle>, Failure> {
    let (node, attributes) =
        if recursive { session.resolve_link().await? } else { session.resolve().await? };
    Ok(Item { path: session.text.clone(), name: session.name(), node, meta: (&attributes).into() })
}

fn local_item(path: &Path, recursive: bool) -> Result<Item<PathBuf>, Failure> {
    let meta = if recursive { path.symlink_metadata() } else { path.metadata() };
    let meta = Metadata::from(&meta.map_err(|e| Failure::from(FileError::local("copy", path, &e)))?);
    let name = match path.file_name() {
        Some(name) => name.to_owned(),
        // For `.`, `..` and `/`: the name in the parent directory.
        None => path.canonicalize().ok().and_then(|p| p.file_name().map(OsStr::to_owned)).unwrap_or_default(),
    };
    if name.is_empty() && meta.kind != FileKind::Directory {
        return Err(Failure::new(format!("{} has no file name", path.display())));
    }
    let name = if name.is_empty() { b"root".to_vec() } else { name.as_bytes().to_vec() };
    Ok(Item { path: path.display().to_string(), name, node: path.to_owned(), meta })
}

/// Completes when a signal interrupts the copy.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
    let mut signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    if signals.is_empty() {
        return std::future::pending().await;
    }
    any(&mut signals).await;
    eprintln!("millrace: stopping; unfinished new files are removed (a second signal exits immediately)");
    tokio::spawn(async move {
        any(&mut signals).await;
        std::process::exit(130)
    });
}

/// Waits for the first of the signals.
async fn any(signals: &mut [tokio::signal::unix::Signal]) {
    futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
}
