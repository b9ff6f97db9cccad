//! Sizes of arguments and results, for the memory of a reply and the placement of data.

use millrace_xdr::{Decoder, XdrError};

use super::{Bitmap, Fattr, MAX_HANDLE, MAX_NAME, OpenArgs, Operation, ReaddirArgs};
use crate::Bulk;

/// Bytes of the operation number and the status of each result.
const STATUS: usize = 4 + 4;
/// Bytes of `SEQUENCE4resok`.
pub const SEQUENCE_OK_BYTES: usize = 16 + 5 * 4;
/// Position of the data in the results of SEQUENCE, PUTFH and READ, after the RPC header: behind the status, an empty tag,
/// the number of results, the three results, `eof` and the length of the data.
pub const READ_DATA_OFFSET: usize = 3 * 4 + (STATUS + SEQUENCE_OK_BYTES) + STATUS + (STATUS + 4 + 4);
/// Position of the data in the arguments of WRITE, behind the stateid, the offset, the stability and the length of the data.
pub const WRITE_DATA_OFFSET: usize = 16 + 8 + 4 + 4;
/// Bytes of the result of an operation that changes something, without the attributes of objects.
pub const CHANGE_BYTES: usize = 256;
/// Bytes of a result without variable parts.
const FIXED: usize = 32;
/// Bytes of all attributes with the longest values that a server sends.
const ATTRIBUTES: usize = 560;
/// Bytes of a handle.
const HANDLE: usize = 80;

/// The size of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultBytes {
    /// Maximum bytes without bulk data.
    pub head: usize,
    /// The bulk data.
    pub bulk: Option<Bulk>,
    /// Whether the next operation follows. Otherwise the arguments are not skipped: they are malformed, or no client
    /// requests bulk data or attributes of several objects after the operation.
    pub is_skipped: bool,
}

impl ResultBytes {
    const fn without_bulk(head: usize) -> Self {
        Self { head, bulk: None, is_skipped: true }
    }
}

impl Operation {
    /// The size of the result of the operation. Skips its arguments, which `d` is at.
    #[inline]
    pub fn result_bytes(self, d: &mut Decoder<'_>) -> ResultBytes {
        let malformed = ResultBytes { is_skipped: false, ..ResultBytes::without_bulk(FIXED) };
        self.skip(d).unwrap_or(malformed)
    }

    fn skip(self, d: &mut Decoder<'_>) -> Result<ResultBytes, XdrError> {
        let (mut head, mut bulk) = (FIXED, None);
        match self {
            Self::Sequence => drop(d.raw(16 + 4 * 4)?),
            Self::Putfh => drop(d.opaque(MAX_HANDLE)?),
            Self::Read | Self::ReadPlus => {
                d.raw(16 + 8)?; // Stateid and offset.
                bulk = Some(Bulk::Data(d.u32()?));
                if self == Self::ReadPlus {
                    head += CHANGE_BYTES;
                }
            }
            Self::Getattr => {
                d.get::<Bitmap>()?;
                head += ATTRIBUTES;
            }
            Self::Getfh => head += HANDLE,
            Self::Lookup | Self::Secinfo => drop(d.opaque(MAX_NAME)?),
            Self::Access | Self::SecinfoNoName => drop(d.raw(4)?),
            Self::Open => {
                d.get::<OpenArgs<'_, Fattr<'_>>>()?;
                head += CHANGE_BYTES + ATTRIBUTES;
            }
            Self::Setattr => {
                d.raw(16)?; // Stateid.
                d.get::<Fattr<'_>>()?;
            }
            Self::Close => drop(d.raw(4 + 16)?),
            Self::Readdir => bulk = Some(Bulk::List(d.get::<ReaddirArgs>()?.maxcount)),
            Self::Getxattr => {
                d.opaque(MAX_NAME)?;
                bulk = Some(Bulk::Value);
            }
            Self::Listxattrs => {
                d.raw(8)?; // Cookie.
                bulk = Some(Bulk::List(d.u32()?));
            }
            Self::Readlink => bulk = Some(Bulk::Target),
            Self::Putrootfh | Self::Putpubfh | Self::Lookupp | Self::Savefh | Self::RestoreFh => {}
            _ => {
                let head = FIXED + CHANGE_BYTES + ATTRIBUTES;
                return Ok(ResultBytes { is_skipped: false, ..ResultBytes::without_bulk(head) });
            }
        }
        Ok(ResultBytes { bulk, ..ResultBytes::without_bulk(head) })
    }

    /// Whether the operation has no effect that outlasts its COMPOUND.
    pub const fn is_idempotent(self) -> bool {
        matches!(
            self,
            Self::Access
                | Self::Getattr
                | Self::Getfh
                | Self::Lookup
                | Self::Lookupp
                | Self::Nverify
                | Self::Putfh
                | Self::Putpubfh
                | Self::Putrootfh
                | Self::Read
                | Self::Readdir
                | Self::Readlink
                | Self::ReadPlus
                | Self::Getxattr
                | Self::Listxattrs
                | Self::RestoreFh
                | Self::Savefh
                | Self::Secinfo
                | Self::SecinfoNoName
                | Self::Seek
                | Self::IoAdvise
                | Self::Verify
                | Self::TestStateid
                | Self::Lockt
        )
    }
}
