//! `millrace du`.

use std::collections::HashSet;

use millrace_bench::units::ByteSize;
use millrace_cli_common::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_client::ops::FileHandle;
use millrace_copy::{Error, FileKind, Metadata, RemoteTree, Source};
use serde_json::json;

use super::each;
use crate::{
    args::DuArgs,
    describe::{named, shown},
    file_error::FileError,
    session::{Session, below},
};

/// A directory that is being summed.
struct Level {
    path: Vec<u8>,
    bytes: u64,
    /// Its subdirectories that are not summed yet, with what they use themselves.
    directories: Vec<(Vec<u8>, FileHandle, u64)>,
}

/// The sums of the directories below a URL.
struct Usage<'a> {
    session: &'a Session,
    args: &'a DuArgs,
    /// The files with several names that were counted.
    counted: HashSet<(u64, u64)>,
    /// The number of objects that could not be read.
    failed: u64,
}

pub(super) fn du(args: &DuArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (root, attributes) = session.resolve_link().await?;
        let mut usage = Usage { session, args, counted: HashSet::new(), failed: 0 };
        usage.sum(root, &(&attributes).into()).await?;
        Ok(if usage.failed == 0 { Outcome::Done } else { Outcome::Partial })
    }))
}

impl Usage<'_> {
    async fn sum(&mut self, root: FileHandle, meta: &Metadata) -> Result<(), Failure> {
        if meta.kind != FileKind::Directory {
            return self.print(b"", meta.used);
        }
        let mut levels = vec![self.level(root, Vec::new(), meta.used).await?];
        while let Some(level) = levels.last_mut() {
            if let Some((path, directory, used)) = level.directories.pop() {
                let next = self.level(directory, path, used).await?;
                levels.push(next);
                continue;
            }
            let Some(done) = levels.pop() else { break };
            match levels.last_mut() {
                Some(above) => above.bytes += done.bytes,
                None => return self.print(b"", done.bytes),
            }
            if !self.args.summarize {
                self.print(&done.path, done.bytes)?;
            }
        }
        Ok(())
    }

    /// Reads a directory, which uses `used` itself.
    async fn level(&mut self, directory: FileHandle, path: Vec<u8>, used: u64) -> Result<Level, Failure> {
        let mut level = Level { path, bytes: used, directories: Vec::new() };
        let tree = RemoteTree::new(self.session.client.clone());
        let entries = match tree.list(&directory).await {
            Err(e) if level.path.is_empty() || e.is_fatal() => {
                return Err(Failure::new(FileError::from(&e).of(&self.session.text)));
            }
            Err(e) => {
                self.failed(&level.path, &e);
                return Ok(level);
            }
            Ok(entries) => entries,
        };
        for (name, e) in entries.failed {
            self.failed(&below(&level.path, &name), &e);
        }
        for e in entries.found.into_iter().rev() {
            if e.meta.kind == FileKind::Directory {
                level.directories.push((below(&level.path, &e.name), e.node, e.meta.used));
            } else if e.meta.nlink < 2 || self.counted.insert(e.meta.id) {
                level.bytes += e.meta.used;
            }
        }
        Ok(level)
    }

    fn failed(&mut self, path: &[u8], e: &Error) {
        let path = String::from_utf8_lossy(path);
        eprintln!("millrace: {}", FileError::from(e).of(&format!("{}/{path}", self.session.text)));
        self.failed += 1;
    }

    fn print(&self, path: &[u8], bytes: u64) -> Result<(), Failure> {
        let path = if path.is_empty() { self.session.text.as_bytes() } else { path };
        if self.args.json {
            let (name, name_bytes) = named(path);
            let mut line = json!({ "name": name, "used": bytes });
            if let Some(name_bytes) = name_bytes {
                line["name_bytes"] = name_bytes.into();
            }
            return output::line(&line.to_string());
        }
        let size = format!("{:>10}  ", ByteSize(bytes).human().to_string());
        output::write(&[size.as_bytes(), &shown(path), b"\n"].concat())
    }
}
