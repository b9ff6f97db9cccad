//! READ_PLUS (RFC 7862 section 15.10): READ that does not transfer holes.

use millrace_nfs::v4::{Content, ReadPlusArgs, ReadPlusOk, Status};
use millrace_oncrpc::{CallClass, Stage, TransportKind};
use millrace_vfs::{FsError, FsResult, Identity, SeekTarget};

use super::{compound::Compound, data::OFFSET_LIMIT, kind::data_error, object::File};

/// Maximum parts of a result. Their memory is reserved as that of one READ.
const MAX_CONTENTS: usize = 8;

impl Compound<'_> {
    /// Over RDMA clients use READ: the data of READ_PLUS is not placed directly (RFC 8267 section 4.4).
    pub(super) async fn read_plus(&mut self, args: ReadPlusArgs) -> Result<(), Status> {
        if self.scope.caller.sender.peer.transport != TransportKind::Tcp {
            return Err(Status::NotSupp);
        }
        let count = self.take_bulk(args.count.min(self.scope.env.rtmax))?;
        let file = self.current()?.file(Status::IsDir)?.clone();
        let caller = file.caller()?;
        let _access = self.check_access(&file, &args.stateid, false)?;
        if args.offset >= OFFSET_LIMIT {
            return Err(Status::Inval);
        }
        self.stages.set_class(CallClass::Read);
        self.stages.end(Stage::Decode);
        let read = contents(&file, caller, args.offset, count).await;
        self.stages.end(Stage::FileSystem);
        let ok = match read {
            Ok(ok) => ok,
            Err(error) => return Err(data_error(&file, error).await),
        };
        let bytes =
            ok.contents.iter().map(|part| if let Content::Data { data, .. } = part { data.len() } else { 0 });
        let bytes = bytes.sum::<usize>();
        self.scope.env.read(&file.export, self.usage.as_deref(), bytes as u64);
        self.put_payload(bytes, |reply| reply.put(&ok));
        Ok(())
    }
}

/// Reads data and holes of a range, alternately. Parts are read one after another: a concurrent change may be in
/// some of them only, as in several READs.
async fn contents(file: &File, caller: &Identity, offset: u64, count: u32) -> FsResult<ReadPlusOk> {
    let (fs, handle) = (file.fs(), &file.handle);
    let size = fs.read(caller, handle, offset, 0).await?.attr.size;
    let end = size.min(offset.saturating_add(count.into()));
    let mut ok = ReadPlusOk { eof: false, contents: Default::default() };
    let mut at = offset;
    for _ in 0..MAX_CONTENTS {
        if at >= end {
            break;
        }
        let data_at = find(file, caller, at, SeekTarget::Data).await?.unwrap_or(at).min(end);
        if data_at > at {
            ok.contents.push(Content::Hole { offset: at, length: data_at - at });
            at = data_at;
            continue;
        }
        let hole_at = find(file, caller, at, SeekTarget::Hole).await?.unwrap_or(end).min(end);
        let count = u32::try_from(hole_at.saturating_sub(at)).unwrap_or(count);
        let data = fs.read(caller, handle, at, count).await?.data;
        if data.is_empty() {
            break;
        }
        let length = data.len() as u64;
        ok.contents.push(Content::Data { offset: at, data });
        at += length;
    }
    ok.eof = at >= size;
    Ok(ok)
}

/// The next data or hole, or the maximum offset if there is none; `None` if the file system cannot locate holes.
async fn find(file: &File, caller: &Identity, at: u64, target: SeekTarget) -> FsResult<Option<u64>> {
    match file.fs().seek(caller, &file.handle, at, target).await {
        Ok(found) => Ok(Some(found.unwrap_or(u64::MAX))),
        Err(FsError::NotSupp) => Ok(None),
        Err(e) => Err(e),
    }
}
