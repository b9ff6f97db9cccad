//! REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS and REPORT TARGET PORT GROUPS (SPC-4
//! sections 6.35 to 6.37).

use super::{TARGET_PORT, command::Job};
use crate::{
    bytes::put,
    cdb::{COMMANDS, Command, commands_of},
    failure::Outcome,
    sense::Sense,
};

/// Command timeouts descriptor: no timeouts are indicated.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// RCTD and REPD.
const TIMEOUTS_WANTED: u8 = 0x80;

impl Job {
    pub(super) fn report_opcodes(&self) -> Outcome<Vec<u8>> {
        let cdb = &self.cdb;
        let timeouts = cdb.byte(2) & TIMEOUTS_WANTED != 0;
        let (opcode, action) = (cdb.byte(3), cdb.field16(4));
        let mut candidates = commands_of(opcode).filter(|c| self.disk.supports(c.operation)).peekable();
        let has_actions = candidates.peek().is_some_and(|c| c.action.is_some());
        let none = candidates.peek().is_none();
        let found = candidates.find(|c| c.action.is_none_or(|a| u16::from(a) == action));
        match cdb.byte(2) & 7 {
            0 => Ok(self.all_commands(timeouts)),
            // The operation code must have no service actions, or must have some.
            1 if has_actions => Err(Sense::cdb_field(2, Some(2)).into()),
            2 if !has_actions && !none => Err(Sense::cdb_field(2, Some(2)).into()),
            1 | 2 => Ok(one_command(found, timeouts)),
            3 => Ok(one_command(found.filter(|_| has_actions || action == 0), timeouts)),
            _ => Err(Sense::cdb_field(2, Some(2)).into()),
        }
    }

    fn all_commands(&self, timeouts: bool) -> Vec<u8> {
        let mut data = vec![0; 4];
        for command in COMMANDS.iter().filter(|c| self.disk.supports(c.operation)) {
            let mut descriptor = [0; 8];
            put(&mut descriptor, 0, &[command.opcode, 0, 0, command.action.unwrap_or(0)]);
            let flags = u8::from(command.action.is_some()) | if timeouts { 2 } else { 0 };
            put(&mut descriptor, 5, &[flags, 0, command.len() as u8]);
            data.extend_from_slice(&descriptor);
            if timeouts {
                data.extend_from_slice(&TIMEOUTS);
            }
        }
        let length = data.len() as u32 - 4;
        put(&mut data, 0, &length.to_be_bytes());
        data
    }

    /// ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET; no I_T NEXUS RESET.
    pub(super) fn report_task_management(&self) -> Vec<u8> {
        let functions = [0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0];
        let mut data = vec![0; if self.cdb.byte(2) & TIMEOUTS_WANTED != 0 { 16 } else { 4 }];
        let length = data.len() as u8 - 4;
        put(&mut data, 0, &functions);
        put(&mut data, 3, &[length]);
        data
    }

    /// One group with one target port, which is active and optimized.
    pub(super) fn report_target_port_groups(&self) -> Outcome<Vec<u8>> {
        let [high, low] = TARGET_PORT.to_be_bytes();
        // PREF, all states except active/optimized unsupported, group, one port.
        let group = [0x80, 0x01, high, low, 0, 0, 0, 1, 0, 0, high, low];
        let extended = match self.cdb.byte(1) >> 5 {
            0 => &[][..],
            // PARAMETER DATA FORMAT 1, IMPLICIT TRANSITION TIME 0.
            1 => &[0x10, 0, 0, 0][..],
            _ => return Err(Sense::cdb_field(1, Some(7)).into()),
        };
        let length = (extended.len() + group.len()) as u32;
        Ok([&length.to_be_bytes(), extended, &group].concat())
    }
}

/// The parameter data for one command (SPC-4 section 6.35.3). SUPPORT is 1 for an unsupported one.
fn one_command(command: Option<&Command>, timeouts: bool) -> Vec<u8> {
    let Some(command) = command else { return vec![0, 1, 0, 0] };
    let mut data = vec![0, if timeouts { 0x83 } else { 0x03 }, 0, command.len() as u8];
    data.extend(command.usage());
    if timeouts {
        data.extend_from_slice(&TIMEOUTS);
    }
    data
}
