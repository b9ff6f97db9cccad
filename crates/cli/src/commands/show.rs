//! `millrace exports`, `stat`, `df` and `cat`.

use std::{io::Write, os::unix::ffi::OsStrExt};

use futures::{StreamExt, stream::FuturesOrdered};
use millrace_client::ops::{FileType, FsStat};
use millrace_copy::{RemoteTree, Source};
use millrace_program::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
    units::ByteSize,
};
use millrace_runtime::tokio_rt::TokioRuntime;
use serde_json::json;

use super::each;
use crate::{
    args::{CatArgs, DfArgs, ExportsArgs, StatArgs},
    describe::{ObjectInfo, mode_text, named, printable},
    file_error::FileError,
    session::{self, Session},
};

/// Number of records that `cat` has in flight.
const CAT_WINDOW: usize = 8;

pub(super) fn exports(args: &ExportsArgs) -> CommandResult {
    let url = session::parse(&args.url)?;
    executor::small()?.block_on(async {
        let list = millrace_client::exports(TokioRuntime::current(), &url, &session::options())
            .await
            .map_err(|e| Failure::from(FileError::from(e)))?;
        if args.json {
            for (name, clients) in &list {
                let (export, bytes) = named(name.as_bytes());
                let mut line = json!({ "export": export, "clients": clients });
                if let Some(bytes) = bytes {
                    line["export_bytes"] = bytes.into();
                }
                output::line(&line.to_string())?;
            }
            return Ok(Outcome::Done);
        }
        let mut t = Table::new(&[("export", Align::Left), ("clients", Align::Left)]);
        for (name, clients) in &list {
            let who = if clients.is_empty() { "all".into() } else { clients.join(", ") };
            t.row([printable(name.as_bytes()), printable(who.as_bytes())]);
        }
        output::write(t.to_string().as_bytes())?;
        Ok(Outcome::Done)
    })
}

pub(super) fn stat(args: &StatArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (handle, a) = session.resolve_link().await?;
        let target = match a.file_type {
            FileType::Symlink => {
                let text = session.client.readlink(handle).await;
                Some(text.map_err(|e| session.failed("read", e))?)
            }
            _ => None,
        };
        let d = ObjectInfo::new(session.text.as_bytes(), &a, target.as_deref());
        if args.json {
            return output::line(&d.json());
        }
        let mut t = Table::bare(&[Align::Left, Align::Left]);
        t.row(["name", &session.text]);
        t.row(["kind", d.kind]);
        if let Some(target) = &target {
            t.row(["target", &printable(target)]);
        }
        let rounded = if a.size < 1024 { String::new() } else { format!(" ({})", ByteSize(a.size).human()) };
        t.row(["size", &format!("{} bytes{rounded}", a.size)]);
        t.row(["used", &format!("{} bytes", a.used)]);
        t.row(["mode", &format!("{} {}", d.mode, mode_text(&a))]);
        t.row(["links", &a.nlink.to_string()]);
        t.row(["owner", &format!("{} (group {})", a.uid, a.gid)]);
        if matches!(a.file_type, FileType::Block | FileType::Character) {
            t.row(["device", &format!("{}, {}", a.rdev.major, a.rdev.minor)]);
        }
        t.row(["read", &d.atime]);
        t.row(["modified", &d.mtime]);
        t.row(["changed", &d.ctime]);
        t.row(["file id", &format!("{} in file system {:#x}", a.fileid, a.fsid)]);
        t.row(["handle", &handle.to_string()]);
        output::write(t.to_string().as_bytes())
    }))
}

pub(super) fn df(args: &DfArgs) -> CommandResult {
    executor::small()?.block_on(async {
        let mut any = false;
        let mut t = Table::new(&[
            ("export", Align::Left),
            ("size", Align::Right),
            ("used", Align::Right),
            ("free", Align::Right),
            ("used %", Align::Right),
            ("files free", Align::Right),
        ]);
        let outcome = each(&args.urls, async |session| {
            let stat = session.client.fsstat(session.client.root()).await;
            let s = stat.map_err(|e| session.failed("get the space of", e))?;
            let used = s.total_bytes.saturating_sub(s.free_bytes);
            if args.json {
                return output::line(&df_json(session, &s).to_string());
            }
            t.row([
                format!("{}:{}", session.client.server(), session.client.export()),
                ByteSize(s.total_bytes).human().to_string(),
                ByteSize(used).human().to_string(),
                ByteSize(s.available_bytes).human().to_string(),
                format!("{:.0} %", used as f64 * 100.0 / s.total_bytes.max(1) as f64),
                s.available_files.to_string(),
            ]);
            any = true;
            Ok(())
        })
        .await;
        if any {
            output::write(t.to_string().as_bytes())?;
        }
        outcome
    })
}

fn df_json(session: &Session, s: &FsStat) -> serde_json::Value {
    json!({
        "url": session.text,
        "server": session.client.server(),
        "export": session.client.export(),
        "total_bytes": s.total_bytes,
        "free_bytes": s.free_bytes,
        "available_bytes": s.available_bytes,
        "total_files": s.total_files,
        "free_files": s.free_files,
        "available_files": s.available_files,
    })
}

pub(super) fn cat(args: &CatArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (file, a) = session.resolve().await?;
        if a.file_type == FileType::Directory {
            return Err(Failure::new(format!(
                "{} is a directory; use `millrace ls` or `millrace get -r`",
                session.text
            )));
        }
        let tree = RemoteTree::new(session.client.clone());
        let record = tree.preferred_record();
        let mut offset = 0_u64;
        let mut reads = FuturesOrdered::new();
        loop {
            while reads.len() < CAT_WINDOW && offset < a.size {
                reads.push_back(tree.read(&file, offset, record));
                offset += record as u64;
            }
            let Some(data) = reads.next().await else { break };
            let data = data.map_err(|e| Failure::new(FileError::from(&e).of(&session.text)))?;
            let mut out = std::io::stdout().lock();
            for piece in &data {
                out.write_all(piece).map_err(|e| output::failed(&e))?;
            }
        }
        std::io::stdout().flush().map_err(|e| output::failed(&e))
    }))
}
