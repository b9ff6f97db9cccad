//! Operations on open directories.

use std::{sync::Arc, time::Duration};

use millrace_client::{
    handles::Object,
    ops::{DirEntry, FileType, Wcc},
};
use millrace_fuse_session::{
    channel::Call,
    protocol::{DirectoryEntries, DirectoryEntry, Entry, OpenFlags, Opened, ReadDirectory, Reply},
};
use rustix::io::Errno;

use super::{FuseHandler, names::entry};
use crate::{
    convert::{attributes, mode},
    dir_stream::{CallTime, DirStream},
    directory::{DirReader, handle_and_attributes},
    fs::Fs,
    inode::PendingLookups,
};

impl FuseHandler {
    fn dir_stream(&self, handle: u64) -> Option<Arc<DirStream>> {
        self.fs.directories.lock().get(handle as usize).cloned()
    }

    pub(super) fn open_directory(&self, call: Call) {
        let ((fs, client), node) = (self.context(&call), call.node());
        self.run(call, async move { fs.opendir(client.await, node).await }, |call, handle| {
            call.reply(&Reply::Opened(Opened { handle, flags: OpenFlags::empty() }));
        });
    }

    pub(super) fn read_directory(&self, call: Call, list: ReadDirectory) {
        let Some(stream) = self.dir_stream(list.handle) else { return call.error(Errno::BADF) };
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let mut entries = DirectoryEntries::new(list.size);
            let mut reader = DirReader::open(&fs, &stream, list.offset).await;
            let mut some = false;
            loop {
                match reader.peek().await {
                    Ok(Some((e, _))) => {
                        if !reader.is_silly_name(&e.name) && !entries.push(&listed(&e)) {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(_) if some => break,
                    Err(e) => return Err(e),
                }
                some = true;
                reader.advance();
            }
            Ok(entries)
        };
        self.run(call, op, |call, entries| call.reply(&entries.reply()));
    }

    pub(super) fn read_directory_plus(&self, call: Call, list: ReadDirectory) {
        let Some(stream) = self.dir_stream(list.handle) else { return call.error(Errno::BADF) };
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let mut entries = DirectoryEntries::new(list.size);
            let (mut some, mut lookups) = (false, PendingLookups::new(&fs.inodes));
            let mut reader = DirReader::open(&fs, &stream, list.offset).await;
            let failed = loop {
                match reader.peek().await {
                    Ok(Some((e, _))) if reader.is_silly_name(&e.name) => {}
                    Ok(Some((e, issued))) => {
                        match add_plus(&fs, &stream, &e, issued, &mut lookups, &mut entries).await {
                            Ok(true) => some = true,
                            Ok(false) => break None,
                            Err(e) => break Some(e),
                        }
                    }
                    Ok(None) => break None,
                    Err(e) => break Some(e),
                }
                reader.advance();
            };
            if let Some(e) = failed.filter(|_| !some) {
                return Err(e);
            }
            // There is no await between here and the reply, so it is sent.
            lookups.commit();
            Ok(entries)
        };
        self.run(call, op, |call, entries| call.reply(&entries.reply()));
    }

    pub(super) fn release_directory(&self, call: Call, handle: u64) {
        self.fs.directories.lock().try_remove(handle as usize);
        call.finish(Ok(()));
    }
}

/// Converts an entry for a list.
fn listed(e: &DirEntry) -> DirectoryEntry<'_> {
    let file_type = e.attributes.map_or(FileType::Regular, |a| a.file_type);
    let inode = if e.fileid == 0 { u64::MAX } else { e.fileid };
    DirectoryEntry { inode, offset: e.cookie, mode: mode(file_type), name: &e.name }
}

/// Adds an entry with its attributes. `false`: there is no space for it.
async fn add_plus(
    fs: &Arc<Fs>,
    stream: &DirStream,
    e: &DirEntry,
    issued: CallTime,
    lookups: &mut PendingLookups<'_>,
    entries: &mut DirectoryEntries,
) -> Result<bool, Errno> {
    let Some((handle, found)) = handle_and_attributes(stream, e).await? else { return Ok(true) };
    if e.is_dot() {
        // The kernel uses only number and type, and counts no lookup.
        let attributes = attributes(e.fileid, &found);
        let dot = Entry { node: e.fileid, attributes, ..Entry::default() };
        return Ok(push_plus(entries, &dot, e));
    }
    let object = Object { handle, attributes: found, dir: Wcc::default() };
    let made = fs.make_listed_entry(&stream.client, (&stream.dir, &e.name), issued, object).await;
    let made = match made {
        Err(Errno::STALE) => return Ok(true), // The file no longer exists.
        made => made?,
    };
    let ttl: Duration = made.attrs.ttl.min(made.ttl);
    let has_space = push_plus(entries, &Entry { name_ttl: ttl, attributes_ttl: ttl, ..entry(&made) }, e);
    match has_space {
        true => lookups.add(made.inode.number),
        false => fs.inodes.forget(made.inode.number, 1),
    }
    Ok(has_space)
}

fn push_plus(entries: &mut DirectoryEntries, found: &Entry, e: &DirEntry) -> bool {
    let Entry { attributes, .. } = found;
    let listed =
        DirectoryEntry { inode: attributes.inode, offset: e.cookie, mode: attributes.mode, name: &e.name };
    entries.push_plus(found, &listed)
}
