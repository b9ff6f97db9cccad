//! Operations on names.

use std::future::Future;

use millrace_client::ops::{MknodWhat, SetAttributes};
use millrace_fuse_session::{
    channel::Call,
    protocol::{Entry as FoundEntry, Reply},
};
use rustix::{
    fs::{FileType, RenameFlags},
    io::Errno,
};

use super::{FuseHandler, done};
use crate::{
    convert::{attributes, spec},
    fs::Entry,
    namespace::NewNode,
};

impl FuseHandler {
    pub(super) fn lookup(&self, call: Call, name: &[u8]) {
        let ((fs, client), parent, tid) = (self.context(&call), call.node(), call.tid());
        let name = name.to_vec();
        let op = async move {
            match &name[..] {
                b"." => fs.lookup_by_number(&client.await, parent).await.map(Ok),
                b".." => fs.lookup_parent(&client.await, parent).await.map(Ok),
                _ => fs.lookup(&client.await, parent, &name, tid).await,
            }
        };
        self.run_lookup(call, op, |call, found| match found {
            Ok(e) => call.reply(&Reply::Entry(entry(&e))),
            // The node 0: the kernel caches that the name does not exist.
            Err(ttl) if !ttl.is_zero() => {
                call.reply(&Reply::Entry(FoundEntry { name_ttl: ttl, ..FoundEntry::default() }));
            }
            Err(_) => call.error(Errno::NOENT),
        });
    }

    pub(super) fn read_link(&self, call: Call) {
        let ((fs, client), node) = (self.context(&call), call.node());
        let op = async move { fs.readlink(&client.await, node).await };
        self.run_lookup(call, op, |call, text| call.reply(&Reply::Data(&text)));
    }

    pub(super) fn make_node(&self, call: Call, name: &[u8], (mode, device): (u32, u32)) {
        let set = permissions(mode);
        let make = match FileType::from_raw_mode(mode) {
            FileType::RegularFile => NewNode::File(set),
            FileType::Fifo => NewNode::Special(MknodWhat::Fifo(set)),
            FileType::Socket => NewNode::Special(MknodWhat::Socket(set)),
            FileType::CharacterDevice => NewNode::Special(MknodWhat::Character(set, spec(device))),
            FileType::BlockDevice => NewNode::Special(MknodWhat::Block(set, spec(device))),
            _ => return call.error(Errno::INVAL),
        };
        self.make(call, name, make);
    }

    pub(super) fn make_directory(&self, call: Call, name: &[u8], mode: u32) {
        self.make(call, name, NewNode::Directory(permissions(mode)));
    }

    pub(super) fn symlink(&self, call: Call, name: &[u8], target: &[u8]) {
        self.make(call, name, NewNode::Symlink(target.to_vec()));
    }

    fn make(&self, call: Call, name: &[u8], make: NewNode) {
        let ((fs, client), parent, name) = (self.context(&call), call.node(), name.to_vec());
        self.run_entry(call, async move { fs.create_node(&client.await, parent, &name, make).await });
    }

    pub(super) fn link(&self, call: Call, node: u64, name: &[u8]) {
        let ((fs, client), parent, tid) = (self.context(&call), call.node(), call.tid());
        let name = name.to_vec();
        self.run_entry(call, async move { fs.link(&client.await, node, (parent, &name), tid).await });
    }

    fn run_entry(&self, call: Call, op: impl Future<Output = Result<Entry, Errno>> + Send + 'static) {
        self.run(call, op, |call, created| call.reply(&Reply::Entry(entry(&created))));
    }

    pub(super) fn unlink(&self, call: Call, name: &[u8]) {
        let ((fs, client), parent, name) = (self.context(&call), call.node(), name.to_vec());
        self.run_detached(call, async move { fs.unlink(&client.await, parent, &name).await }, done);
    }

    pub(super) fn remove_directory(&self, call: Call, name: &[u8]) {
        let ((fs, client), parent, name) = (self.context(&call), call.node(), name.to_vec());
        self.run(call, async move { fs.rmdir(&client.await, parent, &name).await }, done);
    }

    /// NFS has no equivalent of `RENAME_NOREPLACE` and the other flags.
    pub(super) fn rename(&self, call: Call, name: &[u8], (new_parent, new): (u64, &[u8]), flags: u32) {
        if flags != RenameFlags::empty().bits() {
            return call.error(Errno::INVAL);
        }
        let ((fs, client), parent) = (self.context(&call), call.node());
        let (name, new) = (name.to_vec(), new.to_vec());
        let op = async move { fs.rename(&client.await, (parent, &name), (new_parent, &new)).await };
        self.run_detached(call, op, done);
    }
}

/// Attributes of a new file: the permissions of a mode.
fn permissions(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }
}

/// Converts an entry for the kernel.
pub(super) fn entry(e: &Entry) -> FoundEntry {
    FoundEntry {
        node: e.inode.number,
        generation: e.inode.generation,
        name_ttl: e.ttl,
        attributes_ttl: e.attrs.ttl,
        attributes: attributes(e.inode.number, &e.attrs.attributes),
    }
}
