//! The memory that the reply to a COMPOUND may need, from its arguments.

use millrace_buffer::slot_bytes;
use millrace_nfs::v4::{
    AccessArgs, CloseArgs, CompoundArgs, Fattr, GetattrArgs, GetxattrArgs, ListxattrsArgs, LookupArgs,
    OpenArgs, Operation, PutfhArgs, ReadPlusArgs, ReaddirArgs, SecinfoArgs, SecinfoNoNameArgs,
};
use millrace_oncrpc::{CallContext, SMALL_REPLY};
use millrace_xdr::{Decoder, XdrError};

/// Maximum size in bytes of a call that requests bulk data. Larger calls would hold memory while they wait for memory of
/// their replies, and could deadlock.
const MAX_SMALL_CALL: usize = 4096;
/// Maximum bytes of a page of READDIR or LISTXATTRS, independent of the client's request, as for NFSv3.
pub(super) const MAX_PAGE: u32 = crate::nfs3::MAX_PAGE;
/// Maximum bytes of the text of a symbolic link.
pub(super) const MAX_LINK: u32 = 4096;
/// Maximum bytes of the value of an extended attribute.
pub(super) const MAX_VALUE: u32 = millrace_vfs::XATTR_SIZE_MAX as u32;
/// Bytes of the result of an operation without variable parts.
const RESULT: usize = 32;
/// Bytes of the result of an operation that changes something.
pub(super) const CHANGE: usize = 256;
/// Bytes of the result of GETATTR: all attributes with the longest values.
const ATTRIBUTES: usize = 560;
/// Bytes of the result of GETFH.
const HANDLE: usize = 80;
/// Bytes of the arguments of SEQUENCE.
const SEQUENCE: usize = 32;
/// Bytes of the arguments of READ in front of the number of bytes: stateid and offset.
const READ: usize = 24;

/// Bytes that a reply needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplySize {
    /// The RPC header and results without bulk data.
    head: usize,
    /// Data of READ, READLINK, READDIR, GETXATTR and LISTXATTRS.
    pub(super) bulk: usize,
    /// Memory for the bulk data.
    bulk_memory: usize,
}

/// Whether `operation` has no effect that outlasts its COMPOUND.
pub(super) fn is_idempotent(operation: Operation) -> bool {
    use Operation as Op;
    matches!(
        operation,
        Op::Access
            | Op::Getattr
            | Op::Getfh
            | Op::Lookup
            | Op::Lookupp
            | Op::Nverify
            | Op::Putfh
            | Op::Putpubfh
            | Op::Putrootfh
            | Op::Read
            | Op::Readdir
            | Op::Readlink
            | Op::ReadPlus
            | Op::Getxattr
            | Op::Listxattrs
            | Op::RestoreFh
            | Op::Savefh
            | Op::Secinfo
            | Op::SecinfoNoName
            | Op::Seek
            | Op::IoAdvise
            | Op::Verify
            | Op::TestStateid
            | Op::Lockt
    )
}

impl ReplySize {
    /// Sums up the operations of `call` as far as they can be decoded. `rtmax` is the maximum size of READ.
    pub(super) fn of(call: &CallContext, rtmax: u32) -> Self {
        let mut size = Self { head: SMALL_REPLY / 2, bulk: 0, bulk_memory: 0 };
        let mut d = call.args();
        let Ok(frame) = d.get::<CompoundArgs<'_>>() else { return size };
        size.head += frame.tag.len();
        for _ in 0..frame.operations {
            if size.add(&mut d, rtmax).is_err() {
                break;
            }
        }
        if call.message().stream_len() > MAX_SMALL_CALL {
            (size.bulk, size.bulk_memory) = (0, 0);
        }
        size
    }

    /// Adds the next operation.
    fn add(&mut self, d: &mut Decoder<'_>, rtmax: u32) -> Result<(), XdrError> {
        let number = d.u32()?;
        let operation = Operation::try_from(number).map_err(|n| d.invalid(n))?;
        self.head += RESULT;
        match operation {
            Operation::Sequence => drop(d.raw(SEQUENCE)?),
            Operation::Putfh => drop(d.get::<PutfhArgs<'_>>()?),
            Operation::Getfh => self.head += HANDLE,
            Operation::Lookup => drop(d.get::<LookupArgs<'_>>()?),
            Operation::Access => drop(d.get::<AccessArgs>()?),
            Operation::Secinfo => drop(d.get::<SecinfoArgs<'_>>()?),
            Operation::SecinfoNoName => drop(d.get::<SecinfoNoNameArgs>()?),
            Operation::Getattr => {
                d.get::<GetattrArgs>()?;
                self.head += ATTRIBUTES;
            }
            Operation::Open => {
                d.get::<OpenArgs<'_, Fattr<'_>>>()?;
                self.head += CHANGE + ATTRIBUTES;
            }
            Operation::Close => drop(d.get::<CloseArgs>()?),
            Operation::Read => {
                d.raw(READ)?;
                self.add_bulk(d.u32()?.min(rtmax), rtmax);
            }
            Operation::ReadPlus => {
                self.head += CHANGE;
                self.add_bulk(d.get::<ReadPlusArgs>()?.count.min(rtmax), rtmax);
            }
            Operation::Readdir => self.add_bulk(d.get::<ReaddirArgs>()?.maxcount.min(MAX_PAGE), rtmax),
            Operation::Getxattr => {
                d.get::<GetxattrArgs<'_>>()?;
                // The value is in one buffer with the other results.
                self.add_bulk(MAX_VALUE + CHANGE as u32, rtmax);
            }
            Operation::Listxattrs => self.add_bulk(d.get::<ListxattrsArgs>()?.maxcount.min(MAX_PAGE), rtmax),
            Operation::Readlink => self.add_bulk(MAX_LINK, rtmax),
            Operation::Putrootfh
            | Operation::Putpubfh
            | Operation::Lookupp
            | Operation::Savefh
            | Operation::RestoreFh => {}
            // No client requests bulk data or attributes of several objects after these.
            _ => {
                self.head += CHANGE + ATTRIBUTES;
                return Err(d.invalid(number));
            }
        }
        Ok(())
    }

    /// Adds bulk data, in total not more than that of one READ or READDIR.
    fn add_bulk(&mut self, bytes: u32, rtmax: u32) {
        let most = slot_bytes(rtmax.max(MAX_PAGE) as usize);
        let memory = slot_bytes(bytes as usize);
        if self.bulk_memory + memory <= most {
            self.bulk += bytes as usize;
            self.bulk_memory += memory;
        }
    }

    /// Bytes of memory for the reply.
    pub(super) fn memory(&self) -> usize {
        let head = if self.head <= SMALL_REPLY { SMALL_REPLY } else { slot_bytes(self.head) };
        self.bulk_memory + head
    }
}
