//! `millrace put`, `get`, `cp` and `sync`.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fmt,
    io::{ErrorKind, IsTerminal},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_client::ops::{FileHandle, FileType};
use millrace_copy::{
    Directory, Exclude, Existing, FileKind, Item, LocalTree, Metadata, Options, Preserve, RemoteTree,
    Replace, Report, Source, Target, TreeCopy,
};
use millrace_program::{
    args::url_text,
    executor,
    failure::{CommandResult, Failure},
    output,
};

use crate::{
    args::{CopyArgs, CpArgs, GetArgs, PutArgs, SyncArgs, TransferArgs},
    copy_summary::{CopySummary, FailedFile},
    file_error::FileError,
    interrupt::interrupted,
    progress::CopyProgress,
    session::{self, Session, is_contents, is_url, last_component},
};

/// A source or a target on the command line.
pub(super) enum Location {
    Url(String),
    Local(PathBuf),
}

impl Location {
    /// A source; `-` is the standard input.
    pub(super) fn source(text: &OsString) -> Self {
        Self::new(text, STDIN)
    }

    /// A target; `-` is the standard output.
    pub(super) fn target(text: &OsString) -> Self {
        Self::new(text, STDOUT)
    }

    fn new(text: &OsStr, stream: &str) -> Self {
        match text {
            url if is_url(url) => Self::Url(url_text(url)),
            dash if dash == "-" => Self::Local(stream.into()),
            path => Self::Local(path.into()),
        }
    }

    /// Refuses the standard output as target of a copy with `option`, whose result is printed there.
    pub(super) fn permits_output(&self, option: Option<&str>) -> Result<(), Failure> {
        match (self, option) {
            (Self::Local(path), Some(option)) if path == Path::new(STDOUT) => Err(Failure::usage(format!(
                "the standard output cannot have both the copy and the result of {option}"
            ))),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Local(path) => path.display().fmt(f),
        }
    }
}

/// The path that `-` stands for as a source.
pub(super) const STDIN: &str = "/dev/stdin";
/// The path that `-` stands for as a target.
const STDOUT: &str = "/dev/stdout";

pub(super) fn put(args: &PutArgs) -> CommandResult {
    let (from, to) = split(&args.paths)?;
    if let Some(url) = from.iter().find(|f| matches!(f, Location::Url(_))) {
        return Err(Failure::usage(format!("put copies local files, but {url} is a URL; use get or cp")));
    }
    if let Location::Local(to) = to {
        let to = to.display();
        return Err(Failure::usage(format!(
            "put copies to a server, but {to} is not a URL; use nfs://HOST/EXPORT/PATH"
        )));
    }
    Plan::from_copy(&args.copy)?.transfer(&from, &to)
}

pub(super) fn get(args: &GetArgs) -> CommandResult {
    let (from, to) = match &args.paths[..] {
        [from @ .., to] if !from.is_empty() && !is_url(to) => (from, Location::target(to)),
        from => (from, Location::Local(".".into())),
    };
    let from: Vec<_> = from.iter().map(Location::source).collect();
    if let Some(path) = from.iter().find(|f| matches!(f, Location::Local(_))) {
        return Err(Failure::usage(format!(
            "get copies from a server, but {path} is not a URL; use nfs://HOST/EXPORT/PATH, or put"
        )));
    }
    Plan::from_copy(&args.copy)?.transfer(&from, &to)
}

pub(super) fn cp(args: &CpArgs) -> CommandResult {
    let (from, to) = split(&args.paths)?;
    if from.iter().chain([&to]).all(|place| matches!(place, Location::Local(_))) {
        return Err(Failure::usage("neither source nor target is a URL; use cp(1) for local copies"));
    }
    Plan::from_copy(&args.copy)?.transfer(&from, &to)
}

pub(super) fn sync(args: &SyncArgs) -> CommandResult {
    let (from, to) = (Location::source(&args.from), Location::target(&args.to));
    if matches!((&from, &to), (Location::Local(_), Location::Local(_))) {
        return Err(Failure::usage("neither source nor target is a URL; use rsync(1) for local copies"));
    }
    Plan::from_sync(args)?.transfer(&[from], &to)
}

fn split(paths: &[OsString]) -> Result<(Vec<Location>, Location), Failure> {
    let (to, from) = paths.split_last().ok_or_else(|| Failure::usage("name a source and a target"))?;
    Ok((from.iter().map(Location::source).collect(), Location::target(to)))
}

/// What a command line requests.
struct Plan<'a> {
    options: Options,
    transfer: &'a TransferArgs,
    /// Whether the contents of a source directory are copied, instead of the directory.
    is_contents: bool,
}

impl<'a> Plan<'a> {
    fn from_copy(args: &'a CopyArgs) -> Result<Self, Failure> {
        let replace = match (args.update, args.no_clobber) {
            (true, _) => Replace::Older,
            (_, true) => Replace::Never,
            _ => Replace::Always,
        };
        let recursive = args.recursive || args.transfer.archive;
        let options = Options { recursive, atomic: args.atomic, replace, ..options(&args.transfer)? };
        Ok(Self { options, transfer: &args.transfer, is_contents: false })
    }

    fn from_sync(args: &'a SyncArgs) -> Result<Self, Failure> {
        let options = Options {
            atomic: true,
            replace: Replace::Different,
            delete: args.delete,
            ..options(&args.transfer)?
        };
        Ok(Self { options, transfer: &args.transfer, is_contents: true })
    }

    fn transfer(&self, from: &[Location], to: &Location) -> CommandResult {
        let args = self.transfer;
        to.permits_output(args.json.then_some("--json"))?;
        to.permits_output(prints_paths(args).then_some("--verbose"))?;
        to.permits_output(args.dry_run.then_some("--dry-run"))?;
        let rt = executor::large()?;
        let report = rt.block_on(async {
            match to {
                Location::Url(url) => {
                    let to_server = async |session: &Session| {
                        let target = Destination::remote(session, from.len()).await?;
                        let linked = async |path: Vec<u8>| linked_remotely(session, &path).await;
                        let tree = RemoteTree::new(session.client.clone());
                        all(from, &tree, (target, &session.path), &linked, Some(session), self).await
                    };
                    Session::open_again(url).await?.closed_after(to_server).await
                }
                Location::Local(path) => {
                    let target = Destination::local(path, from.len())?;
                    let linked = async |path: Vec<u8>| linked_locally(Path::new(OsStr::from_bytes(&path)));
                    let path = path.as_os_str().as_bytes();
                    all(from, &local_tree(), (target, path), &linked, None, self).await
                }
            }
        })?;
        // Do not wait for threads that are blocked on an unreachable server.
        rt.shutdown_background();
        if !args.json {
            for warning in report.warnings(self.options.preserve.xattrs) {
                eprintln!("millrace: {warning}");
            }
        }
        if !args.json && !session::global().quiet && std::io::stderr().is_terminal() {
            eprintln!("{}{report}", if args.dry_run { "nothing was changed; would copy: " } else { "" });
        }
        if args.json {
            output::line(&serde_json::to_string(&report).unwrap_or_default())?;
        }
        Ok(report.outcome())
    }
}

/// Whether each path is printed; with --json, standard output has the result alone.
fn prints_paths(args: &TransferArgs) -> bool {
    session::global().verbose > 0 && !args.json
}

fn options(args: &TransferArgs) -> Result<Options, Failure> {
    let exclude = Exclude::new(&args.exclude).map_err(|e| Failure::usage(format!("--exclude: {e}")))?;
    let owner = args.owner || args.archive && rustix::process::geteuid().is_root();
    Ok(Options {
        verify: args.verify,
        hard_links: args.hard_links || args.archive,
        preserve: Preserve { owner, xattrs: args.xattrs || args.archive },
        exclude,
        dry_run: args.dry_run,
        parallel: args.parallel.into(),
        outstanding: args.outstanding.into(),
        record: args.record.map(|s| usize::try_from(s.0).unwrap_or(usize::MAX)),
        ..Options::default()
    })
}

fn local_tree() -> LocalTree {
    LocalTree::new(Arena::new(ArenaConfig::default()))
}

/// Target of the copies.
struct Destination<N> {
    dir: Directory<N>,
    /// The new name of a single copy; `None` if each copy keeps the name of its source.
    name: Option<Vec<u8>>,
}

impl Destination<FileHandle> {
    async fn remote(session: &Session, sources: usize) -> Result<Self, Failure> {
        match session.resolve_optional().await? {
            Some((node, a)) if a.file_type == FileType::Directory => {
                let id = Some(Metadata::from(&a).id);
                return Ok(Self { dir: Directory { node, created: false, id }, name: None });
            }
            found => check_single(&session.text, sources, session.wants_dir, found.is_some())?,
        }
        let (dir, name) = session.parent().await?;
        Ok(Self { dir: dir.into(), name: Some(name) })
    }
}

impl Destination<PathBuf> {
    fn local(path: &Path, sources: usize) -> Result<Self, Failure> {
        if let Ok(meta) = path.metadata()
            && meta.is_dir()
        {
            let id = Some(Metadata::from(&meta).id);
            return Ok(Self { dir: Directory { node: path.to_owned(), created: false, id }, name: None });
        }
        let wants_dir = path.as_os_str().as_bytes().ends_with(b"/");
        check_single(&path.display().to_string(), sources, wants_dir, path.exists())?;
        let no_name = || Failure::new(format!("{} does not end with a file name", path.display()));
        let name = path.file_name().ok_or_else(no_name)?.as_bytes().to_vec();
        let dir = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        match dir.metadata() {
            Ok(meta) if meta.is_dir() => {}
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(FileError::local("write to", &dir, &e).into());
            }
            _ => {
                let dir = dir.display();
                return Err(Failure::new(format!("the directory {dir} does not exist; create it first")));
            }
        }
        Ok(Self { dir: dir.into(), name: Some(name) })
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
    Existing::through_link(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => dangling(&path.display().to_string()),
        _ => FileError::local("find the target of", path, &e).into(),
    })
}

fn dangling(path: &str) -> Failure {
    Failure::new(format!(
        "{path} is a symbolic link to a file that does not exist; remove the link or choose another target"
    ))
}

/// Copies the sources sequentially. Each copy has many files in flight.
async fn all<T: Target>(
    from: &[Location],
    target: &T,
    (destination, path): (Destination<T::Node>, &[u8]),
    linked: &impl AsyncFn(Vec<u8>) -> Result<Option<Existing<T::Node>>, Failure>,
    target_session: Option<&Session>,
    plan: &Plan<'_>,
) -> Result<CopySummary, Failure> {
    // The object that a link at the name of a copy refers to. Only files are written through links.
    let over = async |name: &[u8], kind: FileKind| match (kind, &destination.name) {
        (FileKind::File, Some(_)) => linked(path.to_vec()).await,
        (FileKind::File, None) => linked([path, b"/", name].concat()).await,
        _ => Ok(None),
    };
    // Reject an invalid URL before the first copy.
    for place in from {
        if let Location::Url(url) = place {
            session::parse(url)?;
        }
    }
    let mut total = CopySummary::default();
    let mut names = HashSet::new();
    for source in from {
        match one(source, target, (&destination, &over), target_session, &mut names, plan).await {
            Ok(report) => total.add(report),
            Err(e) if from.len() == 1 => return Err(e),
            // Continue with the other sources.
            Err(e) => {
                eprintln!("millrace: {e}");
                total.failed.push(FailedFile { path: source.to_string(), error: e.to_string() });
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
    source: &Location,
    target: &T,
    (destination, over): (
        &Destination<T::Node>,
        &impl AsyncFn(&[u8], FileKind) -> Result<Option<Existing<T::Node>>, Failure>,
    ),
    target_session: Option<&Session>,
    names: &mut HashSet<Vec<u8>>,
    plan: &Plan<'_>,
) -> Result<Report, Failure> {
    let mut check_name = |name: &[u8], kind: FileKind| {
        let failed = |why: &str| Err(Failure::new(format!("{source} {why}")));
        match (name, kind) {
            (b"", FileKind::Directory) => Ok(()), // Its contents are copied.
            (b"", _) if plan.is_contents => failed("is not a directory; use `millrace cp`"),
            (b"", _) if destination.name.is_none() => {
                failed("has no file name; add the name of the copy to the target directory")
            }
            _ if names.insert(name.to_vec()) => Ok(()),
            _ => failed("would replace another source of this copy; copy it separately"),
        }
    };
    match source {
        Location::Url(url) => {
            let from_server = async |session: &Session| {
                let item = remote_item(session, plan).await?;
                if let Some(to) = target_session.filter(|to| to.shares_export_with(session)) {
                    refuse_loop(session, &item.meta, to).await?;
                    // With a new name, the target is a directory that does not exist yet.
                    let id = destination.dir.id.filter(|_| plan.options.delete && destination.name.is_none());
                    if let Some(id) = id
                        && is_below(id, session).await
                    {
                        let (from, to) = (&session.text, &to.text);
                        return Err(Failure::new(format!(
                            "cannot copy {from} to {to}, which contains it: --delete would remove it; choose another target"
                        )));
                    }
                }
                // With one client for both files, the server can copy.
                let same = target_session.filter(|to| to.is_same_mount(session));
                let tree = RemoteTree::new(same.unwrap_or(session).client.clone());
                check_name(&item.name, item.meta.kind)?;
                let over = over(&item.name, item.meta.kind).await?;
                Ok(run((&tree, item), target, (destination, over), plan).await)
            };
            Session::open_again(url).await?.closed_after(from_server).await
        }
        Location::Local(path) => {
            let item = local_item(path, plan)?;
            check_name(&item.name, item.meta.kind)?;
            let over = over(&item.name, item.meta.kind).await?;
            Ok(run((&local_tree(), item), target, (destination, over), plan).await)
        }
    }
}

async fn run<S: Source, T: Target>(
    (tree, mut item): (&S, Item<S::Node>),
    target: &T,
    (destination, over): (&Destination<T::Node>, Option<Existing<T::Node>>),
    plan: &Plan<'_>,
) -> Report {
    if let Some(name) = &destination.name {
        item.name = name.clone();
    }
    let TransferArgs { json, dry_run, .. } = *plan.transfer;
    let progress = CopyProgress::new(json);
    let progress = match (dry_run && !json, prints_paths(plan.transfer)) {
        (true, _) => progress.with_paths(["would copy", "would remove"]),
        (_, true) => progress.with_paths(["copied", "removed"]),
        _ => progress,
    };
    let shown = progress.clone();
    let report = TreeCopy::new(tree, target, plan.options.clone())
        .on_event(move |event| shown.show(&event))
        .interrupted_by(interrupted("unfinished new files are removed"))
        .over(over)
        .run(vec![item], destination.dir.clone())
        .await;
    progress.finish();
    report
}

/// Refuses a copy of `from`, whose attributes are `meta`, to itself or, if it is a directory, to a place in it. Both are in one
/// export.
async fn refuse_loop(from: &Session, meta: &Metadata, to: &Session) -> Result<(), Failure> {
    let (source, target) = (parts(&from.path), parts(&to.path));
    if source == target {
        return Err(Failure::new(format!(
            "{} and {} are the same; choose another target",
            from.text, to.text
        )));
    }
    if meta.kind != FileKind::Directory {
        return Ok(());
    }
    if is_below(meta.id, to).await {
        return Err(Failure::new(format!(
            "{} cannot be copied to {}, which is below it; choose another target",
            from.text, to.text
        )));
    }
    Ok(())
}

/// The names of a path.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect()
}

/// Whether the path of `session` leads through the directory with this ID, or ends there.
async fn is_below(id: (u64, u64), session: &Session) -> bool {
    let names = parts(&session.path);
    // The directories of the path, which may be other names of that directory; those before a `..` are not.
    let first = names.iter().rposition(|name| *name == b"..").map_or(0, |last| last + 1);
    for end in first..=names.len() {
        match session.client.resolve(names[..end].join(&b'/')).await {
            Ok((_, a)) if Metadata::from(&a).id == id => return true,
            Ok(_) => {}
            Err(_) => break, // It does not exist yet; another error is that of the copy.
        }
    }
    false
}

async fn remote_item(session: &Session, plan: &Plan<'_>) -> Result<Item<FileHandle>, Failure> {
    let is_link_copied = plan.options.recursive && !session.wants_dir && !plan.is_contents;
    let (node, attributes) =
        if is_link_copied { session.resolve_link().await? } else { session.resolve().await? };
    let name = if session.is_contents || plan.is_contents { Vec::new() } else { session.name() };
    Ok(Item { path: session.text.clone(), name, node, meta: (&attributes).into() })
}

fn local_item(path: &Path, plan: &Plan<'_>) -> Result<Item<PathBuf>, Failure> {
    let bytes = path.as_os_str().as_bytes();
    let name = match last_component(bytes) {
        _ if is_contents(bytes) || plan.is_contents || path == Path::new(STDIN) => &b""[..],
        name => name.unwrap_or(b"root"),
    };
    if let Some(stream) = Item::stream(path, name) {
        return Ok(stream);
    }
    let is_link_copied = plan.options.recursive && !plan.is_contents;
    let meta = if is_link_copied { path.symlink_metadata() } else { path.metadata() };
    let meta = Metadata::from(&meta.map_err(|e| Failure::from(FileError::local("copy", path, &e)))?);
    Ok(Item { path: path.display().to_string(), name: name.to_vec(), node: path.to_owned(), meta })
}
