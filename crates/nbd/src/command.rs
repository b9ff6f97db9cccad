//! The command of a request, or the error with which it is refused.

use std::ops::Range;

use crate::{
    handshake::Negotiated,
    wire::{Errno, Request, command, command_flag},
};

/// Maximum length of the data of a read or write in bytes: that of clients that do not request the block
/// size.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;

/// The properties of the device for clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// Number of bytes.
    pub(crate) capacity: u64,
    /// Length of a block in bytes.
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
    /// Whether ranges can be discarded.
    pub(crate) trim: bool,
}

/// A valid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Reads at most [`MAX_PAYLOAD`] bytes.
    Read(Range<u64>),
    /// Writes at most [`MAX_PAYLOAD`] bytes, and makes them durable if `fua`.
    Write {
        range: Range<u64>,
        fua: bool,
    },
    Flush,
    Trim {
        range: Range<u64>,
        fua: bool,
    },
    WriteZeroes {
        range: Range<u64>,
        fua: bool,
        /// Whether the range may lose its storage.
        punch: bool,
    },
    /// Reports which blocks have storage, from the beginning of the range on.
    BlockStatus {
        range: Range<u64>,
        /// Whether only the first range of blocks with one state is reported.
        one: bool,
    },
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) Errno, pub(crate) &'static str);

impl Command {
    /// Checks a request other than NBD_CMD_DISC.
    pub(crate) fn new(
        request: &Request,
        geometry: &Geometry,
        negotiated: Negotiated,
    ) -> Result<Self, Refusal> {
        let fua = request.flags & command_flag::FUA != 0;
        // FUA is valid for all commands.
        let flags = command_flag::FUA
            | match request.command {
                command::READ if negotiated.structured => command_flag::DF,
                command::BLOCK_STATUS => command_flag::REQ_ONE,
                command::WRITE_ZEROES => command_flag::NO_HOLE,
                _ => 0,
            };
        if request.flags & !flags != 0 {
            return Err(Refusal(Errno::Inval, "a flag is not valid for the command"));
        }
        let changes = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if changes && geometry.read_only {
            return Err(Refusal(Errno::Perm, "the export is read-only"));
        }
        let range = || geometry.range(request);
        match request.command {
            command::READ if request.length > MAX_PAYLOAD => {
                Err(Refusal(Errno::Inval, "the length exceeds the maximum payload"))
            }
            command::READ => Ok(Self::Read(range()?)),
            command::WRITE => Ok(Self::Write { range: range()?, fua }),
            command::TRIM if geometry.trim => Ok(Self::Trim { range: range()?, fua }),
            command::WRITE_ZEROES => {
                let punch = request.flags & command_flag::NO_HOLE == 0;
                Ok(Self::WriteZeroes { range: range()?, fua, punch })
            }
            command::BLOCK_STATUS if !negotiated.allocation => {
                Err(Refusal(Errno::Inval, "base:allocation is not negotiated"))
            }
            command::BLOCK_STATUS if request.length == 0 => {
                Err(Refusal(Errno::Inval, "the range of a block status is empty"))
            }
            command::BLOCK_STATUS => {
                let one = request.flags & command_flag::REQ_ONE != 0;
                Ok(Self::BlockStatus { range: range()?, one })
            }
            command::FLUSH if (request.offset, request.length) != (0, 0) => {
                Err(Refusal(Errno::Inval, "a flush has no range"))
            }
            command::FLUSH => Ok(Self::Flush),
            _ => Err(Refusal(Errno::Inval, "the command is not supported")),
        }
    }
}

impl Geometry {
    /// The range of a request.
    fn range(&self, request: &Request) -> Result<Range<u64>, Refusal> {
        let (offset, length) = (request.offset, u64::from(request.length));
        let end = offset.checked_add(length).filter(|end| *end <= self.capacity);
        let Some(end) = end else {
            let writes = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
            let error = if writes { Errno::NoSpc } else { Errno::Inval };
            return Err(Refusal(error, "the range is beyond the end of the device"));
        };
        let block = u64::from(self.block_size);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            let text = "the range does not consist of whole blocks of the minimum block size";
            return Err(Refusal(Errno::Inval, text));
        }
        Ok(offset..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { capacity: 1 << 30, block_size: 4096, read_only: false, trim: true };

    const ALL: Negotiated = Negotiated { structured: true, allocation: true };

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 1, offset, length }
    }

    #[test]
    fn valid_requests_become_commands() {
        let all: [((u16, u16, u64, u32), Command); 12] = [
            ((0, 0, 0, 4096), Command::Read(0..4096)),
            ((0, 5, 4096, 32 << 20), Command::Read(4096..4096 + (32 << 20))),
            ((1, 0, 8192, 4096), Command::Write { range: 8192..12288, fua: false }),
            ((1, 1, (1 << 30) - 4096, 4096), Command::Write { range: (1 << 30) - 4096..1 << 30, fua: true }),
            ((1, 0, 1 << 30, 0), Command::Write { range: 1 << 30..1 << 30, fua: false }),
            ((3, 1, 0, 0), Command::Flush),
            ((4, 1, 0, 1 << 30), Command::Trim { range: 0..1 << 30, fua: true }),
            ((6, 2, 0, 1 << 30), Command::WriteZeroes { range: 0..1 << 30, fua: false, punch: false }),
            ((6, 3, 0, 4096), Command::WriteZeroes { range: 0..4096, fua: true, punch: false }),
            ((6, 0, 0, 4096), Command::WriteZeroes { range: 0..4096, fua: false, punch: true }),
            ((7, 0, 0, 1 << 30), Command::BlockStatus { range: 0..1 << 30, one: false }),
            ((7, 9, 4096, 4096), Command::BlockStatus { range: 4096..8192, one: true }),
        ];
        for ((command, flags, offset, length), expected) in all {
            let request = request(command, flags, offset, length);
            assert_eq!(Command::new(&request, &GEOMETRY, ALL), Ok(expected), "{request:?}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_error_of_the_specification() {
        let all = [
            ((0, 0, 0, (32 << 20) + 4096), Errno::Inval), // More than the maximum payload.
            ((0, 0, 1 << 30, 4096), Errno::Inval),        // Beyond the end.
            ((0, 0, u64::MAX - 4095, 4096), Errno::Inval),
            ((1, 0, 1 << 30, 4096), Errno::NoSpc),
            ((6, 0, 4096, 1 << 30), Errno::NoSpc),
            ((4, 0, 4096, 1 << 30), Errno::Inval),
            ((0, 0, 512, 4096), Errno::Inval), // Not aligned.
            ((1, 0, 0, 512), Errno::Inval),
            ((0, 2, 0, 4096), Errno::Inval), // Flags of other commands.
            ((1, 4, 0, 4096), Errno::Inval),
            ((1, 0x8000, 0, 4096), Errno::Inval),
            ((6, 16, 0, 4096), Errno::Inval), // FAST_ZERO, which is not offered.
            ((3, 0, 4096, 0), Errno::Inval),
            ((5, 0, 0, 4096), Errno::Inval), // CACHE
            ((7, 0, 0, 0), Errno::Inval),    // BLOCK_STATUS of an empty range
            ((7, 0, 1 << 30, 4096), Errno::Inval),
            ((7, 4, 0, 4096), Errno::Inval),
            ((0xffff, 0, 0, 4096), Errno::Inval),
        ];
        for ((command, flags, offset, length), expected) in all {
            let request = request(command, flags, offset, length);
            let refusal = Command::new(&request, &GEOMETRY, ALL).unwrap_err();
            assert_eq!(refusal.0, expected, "{request:?}");
        }
        let no_fragments = request(0, command_flag::DF, 0, 4096);
        let status = request(command::BLOCK_STATUS, 0, 0, 4096);
        let without = Negotiated { allocation: false, ..ALL };
        assert!(Command::new(&status, &GEOMETRY, without).is_err(), "base:allocation is not negotiated");
        assert!(
            Command::new(&no_fragments, &GEOMETRY, Negotiated::default()).is_err(),
            "DF needs structured replies"
        );
    }

    #[test]
    fn a_read_only_export_permits_reads_and_flushes() {
        let geometry = Geometry { read_only: true, trim: false, ..GEOMETRY };
        for command in [0, 3] {
            let length = if command == 0 { 4096 } else { 0 };
            assert!(Command::new(&request(command, 0, 0, length), &geometry, ALL).is_ok());
        }
        for command in [1, 4, 6] {
            let refusal = Command::new(&request(command, 0, 0, 4096), &geometry, ALL).unwrap_err();
            assert_eq!(refusal.0, Errno::Perm, "command {command}");
        }
    }
}
