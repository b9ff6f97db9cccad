//! Data of files and symbolic links: arguments and results of READ, WRITE, COMMIT and READLINK.

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{MAX_DATA, MAX_PATH, StableHow, Stateid, Verifier};
use crate::schema::xdr_struct;

xdr_struct! {
    /// Arguments of READ (RFC 8881 section 18.22).
    pub struct ReadArgs {
        /// Stateid of an open, of locks or of a delegation, or a special stateid.
        pub stateid: Stateid,
        /// Offset in bytes.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }
}

/// Result of READ.
#[derive(Debug, Clone)]
pub struct ReadOk {
    /// Whether the data reaches the end of the file.
    pub eof: bool,
    /// The data, by reference.
    pub data: Views,
}

impl ReadOk {
    /// Encodes the result without cloning the data.
    pub fn encode_into(self, e: &mut Encoder) {
        e.put_bool(self.eof);
        e.put_payload(self.data);
    }
}

impl Encode for ReadOk {
    fn encode(&self, e: &mut Encoder) {
        self.clone().encode_into(e);
    }
}

impl<'a> Decode<'a> for ReadOk {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { eof: d.bool()?, data: d.payload(MAX_DATA)? })
    }
}

/// Arguments of WRITE (RFC 8881 section 18.32).
#[derive(Debug, Clone)]
pub struct WriteArgs {
    /// Stateid of an open, of locks or of a delegation, or a special stateid.
    pub stateid: Stateid,
    /// Offset in bytes.
    pub offset: u64,
    /// Required stability.
    pub stable: StableHow,
    /// The data, by reference.
    pub data: Views,
}

impl Encode for WriteArgs {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.stateid);
        e.put_u64(self.offset);
        e.put(&self.stable);
        e.put_payload(self.data.clone());
    }
}

impl<'a> Decode<'a> for WriteArgs {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { stateid: d.get()?, offset: d.get()?, stable: d.get()?, data: d.payload(MAX_DATA)? })
    }
}

xdr_struct! {
    /// Result of WRITE.
    pub struct WriteOk {
        /// Number of bytes written.
        pub count: u32,
        /// Stability of the data.
        pub committed: StableHow,
        /// Write verifier of the server instance.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// Arguments of COMMIT (RFC 8881 section 18.3).
    pub struct CommitArgs {
        /// Offset in bytes.
        pub offset: u64,
        /// Number of bytes; 0: to the end of the file.
        pub count: u32,
    }
}

xdr_struct! {
    /// Result of COMMIT.
    pub struct CommitOk {
        /// Write verifier of the server instance; if it differs from that of WRITE, unstable data may be
        /// lost.
        pub verifier: Verifier,
    }
}

/// Result of READLINK (RFC 8881 section 18.24), which has no arguments.
#[derive(Debug, Clone)]
pub struct ReadlinkOk {
    /// Target of the link, by reference; at most [`MAX_PATH`] bytes.
    pub target: Views,
}

impl Encode for ReadlinkOk {
    fn encode(&self, e: &mut Encoder) {
        e.put_payload(self.target.clone());
    }
}

impl<'a> Decode<'a> for ReadlinkOk {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { target: d.payload(MAX_PATH)? })
    }
}
