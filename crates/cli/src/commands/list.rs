//! `millrace ls`, `tree` and `find`.

use jiff::tz::TimeZone;
use millrace_client::{
    Error,
    handles::Client,
    ops::{Attributes, DirEntry, FileHandle, FileType},
};
use millrace_copy::is_valid_name;
use millrace_program::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
    units::ByteSize,
};

use super::each;
use crate::{
    args::{FindArgs, LsArgs, TreeArgs},
    describe::{Names, ObjectInfo, minute, mode_text, shown, with_noun},
    file_error::is_gone,
    session::{Session, below, last_component},
};

/// A directory entry with its attributes and the target of a symbolic link.
pub(super) struct Shown {
    pub(super) name: Vec<u8>,
    pub(super) handle: FileHandle,
    pub(super) attributes: Attributes,
    target: Option<Vec<u8>>,
}

/// The entries of directories, without those that cannot be read, which are named on standard error.
pub(super) struct Listing<'s> {
    session: &'s Session,
    /// Whether to include names that begin with a dot.
    all: bool,
    /// Whether to read the targets of symbolic links.
    targets: bool,
    /// The number of entries and directories that could not be read.
    failed: u64,
}

impl<'s> Listing<'s> {
    /// All entries, without the targets of symbolic links.
    pub(super) fn all(session: &'s Session) -> Self {
        Self { session, all: true, targets: false, failed: 0 }
    }

    /// The entries of a directory in order of their names.
    pub(super) async fn list(&mut self, dir: FileHandle, path: &[u8]) -> Result<Vec<Shown>, Error> {
        let entries = match self.session.client.readdir(dir).await {
            Err(e) if is_gone(&e) => Vec::new(), // Removed since its name was read.
            other => other?,
        };
        let mut out = Vec::with_capacity(entries.len());
        for e in entries {
            if e.is_dot() || (!self.all && e.name.starts_with(b".")) {
                continue;
            }
            let path = below(path, &e.name);
            if !is_valid_name(&e.name) {
                self.session.refused_name("read", &path);
                self.failed += 1;
                continue;
            }
            match complete(&self.session.client, dir, e, self.targets).await {
                Ok(shown) => out.extend(shown),
                Err(e) => self.failed("read", &path, e)?,
            }
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// As [`Self::list`]; `None` if the directory cannot be read, which is named.
    pub(super) async fn list_or_name(
        &mut self,
        dir: FileHandle,
        path: &[u8],
    ) -> Result<Option<Vec<Shown>>, Error> {
        match self.list(dir, path).await {
            Ok(entries) => Ok(Some(entries)),
            Err(e) => self.failed("list", path, e).map(|()| None),
        }
    }

    /// Names an object on which the operation `what` failed. Returns the error if other calls would fail too.
    pub(super) fn failed(&mut self, what: &str, path: &[u8], e: Error) -> Result<(), Error> {
        self.session.failed_below(what, path, e)?;
        self.failed += 1;
        Ok(())
    }

    pub(super) fn outcome(&self) -> Outcome {
        if self.failed == 0 { Outcome::Done } else { Outcome::Partial }
    }
}

pub(super) fn ls(args: &LsArgs) -> CommandResult {
    let (mut first, mut names) = (true, Names::default());
    let is_long = args.long || args.numeric_uid_gid;
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (handle, attributes) = session.resolve().await?;
        let mut listing = Listing { session, all: args.all, targets: is_long || args.json, failed: 0 };
        let failed = |e| session.failed("list", e);
        let mut next = Some(if attributes.file_type == FileType::Directory {
            listing.list(handle, b"").await.map_err(failed)?
        } else {
            vec![Shown { name: session.name(), handle, attributes, target: None }]
        });
        let (mut path, mut todo) = (Vec::new(), Vec::new());
        loop {
            if let Some(mut entries) = next {
                sort(&mut entries, args);
                if (args.urls.len() > 1 || args.recursive) && !args.json {
                    let name = if path.is_empty() { session.text.as_bytes().to_vec() } else { shown(&path) };
                    output::write(&[if first { &b""[..] } else { b"\n" }, &name, b":\n"].concat())?;
                }
                first = false;
                show(&entries, &path, &mut names, args)?;
                let below = |e: &Shown| (e.handle, below(&path, &e.name));
                let is_listed = |e: &&Shown| args.recursive && e.attributes.file_type == FileType::Directory;
                todo.extend(entries.iter().rev().filter(is_listed).map(below));
            }
            let Some((directory, of)) = todo.pop() else { return Ok(listing.outcome()) };
            path = of;
            next = listing.list_or_name(directory, &path).await.map_err(failed)?;
        }
    }))
}

/// Sorts entries, which are in the order of their names.
fn sort(entries: &mut [Shown], args: &LsArgs) {
    if args.time {
        entries.sort_by_key(|e| std::cmp::Reverse(e.attributes.mtime));
    } else if args.by_size {
        entries.sort_by_key(|e| std::cmp::Reverse(e.attributes.size));
    }
    if args.reverse {
        entries.reverse();
    }
}

/// Fetches attributes that READDIRPLUS did not return; `None` if the entry has been removed.
async fn complete(
    client: &Client,
    dir: FileHandle,
    e: DirEntry,
    targets: bool,
) -> Result<Option<Shown>, Error> {
    let (handle, attributes) = match (e.handle, e.attributes) {
        (Some(h), Some(a)) => (h, a),
        _ => match client.lookup(dir, &e.name).await {
            Ok(o) => (o.handle, o.attributes),
            Err(e) if is_gone(&e) => return Ok(None),
            Err(e) => return Err(e),
        },
    };
    let target = match attributes.file_type {
        FileType::Symlink if targets => match client.readlink(handle).await {
            Err(e) if is_gone(&e) => return Ok(None),
            other => Some(other?),
        },
        _ => None,
    };
    Ok(Some(Shown { name: e.name, handle, attributes, target }))
}

/// Prints the entries of the directory `path`.
fn show(entries: &[Shown], path: &[u8], names: &mut Names, args: &LsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    if args.json {
        for e in entries {
            text.extend(described(e, &below(path, &e.name)).json().into_bytes());
            text.push(b'\n');
        }
    } else if args.long || args.numeric_uid_gid {
        let zone = TimeZone::system();
        // The names follow the table, which has text only.
        let mut t = Table::bare(&[
            Align::Left,
            Align::Right,
            Align::Left,
            Align::Left,
            Align::Right,
            Align::Left,
            Align::Left,
        ]);
        for e in entries {
            let a = &e.attributes;
            t.row([
                mode_text(a),
                a.nlink.to_string(),
                if args.numeric_uid_gid { a.uid.to_string() } else { names.user(a.uid).to_owned() },
                if args.numeric_uid_gid { a.gid.to_string() } else { names.group(a.gid).to_owned() },
                if args.human_readable { ByteSize(a.size).human().to_string() } else { a.size.to_string() },
                minute(a.mtime, &zone),
                NAME.into(),
            ]);
        }
        for (line, e) in t.to_string().lines().zip(entries) {
            text.extend_from_slice(line.strip_suffix(NAME).unwrap_or(line).as_bytes());
            text.extend(name_and_target(e));
            text.push(b'\n');
        }
    } else {
        for e in entries {
            text.extend(shown(&e.name));
            text.extend_from_slice(if e.attributes.file_type == FileType::Directory {
                b"/\n"
            } else {
                b"\n"
            });
        }
    }
    output::write(&text)
}

/// The place of a name in a table.
const NAME: &str = "?";

/// The name of an entry and, if it is a symbolic link whose target was read, its target.
fn name_and_target(e: &Shown) -> Vec<u8> {
    let mut text = shown(&e.name);
    if let Some(target) = &e.target {
        text.extend_from_slice(b" -> ");
        text.extend(shown(target));
    }
    text
}

fn described(e: &Shown, path: &[u8]) -> ObjectInfo {
    ObjectInfo::new(path, &e.attributes, e.target.as_deref())
}

/// A directory that is being printed.
struct Level {
    rest: std::vec::IntoIter<Shown>,
    /// Prefix of its lines.
    indent: String,
    /// Its path below the root.
    path: Vec<u8>,
}

pub(super) fn tree(args: &TreeArgs) -> CommandResult {
    executor::small()?.block_on(Session::with(&args.url, async |session| {
        let (root, attributes) = session.resolve().await?;
        if attributes.file_type != FileType::Directory {
            return Err(Failure::new(format!("{} is not a directory; use `millrace stat`", args.url)));
        }
        if !args.json {
            output::line(&args.url)?;
        }
        let (mut directories, mut files, mut bytes) = (0_u64, 0_u64, 0_u64);
        let failed = |e| session.failed("list", e);
        let mut listing = Listing { session, all: args.all, targets: true, failed: 0 };
        let first = listing.list(root, b"").await.map_err(failed)?.into_iter();
        let mut levels = vec![Level { rest: first, indent: String::new(), path: Vec::new() }];
        while let Some(level) = levels.last_mut() {
            let Some(e) = level.rest.next() else {
                levels.pop();
                continue;
            };
            let last = level.rest.as_slice().is_empty();
            let path = below(&level.path, &e.name);
            if args.json {
                output::line(&described(&e, &path).json())?;
            } else {
                let mut line = format!("{}{}", level.indent, if last { "`-- " } else { "|-- " }).into_bytes();
                line.extend(name_and_target(&e));
                line.push(b'\n');
                output::write(&line)?;
            }
            let indent = format!("{}{}", level.indent, if last { "    " } else { "|   " });
            if e.attributes.file_type == FileType::Directory {
                directories += 1;
                if args.depth.is_none_or(|d| levels.len() < d) {
                    let rest = listing.list_or_name(e.handle, &path).await.map_err(failed)?;
                    levels.extend(rest.map(|rest| Level { rest: rest.into_iter(), indent, path }));
                }
            } else {
                files += 1;
                bytes += e.attributes.size;
            }
        }
        if !args.json {
            let directories = with_noun(directories, ("directory", "directories"));
            let files = with_noun(files, ("file", "files"));
            output::line(&format!("\n{directories}, {files}, {}", ByteSize(bytes).human()))?;
        }
        Ok(listing.outcome())
    }))
}

pub(super) fn find(args: &FindArgs) -> CommandResult {
    executor::small()?.block_on(Session::with(&args.url, async |session| {
        let (root, attributes) =
            if session.wants_dir { session.resolve().await? } else { session.resolve_link().await? };
        let mut listing = Listing::all(session);
        let mut todo = vec![(root, attributes.file_type, Vec::new(), 0)];
        while let Some((object, file_type, path, depth)) = todo.pop() {
            let name = if path.is_empty() {
                session.name()
            } else {
                last_component(&path).unwrap_or_default().to_vec()
            };
            let is_named = args.name.as_ref().is_none_or(|glob| glob.matches(&name, false));
            if is_named && args.file_type.is_none_or(|wanted| wanted == file_type) {
                let path = if path.is_empty() { b"." } else { &path[..] };
                output::write(&match args.print0 {
                    true => [path, b"\0"].concat(),
                    false => [&shown(path)[..], b"\n"].concat(),
                })?;
            }
            if file_type != FileType::Directory || args.maxdepth.is_some_and(|max| depth >= max) {
                continue;
            }
            let entries = listing.list_or_name(object, &path).await.map_err(|e| session.failed("list", e))?;
            for e in entries.into_iter().flatten().rev() {
                todo.push((e.handle, e.attributes.file_type, below(&path, &e.name), depth + 1));
            }
        }
        Ok(listing.outcome())
    }))
}
