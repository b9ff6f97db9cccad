//! Ranges of bytes and kinds of locks as requests name them.

use millrace_nfs::v4::Status;

/// The kind of a byte-range lock: READ_LT and READW_LT, or WRITE_LT and WRITEW_LT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Other owners may hold read locks on the same bytes.
    Read,
    /// No other owner may hold a lock on the same bytes.
    Write,
}

/// Bytes from `start` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` if the range includes all bytes that the file may ever have.
    pub last: u64,
}

impl ByteRange {
    /// The range of the arguments `offset` and `length`; the maximum length means to the end of the file.
    ///
    /// # Errors
    /// INVAL if `length` is 0, or if the sum exceeds `u64::MAX` (RFC 8881, 18.10.3).
    pub fn new(offset: u64, length: u64) -> Result<Self, Status> {
        let last = match length {
            0 => None,
            u64::MAX => Some(u64::MAX),
            _ => offset.checked_add(length).map(|end| end - 1),
        };
        Ok(Self { start: offset, last: last.ok_or(Status::Inval)? })
    }

    /// The argument `length` of the range.
    pub fn length(&self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.start + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_at_least_one_byte_and_end_before_the_maximum() {
        let range = |offset, length| ByteRange::new(offset, length).map(|range| (range.last, range.length()));
        assert_eq!(range(5, 3), Ok((7, 3)));
        assert_eq!(range(5, u64::MAX), Ok((u64::MAX, u64::MAX)));
        assert_eq!(range(0, u64::MAX), Ok((u64::MAX, u64::MAX)));
        assert_eq!(range(u64::MAX, u64::MAX), Ok((u64::MAX, u64::MAX)));
        assert_eq!(range(5, 0), Err(Status::Inval));
        assert_eq!(range(5, u64::MAX - 5), Ok((u64::MAX - 1, u64::MAX - 5)));
        assert_eq!(range(5, u64::MAX - 4), Err(Status::Inval));
        assert_eq!(range(u64::MAX, 1), Err(Status::Inval));
    }
}
