//! The memory that a session uses, and the memory that it is charged.

use millrace_admission::{Budget, BudgetConfig};
use millrace_iscsi::session::Direction;
use millrace_iscsi_target::MAX_COMMAND_MEMORY;

use crate::support::Fixture;

/// Connections of a budget that charges multiples of 512 bytes, the smallest slot of the arena.
const CONNECTIONS: usize = 8192;
/// A connection keeps one of them for its next command.
const UNIT: usize = 512;

/// Memory of a server with one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Bytes of the arena in use, without the content of files.
    used: usize,
    charged: usize,
}

impl Fixture {
    /// Charges each byte: nothing is reserved for connections.
    pub(crate) fn charge_all(&mut self) {
        let config = BudgetConfig {
            memory: 32 << 20,
            own: 0,
            largest: MAX_COMMAND_MEMORY,
            connections: CONNECTIONS,
            per_client: CONNECTIONS,
        };
        self.budget = Budget::new(config, self.rt.clone());
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory { used: self.transient(), charged: self.budget.stats().in_use }
    }

    /// Bytes charged beyond `before`.
    pub(crate) fn charged_since(&self, before: Memory) -> usize {
        self.memory().charged - before.charged
    }

    /// What is used is charged.
    pub(crate) fn expect_charged(&self, case: &str) {
        let now = self.memory();
        assert!(now.used <= now.charged, "{case}: {now:?}");
    }

    /// What is used beyond `before` is charged beyond it.
    pub(crate) fn expect_charged_beyond(&self, before: Memory, case: &str) {
        let now = self.memory();
        let (used, charged) = (now.used + before.charged, now.charged + before.used);
        assert!(used <= charged + UNIT, "{case}: {before:?}, {now:?}");
    }

    /// What is used and charged beyond `before` is the same.
    pub(crate) fn expect_charged_since(&self, before: Memory, case: &str) {
        let now = self.memory();
        let (used, charged) = (now.used - before.used, now.charged - before.charged);
        assert!((used..=used + UNIT).contains(&charged), "{case}: {before:?}, {now:?}");
    }

    /// As much is used and charged as `before`.
    pub(crate) fn expect_settled(&self, before: Memory, case: &str) {
        let now = self.memory();
        assert_eq!(now.used, before.used, "{case}: {before:?}, {now:?}");
        assert!(now.charged.abs_diff(before.charged) <= UNIT, "{case}: {before:?}, {now:?}");
    }
}

/// REPORT SUPPORTED OPERATION CODES of all commands.
pub(crate) const REPORT_OPCODES: [u8; 12] = [0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0];

/// The operation codes and service actions of its reply.
pub(crate) fn opcodes(reply: &[u8]) -> Vec<(u8, u8)> {
    reply[4..].chunks_exact(8).map(|descriptor| (descriptor[0], descriptor[3])).collect()
}

/// A command with this operation code and service action, and its data: as much as it needs, or accepts.
pub(crate) fn command(opcode: u8, action: u8) -> ([u8; 16], Direction, Vec<u8>) {
    const BLOCKS: u8 = 8;
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    if action != 0 {
        cdb[1] = action;
    }
    let bytes = usize::from(BLOCKS) * 512;
    let (none, read, write) = ((Direction::None, 0), |n| (Direction::Read, n), |n| (Direction::Write, n));
    // The byte of the CDB that has the number of blocks, the allocation length or the length of the parameter list.
    let (at, value, (direction, length)) = match (opcode, action) {
        (0x00 | 0x16 | 0x17 | 0x1e | 0x34 | 0x35 | 0x90 | 0x91, _) => (4, 0, none),
        (0x1b, _) => (4, 1, none),
        (0x03 | 0x12 | 0x1a, _) => (4, 252, read(252)),
        (0x08, _) => (4, BLOCKS, read(bytes)),
        (0x0a, _) => (4, BLOCKS, write(bytes)),
        (0x15, _) => (4, 4, write(4)),
        (0x25, _) => (8, 0, read(8)),
        (0x28, _) => (8, BLOCKS, read(bytes)),
        (0x2a | 0x2e | 0x2f, _) => (8, BLOCKS, write(bytes)),
        (0x41, _) => (8, BLOCKS, write(512)),
        (0x42 | 0x5f, _) => (8, 24, write(24)),
        (0x55, _) => (8, 8, write(8)),
        (0x5a | 0x5e, _) => (8, 252, read(252)),
        (0x88, _) => (13, BLOCKS, read(bytes)),
        (0x8a | 0x8b | 0x8e | 0x8f, _) => (13, BLOCKS, write(bytes)),
        (0x89, _) => (13, 1, write(1024)),
        (0x93, _) => (13, BLOCKS, write(512)),
        (0x9e, 0x10 | 0x12) => (13, 64, read(64)),
        (0xa0, _) | (0xa3, 0x0a | 0x0c | 0x0d) => (9, 252, read(252)),
        (0xa8, _) => (9, BLOCKS, read(bytes)),
        (0xaa | 0xae | 0xaf, _) => (9, BLOCKS, write(bytes)),
        _ => panic!("a command that the test does not have: {opcode:#x}/{action:#x}"),
    };
    cdb[at] = value;
    let mut data = vec![0; length];
    match opcode {
        0x2f | 0x8f | 0xaf => cdb[1] = 2, // BYTCHK
        0x42 => data[..20].copy_from_slice(&[0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8]),
        0x1a | 0x5a => cdb[2] = 0x3f,
        _ => {}
    }
    (cdb, direction, data)
}
