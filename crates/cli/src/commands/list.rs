//! `millrace ls` and `tree`.

use millrace_bench::{
    table::{Align, Table},
    units::ByteSize,
};
use millrace_cli_common::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_client::nfs3::{Client, DirEntry};
use millrace_nfs::v3::{Fattr, FileHandle, FileType};

use super::each;
use crate::{
    args::{LsArgs, TreeArgs},
    describe::{ObjectInfo, minute, mode_text, printable},
    file_error::is_gone,
    session::Session,
};

/// A directory entry with its attributes and the target of a symbolic link.
struct Shown {
    name: Vec<u8>,
    handle: FileHandle,
    attributes: Fattr,
    target: Option<Vec<u8>>,
}

pub(super) fn ls(args: &LsArgs) -> CommandResult {
    let mut first = true;
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (handle, attributes) = session.resolve().await?;
        let entries = if attributes.file_type == FileType::Directory {
            list(session, handle, args.all, args.long || args.json).await?
        } else {
            vec![Shown { name: session.name(), handle, attributes, target: None }]
        };
        if args.urls.len() > 1 && !args.json {
            output::line(&format!("{}{}:", if first { "" } else { "\n" }, session.text))?;
        }
        first = false;
        show(&entries, args)
    }))
}

/// The entries of a directory in order of their names.
async fn list(session: &Session, dir: FileHandle, all: bool, targets: bool) -> Result<Vec<Shown>, Failure> {
    let entries = match session.client.readdir(dir).await {
        Err(e) if is_gone(&e) => Vec::new(), // Removed since its name was read.
        other => other.map_err(|e| session.failed("list", e))?,
    };
    let mut out = Vec::with_capacity(entries.len());
    for e in entries {
        if e.is_dot() || (!all && e.name.starts_with(b".")) {
            continue;
        }
        let shown = complete(&session.client, dir, e, targets).await;
        out.extend(shown.map_err(|e| session.failed("list", e))?);
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// Fetches attributes that READDIRPLUS did not return; `None` if the entry has been removed.
async fn complete(
    client: &Client,
    dir: FileHandle,
    e: DirEntry,
    targets: bool,
) -> Result<Option<Shown>, millrace_client::Error> {
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

fn show(entries: &[Shown], args: &LsArgs) -> Result<(), Failure> {
    let mut text = String::new();
    if args.json {
        for e in entries {
            text.push_str(&described(e, None).json());
            text.push('\n');
        }
    } else if args.long {
        let mut t = Table::bare(&[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
            Align::Left,
        ]);
        for e in entries {
            let a = &e.attributes;
            let arrow = e.target.as_ref().map_or_else(String::new, |t| format!(" -> {}", printable(t)));
            t.row([
                mode_text(a),
                a.nlink.to_string(),
                a.uid.to_string(),
                a.gid.to_string(),
                a.size.to_string(),
                minute(a.mtime),
                format!("{}{arrow}", printable(&e.name)),
            ]);
        }
        text = t.to_string();
    } else {
        for e in entries {
            text.push_str(&printable(&e.name));
            text.push_str(if e.attributes.file_type == FileType::Directory { "/\n" } else { "\n" });
        }
    }
    output::write(text.as_bytes())
}

fn described(e: &Shown, path: Option<String>) -> ObjectInfo {
    let name = path.unwrap_or_else(|| String::from_utf8_lossy(&e.name).into_owned());
    let target = e.target.as_ref().map(|t| String::from_utf8_lossy(t).into_owned());
    ObjectInfo::new(name, &e.attributes, target)
}

/// A directory that is being printed.
struct Level {
    rest: std::vec::IntoIter<Shown>,
    /// Prefix of its lines.
    indent: String,
    /// Its path below the root.
    path: String,
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
        let first = list(session, root, args.all, true).await?.into_iter();
        let mut levels = vec![Level { rest: first, indent: String::new(), path: String::new() }];
        while let Some(level) = levels.last_mut() {
            let Some(e) = level.rest.next() else {
                levels.pop();
                continue;
            };
            let last = level.rest.as_slice().is_empty();
            let path = match level.path.as_str() {
                "" => String::from_utf8_lossy(&e.name).into_owned(),
                above => format!("{above}/{}", String::from_utf8_lossy(&e.name)),
            };
            if args.json {
                output::line(&described(&e, Some(path.clone())).json())?;
            } else {
                let branch = if last { "`-- " } else { "|-- " };
                let arrow = e.target.as_ref().map_or_else(String::new, |t| format!(" -> {}", printable(t)));
                output::line(&format!("{}{branch}{}{arrow}", level.indent, printable(&e.name)))?;
            }
            let indent = format!("{}{}", level.indent, if last { "    " } else { "|   " });
            if e.attributes.file_type == FileType::Directory {
                directories += 1;
                if args.depth.is_none_or(|d| levels.len() < d) {
                    let rest = list(session, e.handle, args.all, true).await?.into_iter();
                    levels.push(Level { rest, indent, path });
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
        Ok(Outcome::Done)
    }))
}

/// A number with a noun in the singular or plural.
fn with_noun(n: u64, (singular, plural): (&str, &str)) -> String {
    format!("{n} {}", if n == 1 { singular } else { plural })
}
