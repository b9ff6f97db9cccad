//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276).

use std::hash::Hasher;

use millrace_nfs::v4::{
    GetxattrArgs, GetxattrOk, ListxattrsArgs, ListxattrsEncoder, Opaque, RemovexattrArgs, SetxattrArgs,
    SetxattrOption, Status, TooSmall,
};
use millrace_vfs::SetXattr;
use millrace_xdr::XdrError;
use siphasher::sip::SipHasher13;

use super::{compound::Compound, convert, object::File};
use crate::bulk::{MAX_PAGE, MAX_VALUE};

/// The cookie of a name: names are listed in the order of their cookies, so that one that exists all the time is listed
/// once, also if others are added and removed between the pages. It is not 0.
fn cookie(name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(name);
    hasher.finish().max(1)
}

impl Compound<'_> {
    /// The file of the current file handle, if it can have attributes.
    fn xattr_file(&self) -> Result<&File, Status> {
        let file = self.current()?.file(Status::NotSupp)?;
        if file.export.info().xattrs { Ok(file) } else { Err(Status::NotSupp) }
    }

    pub(super) async fn getxattr(&mut self, args: GetxattrArgs<'_>) -> Result<(), Status> {
        self.take_bulk(MAX_VALUE)?;
        let file = self.xattr_file()?;
        let value = file.fs().xattr(file.caller()?, &file.handle, &args.name).await;
        let value = value.map_err(convert::status)?;
        self.check_reply(value.len())?;
        self.reply.put(&GetxattrOk { value: Opaque(&value) });
        Ok(())
    }

    /// The status for arguments of SETXATTR that cannot be decoded. A value may be too long for one buffer of a message
    /// that is `split`.
    pub(super) fn bad_setxattr(split: bool, error: &XdrError) -> Status {
        tracing::debug!("malformed arguments: {error}");
        if split { Status::Xattr2Big } else { Status::BadXdr }
    }

    pub(super) async fn setxattr(&mut self, args: SetxattrArgs<'_>) -> Result<(), Status> {
        let file = self.xattr_file()?;
        let how = match args.option {
            SetxattrOption::Either => SetXattr::Either,
            SetxattrOption::Create => SetXattr::Create,
            SetxattrOption::Replace => SetXattr::Replace,
        };
        let _changing = self.change(file)?;
        let set = file.fs().set_xattr(file.writer()?, &file.handle, &args.name, &args.value, how).await;
        let change = convert::change_info(&set.map_err(convert::status)?);
        self.reply.put(&change);
        Ok(())
    }

    pub(super) async fn listxattrs(&mut self, args: ListxattrsArgs) -> Result<(), Status> {
        let limit = self.take_bulk(args.maxcount.min(MAX_PAGE))?;
        let file = self.xattr_file()?;
        let names = file.fs().list_xattrs(file.caller()?, &file.handle).await.map_err(convert::status)?;
        let mut names: Vec<_> = names.into_iter().map(|name| (cookie(&name), name)).collect();
        names.retain(|(cookie, _)| *cookie > args.cookie);
        names.sort_unstable();
        let (limit, too_small) = self.list_room(limit);
        let mut list = ListxattrsEncoder::begin(&mut self.reply, args.maxcount, limit);
        let mut last = args.cookie;
        for (cookie, name) in &names {
            if !list.push(name) {
                break;
            }
            last = *cookie;
        }
        list.finish(last, true).map_err(|TooSmall| too_small)
    }

    pub(super) async fn removexattr(&mut self, args: RemovexattrArgs<'_>) -> Result<(), Status> {
        let file = self.xattr_file()?;
        let _changing = self.change(file)?;
        let removed = file.fs().remove_xattr(file.writer()?, &file.handle, &args.name).await;
        let change = convert::change_info(&removed.map_err(convert::status)?);
        self.reply.put(&change);
        Ok(())
    }
}
