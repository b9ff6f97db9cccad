//! READ, WRITE, COMMIT and READLINK. Data is passed as views, without copies, as for NFSv3.

use millrace_nfs::v4::{CommitArgs, CommitOk, ReadArgs, ReadOk, ReadlinkOk, Status, WriteArgs, WriteOk};
use millrace_vfs::{Arena, FsError, FsResult, Op, Views};

use super::{compound::Compound, convert, kind::data_error};
use crate::bulk::MAX_LINK;

/// Upper limit of file offsets (the largest `off_t` plus one).
pub(super) const OFFSET_LIMIT: u64 = 1 << 63;

impl Compound<'_> {
    pub(super) async fn read(&mut self, args: ReadArgs) -> Result<(), Status> {
        let count = self.take_bulk(args.count.min(self.scope.env.rtmax))?;
        let file = self.current()?.file(Status::IsDir)?;
        let caller = file.caller()?;
        let _access = self.check_access(file, &args.stateid, false)?;
        if args.offset >= OFFSET_LIMIT {
            return Err(Status::Inval);
        }
        let to_limit = u32::try_from(OFFSET_LIMIT - args.offset).unwrap_or(u32::MAX);
        // A result that is ready would be moved twice if it was awaited.
        let read = match file.fs().read(caller, &file.handle, args.offset, count.min(to_limit)) {
            Op::Ready(read) => read,
            Op::Pending(read) => read.await,
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => return Err(data_error(file, error).await),
        };
        self.scope.env.read(&file.export, self.usage.as_deref(), read.data.len() as u64);
        let bytes = read.data.len();
        self.put_payload(bytes, |reply| ReadOk { eof: read.eof, data: read.data }.encode_into(reply));
        Ok(())
    }

    pub(super) async fn write(&mut self, args: WriteArgs) -> Result<(), Status> {
        let WriteArgs { stateid, offset, stable, mut data } = args;
        let file = self.current()?.file(Status::IsDir)?;
        let caller = file.writer()?;
        let _access = self.check_access(file, &stateid, true)?;
        data.truncate(self.scope.env.wtmax as usize); // Longer data becomes a short write.
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > file.export.info().max_file_size) {
            return Err(Status::FBig);
        }
        // Read before the write: if data is lost before the reply is built, the reply must not contain the
        // verifier of the instance after the loss.
        let verifier = file.fs().write_verifier();
        let written = file.fs().write(caller, &file.handle, offset, data, convert::stability(stable)).await;
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(data_error(file, error).await),
        };
        self.scope.env.written(&file.export, self.usage.as_deref(), written.count.into());
        let committed = convert::stable_how(written.committed);
        self.reply.put(&WriteOk { count: written.count, committed, verifier });
        Ok(())
    }

    pub(super) async fn commit(&mut self, args: CommitArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        // The operation has neither INVAL for an offset beyond all data nor ROFS: it may concern data that was written
        // before the export became read-only.
        if args.offset < OFFSET_LIMIT {
            let committed = file.fs().commit(file.caller()?, &file.handle, args.offset, args.count).await;
            if let Err(error) = committed {
                return Err(data_error(file, error).await);
            }
        }
        // Read after the commit: an earlier loss has changed the verifier.
        let verifier = file.fs().write_verifier();
        self.reply.put(&CommitOk { verifier });
        Ok(())
    }

    pub(super) async fn readlink(&mut self) -> Result<(), Status> {
        self.take_bulk(MAX_LINK)?;
        let file = self.current()?.file(Status::WrongType)?.clone();
        let read = file.fs().readlink(file.caller()?, &file.handle).await;
        // A file system returns INVAL only for an object that is no symbolic link.
        let (text, _) = read.map_err(|error| match error {
            FsError::Inval => Status::WrongType,
            error => convert::status(error),
        })?;
        let target = text_view(self.reply.arena(), &text).map_err(convert::status)?;
        self.put_payload(text.len(), |reply| reply.put(&ReadlinkOk { target }));
        Ok(())
    }
}

/// Copies a link's text to memory of the arena, from which transports can send it. The copy is not counted,
/// because the text is metadata of an inode.
fn text_view(arena: &Arena, text: &[u8]) -> FsResult<Views> {
    let mut b = arena.alloc(text.len()).map_err(|_| FsError::Jukebox)?;
    b.copy_from_slice(text);
    Ok(b.freeze().into())
}
