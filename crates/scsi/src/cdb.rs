//! CDBs: the supported commands, and access to the fields that they share.
//!
//! [`COMMANDS`] is the only list of commands. Decoding, the check of reserved bits and REPORT SUPPORTED OPERATION
//! CODES use it.

use crate::{
    bytes::{be16, be24, be32, be64},
    sense::{AdditionalSense, Sense},
};

/// Length of a CDB in bytes, without AHS. Bytes behind a shorter CDB are ignored.
pub const CDB_LEN: usize = 16;

/// The operation of a command: operation code and service action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    Reserve,
    Release,
    StartStopUnit,
    PreventAllow,
    ReadCapacity10,
    ReadCapacity16,
    Read,
    Write,
    WriteAndVerify,
    Verify,
    PreFetch,
    SynchronizeCache,
    WriteSame,
    Unmap,
    CompareAndWrite,
    OrWrite,
    GetLbaStatus,
    PersistentReserveIn,
    PersistentReserveOut,
    ReportLuns,
    ReportTargetPortGroups,
    ReportOpcodes,
    ReportTaskManagement,
}

/// A supported command.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    /// SERVICE ACTION, in the lower five bits of byte 1.
    pub(crate) action: Option<u8>,
    pub(crate) operation: Operation,
    /// The bits after the operation code that the device server evaluates; the length is that of the CDB less 1.
    /// SERVICE ACTION is not included.
    usage: &'static [u8],
}

impl Command {
    const fn new(opcode: u8, action: Option<u8>, operation: Operation, usage: &'static [u8]) -> Self {
        Self { opcode, action, operation, usage }
    }

    /// Length of the CDB in bytes.
    pub(crate) fn len(&self) -> usize {
        self.usage.len() + 1
    }

    /// CDB USAGE DATA (SPC-4 section 6.35.3): operation code, service action, and bits that are evaluated.
    pub(crate) fn usage(&self) -> impl Iterator<Item = u8> {
        let action = |(at, bits): (usize, &u8)| bits | self.action.filter(|_| at == 0).unwrap_or(0);
        [self.opcode].into_iter().chain(self.usage.iter().enumerate().map(action))
    }

    /// Requires that bits which are not evaluated are 0. Among them is NACA.
    fn check(&self, cdb: &[u8; CDB_LEN]) -> Result<(), Sense> {
        for (at, (byte, usage)) in cdb.iter().skip(1).zip(self.usage).enumerate() {
            let action = if at == 0 && self.action.is_some() { 0x1f } else { 0 };
            let wrong = byte & !(usage | action);
            if wrong != 0 {
                let bit = 7 - wrong.leading_zeros() as u8;
                return Err(Sense::cdb_field(at as u16 + 1, Some(bit)));
            }
        }
        Ok(())
    }
}

/// Bits of byte 1: DPO and FUA.
const CACHE: u8 = 0x18;
/// Bits of byte 1: DPO and BYTCHK.
const CHECK: u8 = 0x16;

const fn transfer6() -> &'static [u8] {
    &[0x1f, 0xff, 0xff, 0xff, 0]
}

/// GROUP NUMBER of PRE-FETCH, which has no effect: as a hint, it is not refused.
const GROUP: u8 = 0x3f;

macro_rules! usage10 {
    ($flags:expr, $group:expr) => {
        &[$flags, 0xff, 0xff, 0xff, 0xff, $group, 0xff, 0xff, 0]
    };
    ($flags:expr) => {
        usage10!($flags, 0)
    };
}
macro_rules! usage12 {
    ($flags:expr) => {
        &[$flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]
    };
}
macro_rules! usage16 {
    ($flags:expr, $group:expr) => {
        &[$flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, $group, 0]
    };
    ($flags:expr) => {
        usage16!($flags, 0)
    };
}

/// PERSISTENT RESERVE IN.
const PR_IN: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
/// PERSISTENT RESERVE OUT.
const PR_OUT: &[u8] = &[0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];

/// All commands, in order of operation code and service action.
pub(crate) static COMMANDS: &[Command] = &[
    Command::new(0x00, None, Operation::TestUnitReady, &[0; 5]),
    Command::new(0x03, None, Operation::RequestSense, &[0, 0, 0, 0xff, 0]),
    Command::new(0x08, None, Operation::Read, transfer6()),
    Command::new(0x0a, None, Operation::Write, transfer6()),
    Command::new(0x12, None, Operation::Inquiry, &[0x01, 0xff, 0xff, 0xff, 0]),
    Command::new(0x15, None, Operation::ModeSelect, &[0x11, 0, 0, 0xff, 0]),
    Command::new(0x16, None, Operation::Reserve, &[0; 5]),
    Command::new(0x17, None, Operation::Release, &[0; 5]),
    Command::new(0x1a, None, Operation::ModeSense, &[0x08, 0xff, 0xff, 0xff, 0]),
    Command::new(0x1b, None, Operation::StartStopUnit, &[0x01, 0, 0, 0x05, 0]),
    Command::new(0x1e, None, Operation::PreventAllow, &[0, 0, 0, 0x03, 0]),
    Command::new(0x25, None, Operation::ReadCapacity10, &[0; 9]),
    Command::new(0x28, None, Operation::Read, usage10!(CACHE)),
    Command::new(0x2a, None, Operation::Write, usage10!(CACHE)),
    Command::new(0x2e, None, Operation::WriteAndVerify, usage10!(CHECK)),
    Command::new(0x2f, None, Operation::Verify, usage10!(CHECK)),
    Command::new(0x34, None, Operation::PreFetch, usage10!(0x02, GROUP)),
    Command::new(0x35, None, Operation::SynchronizeCache, usage10!(0x02)),
    Command::new(0x41, None, Operation::WriteSame, usage10!(0x18)),
    Command::new(0x42, None, Operation::Unmap, &[0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    Command::new(0x55, None, Operation::ModeSelect, &[0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    Command::new(0x5a, None, Operation::ModeSense, &[0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0]),
    Command::new(0x5e, Some(0x00), Operation::PersistentReserveIn, PR_IN),
    Command::new(0x5e, Some(0x01), Operation::PersistentReserveIn, PR_IN),
    Command::new(0x5e, Some(0x02), Operation::PersistentReserveIn, PR_IN),
    Command::new(0x5e, Some(0x03), Operation::PersistentReserveIn, PR_IN),
    Command::new(0x5f, Some(0x00), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x01), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x02), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x03), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x04), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x05), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x06), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x5f, Some(0x07), Operation::PersistentReserveOut, PR_OUT),
    Command::new(0x88, None, Operation::Read, usage16!(CACHE)),
    Command::new(
        0x89,
        None,
        Operation::CompareAndWrite,
        &[CACHE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0, 0],
    ),
    Command::new(0x8a, None, Operation::Write, usage16!(CACHE)),
    Command::new(0x8b, None, Operation::OrWrite, usage16!(CACHE)),
    Command::new(0x8e, None, Operation::WriteAndVerify, usage16!(CHECK)),
    Command::new(0x8f, None, Operation::Verify, usage16!(CHECK)),
    Command::new(0x90, None, Operation::PreFetch, usage16!(0x02, GROUP)),
    Command::new(0x91, None, Operation::SynchronizeCache, usage16!(0x02)),
    Command::new(0x93, None, Operation::WriteSame, usage16!(0x19)),
    Command::new(
        0x9e,
        Some(0x10),
        Operation::ReadCapacity16,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    Command::new(0x9e, Some(0x12), Operation::GetLbaStatus, usage16!(0)),
    Command::new(0xa0, None, Operation::ReportLuns, &[0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    Command::new(
        0xa3,
        Some(0x0a),
        Operation::ReportTargetPortGroups,
        &[0xe0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    Command::new(
        0xa3,
        Some(0x0c),
        Operation::ReportOpcodes,
        &[0, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    Command::new(
        0xa3,
        Some(0x0d),
        Operation::ReportTaskManagement,
        &[0, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    Command::new(0xa8, None, Operation::Read, usage12!(CACHE)),
    Command::new(0xaa, None, Operation::Write, usage12!(CACHE)),
    Command::new(0xae, None, Operation::WriteAndVerify, usage12!(CHECK)),
    Command::new(0xaf, None, Operation::Verify, usage12!(CHECK)),
];

/// For each operation code the index of its first entry in [`COMMANDS`], which is sorted.
static FIRST: [u8; 256] = {
    let mut first = [u8::MAX; 256];
    let mut at = COMMANDS.len();
    while at > 0 {
        at -= 1;
        first[COMMANDS[at].opcode as usize] = at as u8;
    }
    first
};

/// The entries of [`COMMANDS`] with this operation code.
pub(crate) fn commands_of(opcode: u8) -> impl Iterator<Item = &'static Command> {
    let first = FIRST.get(usize::from(opcode)).map_or(usize::MAX, |f| usize::from(*f));
    COMMANDS.get(first..).unwrap_or_default().iter().take_while(move |c| c.opcode == opcode)
}

/// A range of logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u32,
}

/// A CDB of a supported command without reserved bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cdb {
    pub(crate) command: &'static Command,
    bytes: [u8; CDB_LEN],
}

impl Cdb {
    /// Finds the command and checks reserved bits.
    pub(crate) fn decode(bytes: &[u8; CDB_LEN]) -> Result<Self, Sense> {
        let mut candidates = commands_of(bytes[0]).peekable();
        if candidates.peek().is_none() {
            return Err(Sense::illegal(AdditionalSense::INVALID_OPCODE));
        }
        let command = candidates
            .find(|c| c.action.is_none_or(|a| a == bytes[1] & 0x1f))
            .ok_or(Sense::cdb_field(1, Some(4)))?;
        command.check(bytes)?;
        Ok(Self { command, bytes: *bytes })
    }

    /// The operation, without a check of other fields.
    pub(crate) fn operation_of(bytes: &[u8; CDB_LEN]) -> Option<Operation> {
        commands_of(bytes[0]).find(|c| c.action.is_none_or(|a| a == bytes[1] & 0x1f)).map(|c| c.operation)
    }

    pub(crate) fn operation(&self) -> Operation {
        self.command.operation
    }

    /// The byte at `at`, below [`CDB_LEN`].
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Whether `bit` of byte 1 is set.
    pub(crate) fn flag(&self, bit: u8) -> bool {
        self.bytes[1] & bit != 0
    }

    /// FUA of a command that has it.
    pub(crate) fn fua(&self) -> bool {
        self.command.len() > 6 && self.flag(0x08)
    }

    /// BYTCHK of VERIFY and WRITE AND VERIFY.
    pub(crate) fn byte_check(&self) -> u8 {
        self.bytes[1] >> 1 & 3
    }

    fn be16(&self, at: usize) -> u16 {
        be16(&self.bytes, at).unwrap_or(0)
    }

    fn be32(&self, at: usize) -> u32 {
        be32(&self.bytes, at).unwrap_or(0)
    }

    /// LOGICAL BLOCK ADDRESS and the number of blocks.
    pub(crate) fn blocks(&self) -> Blocks {
        let (lba, count) = match (self.command.len(), self.operation()) {
            (6, _) => {
                let count = if self.bytes[4] == 0 { 256 } else { u32::from(self.bytes[4]) };
                (u64::from(be24(&self.bytes, 1).unwrap_or(0) & 0x1f_ffff), count)
            }
            (10, _) => (u64::from(self.be32(2)), u32::from(self.be16(7))),
            (12, _) => (u64::from(self.be32(2)), self.be32(6)),
            (_, Operation::CompareAndWrite) => (self.lba16(), u32::from(self.bytes[13])),
            _ => (self.lba16(), self.be32(10)),
        };
        Blocks { lba, count }
    }

    /// LOGICAL BLOCK ADDRESS of a CDB of 16 bytes.
    pub(crate) fn lba16(&self) -> u64 {
        be64(&self.bytes, 2).unwrap_or(0)
    }

    /// ALLOCATION LENGTH, or PARAMETER LIST LENGTH.
    pub(crate) fn length(&self) -> u32 {
        match self.operation() {
            Operation::Inquiry => u32::from(self.be16(3)),
            Operation::PersistentReserveOut => self.be32(5),
            _ => match self.command.len() {
                6 => u32::from(self.bytes[4]),
                10 => u32::from(self.be16(7)),
                12 => self.be32(6),
                _ => self.be32(10),
            },
        }
    }

    /// Offset of the field of [`Self::length`], or of the number of blocks.
    pub(crate) fn length_at(&self) -> u16 {
        match (self.operation(), self.command.len()) {
            (Operation::Inquiry, _) => 3,
            (Operation::PersistentReserveOut, _) => 5,
            (Operation::CompareAndWrite, _) => 13,
            (_, 6) => 4,
            (_, 10) => 7,
            (_, 12) => 6,
            _ => 10,
        }
    }

    /// The first ten bytes.
    pub(crate) fn first_ten(&self) -> [u8; 10] {
        self.bytes.first_chunk().copied().unwrap_or_default()
    }

    /// The two bytes at `at`.
    pub(crate) fn field16(&self, at: usize) -> u16 {
        self.be16(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(bytes: &[u8]) -> Result<Cdb, Sense> {
        let mut all = [0; CDB_LEN];
        all[..bytes.len()].copy_from_slice(bytes);
        Cdb::decode(&all)
    }

    #[test]
    fn commands_are_sorted_and_have_the_length_of_their_group() {
        let keys: Vec<_> = COMMANDS.iter().map(|c| (c.opcode, c.action)).collect();
        assert!(keys.is_sorted());
        for command in COMMANDS {
            let len = match command.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                _ => 12,
            };
            assert_eq!(command.len(), len, "{command:?}");
            assert_eq!(command.usage().count(), len);
            assert_eq!(command.usage().next(), Some(command.opcode));
        }
    }

    #[test]
    fn block_ranges_of_all_lengths() {
        let of = |bytes: &[u8]| cdb(bytes).unwrap().blocks();
        assert_eq!(of(&[0x08, 0x1f, 0xff, 0xff, 0]), Blocks { lba: 0x1f_ffff, count: 256 });
        assert_eq!(of(&[0x2a, 8, 1, 2, 3, 4, 0, 5, 6, 0]), Blocks { lba: 0x0102_0304, count: 0x506 });
        assert_eq!(
            of(&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]),
            Blocks { lba: 0x0102_0304, count: 0x0506_0708 }
        );
        let bytes = [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
        assert_eq!(of(&bytes), Blocks { lba: 0x0102_0304_0506_0708, count: 0x090a_0b0c });
        let bytes = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 255, 0, 0];
        assert_eq!(of(&bytes), Blocks { lba: 8, count: 255 });
    }

    #[test]
    fn reserved_bits_are_refused_with_their_place() {
        let wrong = |bytes: &[u8]| cdb(bytes).unwrap_err();
        assert_eq!(wrong(&[0xff]), Sense::illegal(AdditionalSense::INVALID_OPCODE));
        // RDPROTECT, NACA, a reserved byte, an unknown service action.
        assert_eq!(wrong(&[0x28, 0xa0]), Sense::cdb_field(1, Some(7)));
        assert_eq!(wrong(&[0x00, 0, 0, 0, 0, 4]), Sense::cdb_field(5, Some(2)));
        assert_eq!(wrong(&[0x2a, 0, 0, 0, 0, 0, 1]), Sense::cdb_field(6, Some(0)));
        assert_eq!(wrong(&[0x9e, 0x11]), Sense::cdb_field(1, Some(4)));
        assert_eq!(wrong(&[0x9e, 0x30]), Sense::cdb_field(1, Some(5)));
        // Bytes behind the CDB are ignored.
        assert!(cdb(&[0x00, 0, 0, 0, 0, 0, 0xff]).is_ok());
    }

    #[test]
    fn usage_data_contains_the_service_action() {
        let usage: Vec<_> = commands_of(0x9e).next().unwrap().usage().collect();
        assert_eq!(usage, [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        let usage: Vec<_> = commands_of(0x28).next().unwrap().usage().collect();
        assert_eq!(usage, [0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0]);
    }
}
