//! `millrace du`.

use std::collections::HashSet;

use millrace_client::ops::{Attributes, FileHandle, FileType};
use millrace_program::{
    executor,
    failure::{CommandResult, Failure},
    output,
    units::ByteSize,
};
use serde_json::json;

use super::{
    each,
    list::{Listing, Shown},
};
use crate::{
    args::DuArgs,
    describe::{named, shown},
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
    listing: Listing<'a>,
    /// The files with several names that were counted: their file systems and numbers.
    counted: HashSet<(u64, u64)>,
}

pub(super) fn du(args: &DuArgs) -> CommandResult {
    executor::small()?.block_on(each(&args.urls, async |session| {
        let (root, attributes) = session.resolve_link().await?;
        let listing = Listing::all(session);
        let mut usage = Usage { session, args, listing, counted: HashSet::new() };
        usage.sum(root, &attributes).await?;
        Ok(usage.listing.outcome())
    }))
}

impl Usage<'_> {
    async fn sum(&mut self, root: FileHandle, attributes: &Attributes) -> Result<(), Failure> {
        if attributes.file_type != FileType::Directory {
            return self.print(b"", attributes.used);
        }
        let session = self.session;
        let failed = |e| session.failed("list", e);
        let entries = self.listing.list(root, b"").await.map_err(failed)?;
        let mut levels = vec![self.level(entries, Vec::new(), attributes.used)];
        while let Some(level) = levels.last_mut() {
            if let Some((path, directory, used)) = level.directories.pop() {
                let entries = self.listing.list_or_name(directory, &path).await.map_err(failed)?;
                levels.push(self.level(entries.unwrap_or_default(), path, used));
                continue;
            }
            let Some(done) = levels.pop() else { break };
            match levels.last_mut() {
                Some(above) => above.bytes = above.bytes.saturating_add(done.bytes),
                None => return self.print(b"", done.bytes),
            }
            if !self.args.summarize {
                self.print(&done.path, done.bytes)?;
            }
        }
        Ok(())
    }

    /// The entries of a directory, which uses `used` itself.
    fn level(&mut self, entries: Vec<Shown>, path: Vec<u8>, used: u64) -> Level {
        let mut level = Level { path, bytes: used, directories: Vec::new() };
        for Shown { name, handle, attributes: a, .. } in entries.into_iter().rev() {
            if a.file_type == FileType::Directory {
                level.directories.push((below(&level.path, &name), handle, a.used));
            } else if a.nlink < 2 || self.counted.insert((a.fsid, a.fileid)) {
                level.bytes = level.bytes.saturating_add(a.used);
            }
        }
        level
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
