//! Operations on extended attributes: those of NFSv4.2, which has the namespace `user` only (RFC 8276).
//!
//! The kernel asks for others too, for example for `security.capability` before it writes to a file: they are answered
//! without a call. Without extended attributes at the server, it sends no further requests after ENOSYS, and returns
//! EOPNOTSUPP.

use millrace_client::SetxattrOption;
use millrace_fuse_session::{channel::Call, protocol::Reply};
use rustix::{fs::XattrFlags, io::Errno};

use super::{FuseHandler, done};
use crate::xattrs::USER;

impl FuseHandler {
    fn check_xattrs(&self) -> Result<(), Errno> {
        if self.fs.credentials.default_client().has_xattrs() { Ok(()) } else { Err(Errno::NOSYS) }
    }

    /// The name at the server.
    fn xattr_name(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.check_xattrs()?;
        match name.strip_prefix(USER) {
            None => Err(Errno::OPNOTSUPP),
            Some(b"") => Err(Errno::INVAL),
            Some(name) => Ok(name.to_vec()),
        }
    }

    pub(super) fn get_xattr(&self, call: Call, name: &[u8], size: u32) {
        // Linux may ask for `security.capability` in write(2), before it copies the data.
        self.fs.note_caller(call.node(), call.tid());
        let name = match self.xattr_name(name) {
            Ok(name) => name,
            Err(e) => return call.error(e),
        };
        let ((fs, client), node) = (self.context(&call), call.node());
        let op = async move { fs.xattr(&client.await, node, &name).await };
        self.run(call, op, move |call, value| reply_sized(call, &value, size));
    }

    pub(super) fn list_xattrs(&self, call: Call, size: u32) {
        if let Err(e) = self.check_xattrs() {
            return call.error(e);
        }
        let ((fs, client), node) = (self.context(&call), call.node());
        let op = async move { fs.list_xattrs(&client.await, node).await };
        self.run(call, op, move |call, names| reply_sized(call, &names, size));
    }

    pub(super) fn set_xattr(&self, call: Call, name: &[u8], value: &[u8], flags: u32) {
        let option = match XattrFlags::from_bits_retain(flags) {
            XattrFlags::CREATE => SetxattrOption::Create,
            XattrFlags::REPLACE => SetxattrOption::Replace,
            flags if flags.is_empty() => SetxattrOption::Either,
            _ => return call.error(Errno::INVAL),
        };
        self.change_xattr(call, name, Some((value.to_vec(), option)));
    }

    pub(super) fn remove_xattr(&self, call: Call, name: &[u8]) {
        self.change_xattr(call, name, None);
    }

    fn change_xattr(&self, call: Call, name: &[u8], new: Option<(Vec<u8>, SetxattrOption)>) {
        let name = match self.xattr_name(name) {
            Ok(name) => name,
            Err(e) => return call.error(e),
        };
        let ((fs, client), node) = (self.context(&call), call.node());
        let op = async move {
            let new = new.as_ref().map(|(value, option)| (&value[..], *option));
            fs.change_xattr(&client.await, node, &name, new).await
        };
        self.run_detached(call, op, done);
    }
}

/// Replies with what a program has space of `size` bytes for, or with its size.
fn reply_sized(call: Call, data: &[u8], size: u32) {
    match u32::try_from(data.len()) {
        Ok(length) if size == 0 => call.reply(&Reply::XattrSize(length)),
        Ok(length) if length <= size => call.reply(&Reply::Data(data)),
        _ => call.error(Errno::RANGE),
    }
}
