//! Operations on attributes, access rights and statistics.

use std::{future::Future, sync::Arc};

use millrace_client::ops;
use millrace_fuse_session::{
    channel::Call,
    protocol::{Reply, SetAttributes, Statistics},
    settings::BLOCK,
};
use rustix::io::Errno;

use super::{FuseHandler, done};
use crate::{
    convert::{attributes, set_time},
    inode::AttrReply,
};

impl FuseHandler {
    pub(super) fn get_attributes(&self, call: Call) {
        let node = call.node();
        if let Some(cached) = self.fs.cached_attributes(node, call.ids()) {
            self.fs.note_caller(node, call.tid());
            return reply_attributes(call, &cached);
        }
        let ((fs, client), takes_size) = (self.context(&call), !self.writeback);
        self.run_attributes(call, async move { fs.getattr(&client.await, node, takes_size).await });
    }

    pub(super) fn set_attributes(&self, call: Call, set: SetAttributes) {
        let SetAttributes { mode, uid, gid, size, atime, mtime, handle } = set;
        let (fs, client) = self.context(&call);
        // ftruncate(2) acts with the credentials of the open.
        let opened = size.and(handle).and_then(|handle| fs.open_file(handle).ok());
        // With `writeback` the kernel sends its own mtime with a size, which only the owner may set. The
        // server sets the mtime itself.
        let mtime = mtime.filter(|_| size.is_none());
        let mode = mode.map(|m| m & 0o7777);
        let set = ops::SetAttributes { mode, uid, gid, size, atime: set_time(atime), mtime: set_time(mtime) };
        let node = call.node();
        self.run_attributes(call, async move {
            let client = match opened {
                Some(file) => file.client.clone(),
                None => client.await,
            };
            fs.note_times(&client, &set);
            fs.setattr(&client, node, set).await
        });
    }

    fn run_attributes(
        &self,
        call: Call,
        op: impl Future<Output = Result<AttrReply, Errno>> + Send + 'static,
    ) {
        let fs = Arc::clone(&self.fs);
        self.run_lookup(call, op, move |call, found| {
            let tid = call.tid();
            fs.note_caller(call.node(), tid);
            if !found.update.is_resized {
                return reply_attributes(call, &found);
            }
            fs.reply_resized(call.node(), tid, || reply_attributes(call, &found));
        });
    }

    pub(super) fn access(&self, call: Call, mask: u32) {
        let ((fs, client), node) = (self.context(&call), call.node());
        self.run(call, async move { fs.access(&client.await, node, mask).await }, done);
    }

    pub(super) fn statistics(&self, call: Call) {
        let (fs, client) = self.context(&call);
        self.run(call, async move { fs.statfs(&client.await).await }, |call, (s, name_max)| {
            let blocks = |bytes: u64| bytes / u64::from(BLOCK);
            call.reply(&Reply::Statistics(Statistics {
                block_size: BLOCK,
                blocks: blocks(s.total_bytes),
                free_blocks: blocks(s.free_bytes),
                available_blocks: blocks(s.available_bytes),
                files: s.total_files,
                free_files: s.free_files,
                name_max,
            }));
        });
    }
}

fn reply_attributes(call: Call, found: &AttrReply) {
    let attributes = attributes(call.node(), &found.attributes);
    call.reply(&Reply::Attributes(attributes, found.ttl));
}
