//! Execution of a command: checks that all commands share, and dispatch.

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_vfs::Views;

use super::{Disk, blocks::Extent};
use crate::{
    cdb::{Cdb, Operation},
    config::TargetConfig,
    failure::{Failure, Outcome, Step},
    nexus::UnitNexus,
    reservation::{Access, NexusId},
    sense::{AdditionalSense, Sense, SenseKey, Status},
};

/// What a command transfers; nothing if it fails because of its CDB. At most one of both numbers of bytes is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfer {
    /// Data-out: exactly this number, at most 2^23, unless the initiator has fewer.
    pub data_out: u32,
    /// Data-in: at most this number.
    pub data_in: u32,
    /// Offset on the medium, in bytes, at which the command stores its data-out; 0 unless it stores it unchanged.
    pub offset: u64,
}

/// A command at a disk.
pub(crate) struct Job {
    pub(crate) disk: Arc<Disk>,
    pub(crate) target: Arc<TargetConfig>,
    pub(crate) nexus: Arc<UnitNexus>,
    pub(crate) cdb: Cdb,
    /// The received data-out.
    pub(crate) data: Views,
    /// Number of bytes that the initiator has for the command.
    pub(crate) expected: u32,
}

/// Parameter data of a reply, truncated to the allocation length.
pub(crate) fn parameter_data(arena: &Arena, mut data: Vec<u8>, allocation: u32) -> Outcome<Views> {
    data.truncate(allocation as usize);
    if data.is_empty() {
        return Ok(Views::new());
    }
    let mut buffer = arena.alloc(data.len()).map_err(|_| Failure::Status(Status::Busy))?;
    buffer.copy_from_slice(&data);
    Ok(buffer.freeze().into())
}

impl Disk {
    /// What a command transfers.
    pub(crate) fn transfer(&self, cdb: &Cdb) -> Outcome<Transfer> {
        if !self.supports(cdb.operation()) {
            return Err(Sense::illegal(AdditionalSense::INVALID_OPCODE).into());
        }
        let block = self.block_bytes();
        // At most MAX_TRANSFER_BYTES.
        let data = || self.transfer_extent(cdb).map(|extent| extent.bytes as u32);
        let (data_out, data_in) = match cdb.operation() {
            Operation::Read => (0, data()?),
            Operation::Write | Operation::WriteAndVerify => {
                let Extent { offset, bytes } = self.transfer_extent(cdb)?;
                return Ok(Transfer { data_out: bytes as u32, data_in: 0, offset });
            }
            Operation::OrWrite => (data()?, 0),
            Operation::CompareAndWrite => (2 * data()?, 0),
            Operation::Verify => match cdb.byte_check() {
                1 => (data()?, 0),
                3 if cdb.blocks().count > 0 => (block, 0),
                _ => (0, 0),
            },
            Operation::WriteSame => (if cdb.flag(NDOB) && cdb.command.len() == 16 { 0 } else { block }, 0),
            Operation::ModeSelect | Operation::Unmap => (cdb.length(), 0),
            Operation::PersistentReserveOut => (cdb.length().min(MAX_PARAMETER_LIST), 0),
            Operation::TestUnitReady
            | Operation::Reserve
            | Operation::Release
            | Operation::StartStopUnit
            | Operation::PreventAllow
            | Operation::PreFetch
            | Operation::SynchronizeCache => (0, 0),
            Operation::ReadCapacity10 => (0, 8),
            _ => (0, cdb.length()),
        };
        Ok(Transfer { data_out, data_in, offset: 0 })
    }
}

/// NDOB of WRITE SAME(16).
pub(super) const NDOB: u8 = 0x01;
/// Maximum length of a parameter list that a transport fetches.
const MAX_PARAMETER_LIST: u32 = crate::reservation::MAX_PARAMETER_LIST as u32;

/// How a command accesses the unit; `None` for commands on reservations.
fn access(cdb: &Cdb) -> Option<Access> {
    Some(match cdb.operation() {
        Operation::Inquiry | Operation::ReportLuns | Operation::RequestSense => Access::Always,
        Operation::TestUnitReady
        | Operation::ReadCapacity10
        | Operation::ReadCapacity16
        | Operation::ReportTargetPortGroups => Access::Status,
        Operation::StartStopUnit if cdb.byte(4) & 1 == 1 => Access::Status,
        Operation::PreventAllow if cdb.byte(4) & 3 == 0 => Access::Status,
        Operation::Read
        | Operation::Verify
        | Operation::PreFetch
        | Operation::GetLbaStatus
        | Operation::ModeSense
        | Operation::ReportOpcodes
        | Operation::ReportTaskManagement => Access::Read,
        Operation::Reserve
        | Operation::Release
        | Operation::PersistentReserveIn
        | Operation::PersistentReserveOut => return None,
        _ => Access::Write,
    })
}

/// Whether a command changes the medium.
fn writes(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Write
            | Operation::WriteAndVerify
            | Operation::WriteSame
            | Operation::Unmap
            | Operation::CompareAndWrite
            | Operation::OrWrite
    )
}

impl Job {
    /// Executes the command; returns its data-in.
    pub(crate) fn run(self) -> Step<Views> {
        if let Err(failure) = self.check() {
            return Step::Ready(Err(failure));
        }
        match self.cdb.operation() {
            Operation::Read => self.read(),
            Operation::Write => self.write(),
            Operation::WriteAndVerify => self.write_and_verify(),
            Operation::Verify => self.verify(),
            Operation::SynchronizeCache => self.synchronize_cache(),
            Operation::PreFetch => Step::Ready(self.pre_fetch()),
            Operation::WriteSame => self.write_same(),
            Operation::Unmap => self.unmap(),
            Operation::CompareAndWrite => self.compare_and_write(),
            Operation::OrWrite => self.or_write(),
            Operation::GetLbaStatus => self.get_lba_status(),
            Operation::StartStopUnit => self.start_stop(),
            Operation::TestUnitReady | Operation::PreventAllow => Step::Ready(Ok(Views::new())),
            Operation::ModeSelect => Step::Ready(self.mode_select()),
            Operation::Reserve | Operation::Release => self.reserve_unit(),
            Operation::PersistentReserveOut => self.reserve_out(),
            _ => Step::Ready(self.report().and_then(|data| self.reply(data))),
        }
    }

    /// The parameter data of a command that only reports.
    fn report(&self) -> Outcome<Vec<u8>> {
        Ok(match self.cdb.operation() {
            Operation::Inquiry => self.inquiry()?,
            Operation::ModeSense => self.mode_sense()?,
            Operation::ReadCapacity10 => self.read_capacity_10(),
            Operation::ReadCapacity16 => self.read_capacity_16(),
            Operation::ReportTargetPortGroups => self.report_target_port_groups()?,
            Operation::ReportOpcodes => self.report_opcodes()?,
            Operation::ReportTaskManagement => self.report_task_management(),
            Operation::PersistentReserveIn => self.reserve_in()?,
            // REQUEST SENSE: the target executes REPORT LUNS, and no other command without a case here has
            // parameter data.
            _ => self.request_sense(),
        })
    }

    /// Data-in of `data`, truncated to the allocation length.
    pub(super) fn reply(&self, data: Vec<u8>) -> Outcome<Views> {
        let allocation =
            if self.cdb.operation() == Operation::ReadCapacity10 { 8 } else { self.cdb.length() };
        parameter_data(&self.target.arena, data, allocation)
    }

    /// Checks that the disk has the command, that no reservation forbids it, and write protection.
    fn check(&self) -> Outcome<()> {
        let (disk, operation) = (&self.disk, self.cdb.operation());
        if !disk.supports(operation) {
            return Err(Sense::illegal(AdditionalSense::INVALID_OPCODE).into());
        }
        let id = NexusId(self.nexus.nexus.id());
        if access(&self.cdb).is_some_and(|access| !disk.reservations.lock().allows(id, access)) {
            return Err(Failure::Status(Status::ReservationConflict));
        }
        if writes(operation) && disk.is_write_protected() {
            let software = !disk.config.read_only;
            let protected = AdditionalSense::WRITE_PROTECTED;
            let additional = if software { AdditionalSense::SOFTWARE_WRITE_PROTECTED } else { protected };
            return Err(Sense::new(SenseKey::DataProtect, additional).into());
        }
        Ok(())
    }

    /// Sense data as parameter data: the pending unit attention condition, if there is one.
    fn request_sense(&self) -> Vec<u8> {
        let none = Sense::new(SenseKey::NoSense, AdditionalSense::NONE);
        self.nexus.take_attention().map_or(none, |a| a.sense()).to_bytes().to_vec()
    }

    /// The parameter list, whose length is that of the CDB.
    pub(super) fn parameter_list(&self) -> Outcome<Vec<u8>> {
        let length = self.cdb.length() as usize;
        if self.data.len() < length {
            return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH).into());
        }
        Ok(self.data.slice(0, length).to_vec())
    }
}
