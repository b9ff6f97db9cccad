//! The operations of handles.

use millrace_buffer::Views;
use millrace_scsi::CDB_LEN;

use super::pieces::Pieces;

/// An operation of a handle.
pub(crate) enum Work {
    /// Fills the buffer with the data at this offset.
    Read(u64, Pieces),
    /// Fills the start of the buffer with the parameter data of one command: its name, its CDB and the buffer, which is
    /// not longer than the longest transfer.
    Query(&'static str, [u8; CDB_LEN], Pieces),
    /// Writes the data at this offset.
    Write(u64, Views),
    /// Changes the device by one command with data: its name, its CDB and its data.
    Change(&'static str, [u8; CDB_LEN], Views),
    /// Makes completed writes durable.
    Flush([u8; CDB_LEN]),
}

impl Work {
    /// Length of the data in bytes.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Read(_, pieces) | Self::Query(.., pieces) => pieces.length(),
            Self::Write(_, data) | Self::Change(_, _, data) => data.len(),
            Self::Flush(_) => 0,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Read(..) => "READ(16)",
            Self::Write(..) => "WRITE(16)",
            Self::Change(name, ..) | Self::Query(name, ..) => name,
            Self::Flush(_) => "SYNCHRONIZE CACHE(16)",
        }
    }
}
