//! Types of persistent reservations, and the commands that they allow (SPC-4 section 5.13.1, SBC-3 section 4.17).

/// The TYPE of a persistent reservation (SPC-4 section 6.15.3.4). The scope is always the logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered nexuses write; one holds the reservation.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registered nexuses read and write; one holds the reservation.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registered nexuses write; all hold the reservation.
    WriteExclusiveAllRegistrants = 7,
    /// Only registered nexuses read and write; all hold the reservation.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// All types, by code.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type with a code of the TYPE field.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The code in the TYPE field.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Every registered nexus holds the reservation.
    pub fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Registered nexuses other than the holder have its access.
    pub(super) fn is_shared(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Nexuses without the holder's access may read.
    pub(super) fn allows_reads(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// How a command accesses the logical unit: its row in SPC-4 table 63 and SBC-3 table 15. RESERVE(6), RELEASE(6) and
/// the PERSISTENT RESERVE commands have functions of [`Reservations`](super::Reservations) instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Allowed in the presence of every reservation: INQUIRY, REPORT LUNS, REQUEST SENSE.
    Always,
    /// Allowed in the presence of every persistent reservation, but not of RESERVE(6) by another nexus:
    /// TEST UNIT READY, READ CAPACITY, LOG SENSE, REPORT TARGET PORT GROUPS, START STOP UNIT that starts,
    /// PREVENT ALLOW MEDIUM REMOVAL that allows.
    Status,
    /// Reads the medium or the parameters: READ, VERIFY, PRE-FETCH, GET LBA STATUS, MODE SENSE, READ BUFFER,
    /// RECEIVE DIAGNOSTIC RESULTS, REPORT SUPPORTED OPERATION CODES.
    Read,
    /// Every other command: WRITE, COMPARE AND WRITE, UNMAP, WRITE SAME, SYNCHRONIZE CACHE, FORMAT UNIT, MODE SELECT,
    /// LOG SELECT, EXTENDED COPY, SEND DIAGNOSTIC, WRITE BUFFER, START STOP UNIT that stops.
    Write,
}
