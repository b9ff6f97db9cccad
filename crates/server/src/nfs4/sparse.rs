//! Space and holes of files: ALLOCATE, DEALLOCATE, SEEK and IO_ADVISE (RFC 7862 sections 15.1, 15.4, 15.5, 15.11).

use millrace_nfs::v4::{
    AllocateArgs, Bitmap, ContentType, DeallocateArgs, IoAdviseArgs, IoAdviseOk, SeekArgs, SeekOk, Status,
};
use millrace_nfs4_state::Changing;
use millrace_vfs::SeekTarget;
use millrace_xdr::XdrError;

use super::{
    compound::Compound,
    convert,
    kind::{check_file, data_error},
    object::File,
};

impl Compound<'_> {
    /// The status for arguments of SEEK that cannot be decoded: content of another type is not malformed.
    pub(super) fn bad_seek(error: XdrError) -> Status {
        if matches!(error, XdrError::Invalid { .. }) { Status::UnionNotsupp } else { Status::BadXdr }
    }

    pub(super) async fn allocate(&self, args: AllocateArgs) -> Result<(), Status> {
        let (file, _access) = self.range_to_change(&args)?;
        let changed = file.fs().allocate(file.writer()?, &file.handle, args.offset, args.length).await;
        match changed {
            Ok(_) => Ok(()),
            Err(error) => Err(data_error(file, error).await),
        }
    }

    pub(super) async fn deallocate(&self, args: DeallocateArgs) -> Result<(), Status> {
        let (file, _access) = self.range_to_change(&args)?;
        let changed = file.fs().deallocate(file.writer()?, &file.handle, args.offset, args.length).await;
        match changed {
            Ok(_) => Ok(()),
            Err(error) => Err(data_error(file, error).await),
        }
    }

    /// The file of a change. As fallocate(2), an empty range is invalid.
    fn range_to_change(&self, args: &AllocateArgs) -> Result<(&File, Changing), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        file.writer()?;
        let access = self.check_access(file, &args.stateid, true)?;
        if args.length == 0 { Err(Status::Inval) } else { Ok((file, access)) }
    }

    pub(super) async fn seek(&mut self, args: SeekArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        let caller = file.caller()?;
        let _access = self.check_access(file, &args.stateid, false)?;
        let target = match args.what {
            ContentType::Data => SeekTarget::Data,
            ContentType::Hole => SeekTarget::Hole,
        };
        let found = file.fs().seek(caller, &file.handle, args.offset..u64::MAX, target).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => return Err(data_error(file, error).await),
        };
        let size = file.fs().getattr(&file.handle).await.map_err(convert::status)?.size;
        let ok = match found {
            Some(offset) => SeekOk { eof: offset >= size, offset },
            None if args.offset < size => SeekOk { eof: true, offset: size },
            None => return Err(Status::NxIo),
        };
        self.reply.put(&ok);
        Ok(())
    }

    /// Follows no hint: the page cache of the kernel recognizes sequential access by itself.
    pub(super) async fn io_advise(&mut self, args: IoAdviseArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        file.caller()?;
        check_file(file).await?;
        let _access = self.check_access(file, &args.stateid, false)?;
        args.offset.checked_add(args.length).ok_or(Status::Inval)?;
        self.reply.put(&IoAdviseOk { hints: Bitmap::EMPTY });
        Ok(())
    }
}
