//! Holes and space: arguments and results of ALLOCATE, DEALLOCATE, SEEK, READ_PLUS and IO_ADVISE (RFC 7862
//! sections 15.1, 15.4, 15.5, 15.10, 15.11).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};
use smallvec::SmallVec;

use super::{Bitmap, MAX_DATA, Stateid};
use crate::schema::{xdr_enum, xdr_struct};

xdr_struct! {
    /// Arguments of ALLOCATE and DEALLOCATE. The result has no data.
    pub struct AllocateArgs {
        /// Stateid of an open, of locks or of a delegation.
        pub stateid: Stateid,
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }
}

/// Arguments of DEALLOCATE.
pub type DeallocateArgs = AllocateArgs;

xdr_enum! {
    /// `data_content4`.
    pub enum ContentType {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }
}

xdr_struct! {
    /// Arguments of SEEK.
    pub struct SeekArgs {
        /// Stateid of an open, of locks or of a delegation, or a special stateid.
        pub stateid: Stateid,
        /// Offset in bytes from which to search.
        pub offset: u64,
        /// The content to search for.
        pub what: ContentType,
    }
}

xdr_struct! {
    /// Result of SEEK.
    pub struct SeekOk {
        /// Whether the rest of the file has no such content.
        pub eof: bool,
        /// Offset in bytes.
        pub offset: u64,
    }
}

/// Arguments of READ_PLUS.
pub type ReadPlusArgs = super::ReadArgs;

/// `read_plus_content`: a part of the file.
#[derive(Debug, Clone)]
pub enum Content {
    /// Data, by reference.
    Data {
        /// Offset in bytes.
        offset: u64,
        /// The data.
        data: Views,
    },
    /// A hole.
    Hole {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl Encode for Content {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Data { offset, data } => {
                e.put(&ContentType::Data);
                e.put_u64(*offset);
                e.put_payload(data.clone());
            }
            Self::Hole { offset, length } => {
                e.put(&ContentType::Hole);
                e.put_u64(*offset);
                e.put_u64(*length);
            }
        }
    }
}

impl<'a> Decode<'a> for Content {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.get()? {
            ContentType::Data => Self::Data { offset: d.get()?, data: d.payload(MAX_DATA)? },
            ContentType::Hole => Self::Hole { offset: d.get()?, length: d.get()? },
        })
    }
}

/// Result of READ_PLUS.
///
/// The data are payloads, but not eligible for direct placement (RFC 8267): a server must not execute
/// READ_PLUS on a connection that places payloads.
#[derive(Debug, Clone)]
pub struct ReadPlusOk {
    /// Whether the contents reach the end of the file.
    pub eof: bool,
    /// The contents, adjacent and in ascending order.
    pub contents: SmallVec<[Content; 2]>,
}

impl Encode for ReadPlusOk {
    fn encode(&self, e: &mut Encoder) {
        e.put_bool(self.eof);
        e.put_u32(self.contents.len() as u32);
        self.contents.iter().for_each(|c| e.put(c));
    }
}

impl<'a> Decode<'a> for ReadPlusOk {
    /// The message bounds the number of contents.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let eof = d.bool()?;
        let count = d.count(usize::MAX, 16)?;
        let contents = (0..count).map(|_| d.get()).collect::<Result<_, _>>()?;
        Ok(Self { eof, contents })
    }
}

xdr_struct! {
    /// Arguments of IO_ADVISE.
    pub struct IoAdviseArgs {
        /// Stateid of an open, of locks or of a delegation, or a special stateid.
        pub stateid: Stateid,
        /// Offset in bytes.
        pub offset: u64,
        /// Length in bytes; 0: to the end of the file.
        pub length: u64,
        /// Hints of `IO_ADVISE_type4`, as bits.
        pub hints: Bitmap,
    }
}

xdr_struct! {
    /// Result of IO_ADVISE.
    pub struct IoAdviseOk {
        /// The hints that the server follows.
        pub hints: Bitmap,
    }
}
