//! READ and READLINK.

use millrace_nfs::v4::{ReadArgs, ReadOk, ReadlinkOk, Status};
use millrace_oncrpc::{CallClass, Stage};
use millrace_vfs::{Arena, FsError, FsResult, Views};

use super::{compound::Compound, convert, reply_size::MAX_LINK};

/// Upper limit of file offsets (the largest `off_t` plus one).
const OFFSET_LIMIT: u64 = 1 << 63;

impl Compound<'_> {
    pub(super) async fn read(&mut self, args: ReadArgs) -> Result<(), Status> {
        let count = self.take_bulk(args.count.min(self.scope.env.rtmax))?;
        let file = self.current()?.file(Status::IsDir)?.clone();
        let caller = file.caller()?;
        if args.offset >= OFFSET_LIMIT {
            return Err(Status::Inval);
        }
        let to_limit = u32::try_from(OFFSET_LIMIT - args.offset).unwrap_or(u32::MAX);
        self.stages.set_class(CallClass::Read);
        self.stages.end(Stage::Decode);
        let read = file.fs().read(caller, &file.handle, args.offset, count.min(to_limit)).await;
        self.stages.end(Stage::FileSystem);
        let read = read.map_err(convert::status)?;
        self.scope.env.read(&file.export, read.data.len() as u64);
        let bytes = read.data.len();
        self.put_payload(bytes, |reply| ReadOk { eof: read.eof, data: read.data }.encode_into(reply));
        Ok(())
    }

    pub(super) async fn readlink(&mut self) -> Result<(), Status> {
        self.take_bulk(MAX_LINK)?;
        let file = self.current()?.file(Status::Inval)?.clone();
        let read = file.fs().readlink(file.caller()?, &file.handle).await;
        let (text, _) = read.map_err(convert::status)?;
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
