//! COMPOUND: the frame around operations and their results (RFC 8881 section 16.2). The results of CB_COMPOUND
//! have the same frame.

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Opaque, Operation, Status};
use crate::schema::xdr_struct;

/// Maximum length of a decoded tag in bytes. The protocol has no limit.
pub const MAX_TAG: usize = 1024;

/// Operation number of the result of an unknown operation (`OP_ILLEGAL`).
pub const OP_ILLEGAL: u32 = 10_044;

/// The beginning of the arguments of COMPOUND (`COMPOUND4args`). The operations follow: each is a number
/// ([`next_operation`]) and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompoundArgs<'a> {
    /// Tag, which the server returns.
    pub tag: Opaque<'a, MAX_TAG>,
    /// Minor version.
    pub minor_version: u32,
    /// Number of operations.
    pub operations: u32,
}

impl Encode for CompoundArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.tag);
        e.put_u32(self.minor_version);
        e.put_u32(self.operations);
    }
}

impl<'a> Decode<'a> for CompoundArgs<'a> {
    /// Rejects a number of operations for which the message is too short.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::COMPOUNDS_DECODED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (tag, minor_version) = (d.get()?, d.get()?);
        Ok(Self { tag, minor_version, operations: d.count(usize::MAX, 4)? as u32 })
    }
}

/// Decodes the number of the next operation of a COMPOUND, whose arguments follow.
///
/// # Errors
/// [`XdrError::Invalid`] for an unknown operation, [`XdrError::Short`].
pub fn next_operation(d: &mut Decoder<'_>) -> Result<Operation, XdrError> {
    #[cfg(feature = "call-counts")]
    crate::call_counts::OPERATIONS_DECODED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    d.get()
}

xdr_struct! {
    /// The beginning of the result of COMPOUND (`COMPOUND4res`). The results follow: each is an operation
    /// number, a status and the data.
    pub struct CompoundRes<'a> {
        /// Status of the last operation that the server executed.
        pub status: Status,
        /// Tag of the request.
        pub tag: Opaque<'a, MAX_TAG>,
        /// Number of results.
        pub results: u32,
    }
}

/// Encodes the results of COMPOUND. The encoder is not borrowed in between, so that operations can append
/// their data to it.
///
/// Call [`Self::begin`]; for each operation [`Self::operation`], then append the data of its success, or call
/// [`Self::fail`]; at the end [`Self::finish`]. If the arena is exhausted by the data of an operation
/// ([`Encoder::has_failed`]), [`Self::fail`] replaces it, so that the results before it remain.
#[derive(Debug)]
pub struct CompoundEncoder {
    /// Position of the status of the COMPOUND.
    status_at: usize,
    /// Position of the number of results.
    count_at: usize,
    results: u32,
    /// Position and operation number of the last result.
    last: usize,
    number: u32,
    /// Whether the arena was exhausted before the last result.
    failed: bool,
    status: Status,
}

impl CompoundEncoder {
    /// Encodes the part before the results.
    pub fn begin(e: &mut Encoder, tag: &[u8]) -> Self {
        let status_at = e.len();
        match tag {
            [] => e.put_words([Status::Ok.number(), 0, 0]),
            tag => {
                e.put(&Status::Ok);
                e.put_opaque(tag);
                e.put_u32(0);
            }
        }
        let last = e.len();
        let count_at = last.saturating_sub(4);
        Self { status_at, count_at, results: 0, last, number: 0, failed: e.has_failed(), status: Status::Ok }
    }

    /// Begins the result of an operation: its number, and success. The data must be appended next.
    pub fn operation(&mut self, e: &mut Encoder, operation: impl Into<u32>) {
        (self.last, self.number, self.failed) = (e.len(), operation.into(), e.has_failed());
        self.results += 1;
        e.put_words([self.number, Status::Ok.number()]);
    }

    /// The result of an operation that does not exist in the minor version.
    pub fn illegal(&mut self, e: &mut Encoder) {
        self.operation(e, OP_ILLEGAL);
        self.fail(e, Status::OpIllegal);
    }

    /// Replaces the result of the last operation by a failure, which ends the COMPOUND. The data of a failure,
    /// if it has any, must be appended next.
    pub fn fail(&mut self, e: &mut Encoder, status: Status) {
        // Truncation would clear an error that concerns an earlier result.
        if !self.failed {
            e.truncate(self.last);
            e.put_u32(self.number);
            e.put(&status);
        }
        self.status = status;
    }

    /// Number of results so far.
    pub fn results(&self) -> u32 {
        self.results
    }

    /// Sets the number of results and the status, and returns the status: that of the last operation.
    pub fn finish(&self, e: &mut Encoder) -> Status {
        e.patch_u32(self.status_at, self.status.number());
        e.patch_u32(self.count_at, self.results);
        self.status
    }

    /// Sets a status that is not that of an operation, and no results: for a minor version that the server does
    /// not support.
    pub fn reject(&self, e: &mut Encoder, status: Status) {
        e.truncate(self.count_at + 4);
        e.patch_u32(self.status_at, status.number());
    }
}

/// Decodes the result of the next operation, for a client: the data of its success, or the status of its failure.
/// The data of a failure, if it has any, is next in the message; no result follows.
///
/// # Errors
/// [`XdrError::Invalid`] with the operation number if it is the result of another operation; an invalid
/// encoding.
pub fn decode_result<'a, T: Decode<'a>>(
    d: &mut Decoder<'a>,
    operation: impl Into<u32>,
) -> Result<Result<T, Status>, XdrError> {
    let number = d.u32()?;
    if number != operation.into() && number != OP_ILLEGAL {
        return Err(d.invalid(number));
    }
    match d.get()? {
        Status::Ok if number == OP_ILLEGAL => Err(d.invalid(0)),
        Status::Ok => d.get().map(Ok),
        status => Ok(Err(status)),
    }
}
