//! Commands to a SCSI disk in memory, compared with a model of the blocks.

mod model;

use std::sync::Arc;

use millrace_buffer::Views;
use millrace_scsi::{
    Aborted, BlockSize, Disk, DiskConfig, InitiatorPort, Lun, MAX_TRANSFER_BYTES, Management, Nexus, Request,
    Response, Sense, SenseKey, Status, Target, TargetConfig, Task, TaskAttribute,
};
use millrace_vfs::{
    CreateHow, FileSystemRef, Handle, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

use self::model::{Contents, allocation};
use super::{wait, xdr::arena};
use crate::{
    bytes::{Input, from_hex, operations},
    still::still,
};

/// Blocks of the disk.
const BLOCKS: usize = 24;
/// The LUN of the disk.
const LUN: [u8; 8] = [0; 8];
/// Parts of the kind of an operation: the attribute, the nexus, the LUN, and the task management function that comes
/// between the arrival of the command and its execution.
const OTHER_NEXUS: u8 = 0x04;
const LUN_AT: u32 = 3;
const MANAGE_AT: u32 = 5;

struct Bench {
    fs: FileSystemRef,
    file: Handle,
    config: DiskConfig,
    target: Arc<Target>,
    nexuses: [Arc<Nexus>; 2],
    contents: Contents,
}

/// Executes the target with `input`: flags, and operations. The operand of an operation is a CDB of 16 bytes, the
/// expected length (16 bits), and data that is repeated to the necessary length.
pub(super) fn run(input: &[u8]) {
    let before = arena().stats().in_use;
    let mut input = Input::new(input);
    let mut bench = Bench::new(input.u8());
    while let Some((kind, operand)) = input.operation() {
        bench.operation(kind, operand);
    }
    bench.end();
    assert_eq!(arena().stats().in_use, before, "bytes of the arena in use");
}

fn port(n: u8) -> InitiatorPort {
    InitiatorPort::new("iqn.2026-01.example:host", [0, 2, 3, 4, 5, n]).expect("a port")
}

impl Bench {
    fn new(flags: u8) -> Self {
        let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(), still()));
        let block_size = if flags & 1 == 0 { BlockSize::B512 } else { BlockSize::B4096 };
        let block = block_size.bytes() as usize;
        let bytes = vec![0; BLOCKS * block];
        let how = CreateHow::Guarded(SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() });
        let file = wait(fs.create(&Identity::root(), &fs.root(), b"disk", &how)).expect("a file").handle;
        let config = DiskConfig {
            block_size,
            read_only: flags & 2 != 0,
            identifier: 0x0123_4567_89ab_cdef,
            record_directory: fs.root(),
            record_name: b"reservations".to_vec(),
        };
        let disk = wait(Disk::open(fs.clone(), file, Identity::root(), config.clone())).expect("a disk");
        let name = "iqn.2026-01.example:target".to_owned();
        let target = Target::new(TargetConfig { name, arena: arena() });
        target.add(Lun::new(0).expect("a LUN"), disk).expect("a free LUN");
        let nexuses = [1, 2].map(|n| target.open_nexus(port(n)));
        let mut bench = Self { fs, file, config, target, nexuses, contents: Contents { bytes, block } };
        // POWER ON.
        for nexus in 0..2 {
            let response = bench.execute(nexus, LUN, [0; 16], 0, &[]);
            assert_eq!(response.sense.map(|sense| sense.key), Some(SenseKey::UnitAttention));
        }
        bench
    }

    fn operation(&mut self, kind: u8, operand: &[u8]) {
        let mut operand = Input::new(operand);
        let mut cdb = [0; 16];
        let bytes = operand.take(16);
        cdb[..bytes.len()].copy_from_slice(bytes);
        let (expected, data) = (operand.u16(), operand.rest());
        let nexus = usize::from(kind & OTHER_NEXUS != 0);
        let lun = [LUN, LUN, [0, 5, 0, 0, 0, 0, 0, 0], [0xc1, 1, 0, 0, 0, 0, 0, 0]]
            [usize::from(kind >> LUN_AT & 3)];
        let function = match kind >> MANAGE_AT {
            0 => Some(Management::AbortTaskSet(LUN)),
            1 => Some(Management::ClearTaskSet(LUN)),
            2 => Some(Management::LunReset(LUN)),
            3 => Some(Management::TargetReset),
            _ => None,
        };
        let transfer = self.target.transfer(lun, &cdb);
        assert!(transfer.data_out <= MAX_TRANSFER_BYTES);
        assert!(transfer.data_out == 0 || transfer.data_in == 0, "{transfer:?}");
        assert!(u64::from(transfer.data_in) <= allocation(&cdb, self.contents.block as u64), "{cdb:02x?}");
        // An odd expected length is that of the command.
        let expected = if expected % 2 == 1 { transfer.data_out } else { expected.into() };
        let pattern = if data.is_empty() { &[0] } else { data };
        let data: Vec<u8> =
            pattern.iter().copied().cycle().take(transfer.data_out.min(expected) as usize).collect();
        let attribute =
            [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::HeadOfQueue, TaskAttribute::Aca];
        let attribute = attribute[usize::from(kind & 3)];
        let task = self.target.task(&self.nexuses[nexus], lun);
        let aborted = function.is_some_and(|function| self.manage(nexus, function, lun == LUN));
        assert_eq!(task.is_aborted(), aborted);
        match self.try_execute(task, attribute, cdb, expected, &data) {
            Ok(response) => {
                assert!(!aborted, "an aborted command was executed");
                self.check(lun, &cdb, &data, &response);
            }
            Err(Aborted) => assert!(aborted, "a command was aborted without a function"),
        }
        assert!(self.read() == self.contents.bytes, "the contents of the disk after {cdb:02x?}");
    }

    /// Executes a function for the first nexus; returns whether it aborts the command of `nexus`.
    fn manage(&self, nexus: usize, function: Management, at_disk: bool) -> bool {
        self.target.manage(&self.nexuses[0], function).expect("a LUN");
        at_disk && (nexus == 0 || !matches!(function, Management::AbortTaskSet(_)))
    }

    fn try_execute(
        &self,
        task: Task,
        attribute: TaskAttribute,
        cdb: [u8; 16],
        expected: u32,
        data: &[u8],
    ) -> Result<Response, Aborted> {
        let data_out: Views = data.chunks(1 << 16).map(super::xdr::view).collect();
        let request = Request { task, cdb, attribute, data_out, data_out_length: expected };
        wait(self.target.execute(request))
    }

    fn execute(&mut self, nexus: usize, lun: [u8; 8], cdb: [u8; 16], expected: u32, data: &[u8]) -> Response {
        let task = self.target.task(&self.nexuses[nexus], lun);
        self.try_execute(task, TaskAttribute::Simple, cdb, expected, data).expect("not aborted")
    }

    /// Checks a response, and applies a command that has succeeded to the model.
    fn check(&mut self, lun: [u8; 8], cdb: &[u8; 16], data: &[u8], response: &Response) {
        let length = response.data_in.len() as u64;
        assert!(length <= allocation(cdb, self.contents.block as u64), "{length} bytes of data: {cdb:02x?}");
        assert_eq!(response.status == Status::CheckCondition, response.sense.is_some());
        match (response.status, response.sense) {
            (Status::Good, _) if lun == LUN => {
                self.contents.apply(cdb, data, &response.data_in.to_vec());
            }
            (Status::Good, _) => assert!(matches!(cdb[0], 0x03 | 0x12 | 0xa0), "GOOD at no unit: {cdb:02x?}"),
            (status, None) => {
                assert!(length == 0 && status == Status::ReservationConflict, "{status:?}: {cdb:02x?}");
            }
            (_, Some(sense)) => {
                assert_eq!(length, 0);
                valid(&sense);
            }
        }
    }

    fn read(&self) -> Vec<u8> {
        let length = self.contents.bytes.len() as u32;
        let read = wait(self.fs.read(&Identity::root(), &self.file, 0, length + 1)).expect("data");
        read.data.to_vec()
    }

    /// After all commands, a new nexus is served, and the record of reservations is valid.
    fn end(self) {
        self.nexuses.iter().for_each(|nexus| self.target.close_nexus(nexus));
        let nexus = self.target.open_nexus(port(3));
        for (opcode, key) in [(0x12, None), (0, Some(SenseKey::UnitAttention)), (0, None)] {
            let mut cdb = [0; 16];
            (cdb[0], cdb[4]) = (opcode, if opcode == 0x12 { 36 } else { 0 });
            let task = self.target.task(&nexus, LUN);
            let response = self.try_execute(task, TaskAttribute::Simple, cdb, 0, &[]).expect("not aborted");
            assert_eq!(response.sense.map(|sense| sense.key), key);
            assert_eq!(response.data_in.len(), usize::from(cdb[4]));
        }
        wait(Disk::open(self.fs.clone(), self.file, Identity::root(), self.config.clone())).expect("a disk");
    }
}

/// Checks that sense data has a valid form, and a key that a disk without faults reports.
fn valid(sense: &Sense) {
    let keys =
        [SenseKey::IllegalRequest, SenseKey::UnitAttention, SenseKey::DataProtect, SenseKey::Miscompare];
    assert!(keys.contains(&sense.key), "{sense}");
    assert!(sense.additional.name().is_some(), "{sense}");
    let field = sense.field;
    assert!(
        field.is_none_or(|f| sense.key == SenseKey::IllegalRequest && (!f.in_cdb || f.byte < 16)),
        "{sense}"
    );
    assert!(field.and_then(|f| f.bit).is_none_or(|bit| bit < 8), "{sense}");
    if sense.information.is_none_or(|i| u32::try_from(i).is_ok()) {
        assert_eq!(Sense::decode(&sense.to_bytes()), Some(*sense));
    }
}

/// CDBs of each command, in hexadecimal, with the pattern of their data.
const COMMANDS: [(&str, &str); 60] = [
    ("00", ""),
    ("03 00 00 00 12", ""),
    ("08 00 00 02 03", ""),
    ("0a 00 00 02 03", "01 02 03"),
    ("12 00 00 00 60", ""),
    ("12 01 00 00 ff", ""),
    ("12 01 80 00 ff", ""),
    ("12 01 83 00 ff", ""),
    ("12 01 b0 00 ff", ""),
    ("12 01 b1 00 ff", ""),
    ("12 01 b2 00 ff", ""),
    ("15 10 00 00 18", "00 00 00 00 08 12 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"),
    ("16", ""),
    ("17", ""),
    ("1a 08 3f 00 ff", ""),
    ("1a 00 08 00 c0", ""),
    ("1b 00 00 00 01", ""),
    ("1b", ""),
    ("1e 00 00 00 01", ""),
    ("25", ""),
    ("28 00 00000002 00 0003", ""),
    ("28 08 00000000 00 0018", ""),
    ("28 00 00000017 00 0002", ""),
    ("2a 08 00000002 00 0003", "55 aa"),
    ("2e 02 00000001 00 0002", "77"),
    ("2f 02 00000000 00 0001", "00"),
    ("2f 06 00000000 00 0008", "00"),
    ("34 00 00000000 00 0010", ""),
    ("35 00 00000000 00 0000", ""),
    ("41 00 00000003 00 0004", "99"),
    ("42 00 00 00 00 00 00 0018", "0016 0010 00000000 0000000000000002 00000004 00000000"),
    ("55 10 00 00 00 00 00 0018", "0000000000000000 0a0a 00 00 08 00 00 00 00 00 00 00"),
    ("5a 10 3f 00 00 00 00 00ff", ""),
    ("5e 00 00 00 00 00 00 0100", ""),
    ("5e 01 00 00 00 00 00 0100", ""),
    ("5e 02 00 00 00 00 00 0100", ""),
    ("5e 03 00 00 00 00 00 0100", ""),
    ("5f 00 00 00 00 00000018", "0000000000000000 0000000000000005 00000000 01 00 0000"),
    ("5f 06 00 00 00 00000018", "0000000000000000 0000000000000006 00000000 00 00 0000"),
    ("5f 01 05 00 00 00000018", "0000000000000005 0000000000000000 00000000 00 00 0000"),
    ("5f 02 05 00 00 00000018", "0000000000000005 0000000000000000 00000000 00 00 0000"),
    ("5f 05 01 00 00 00000018", "0000000000000005 0000000000000006 00000000 00 00 0000"),
    ("5f 03 00 00 00 00000018", "0000000000000005 0000000000000000 00000000 00 00 0000"),
    ("88 00 0000000000000001 00000004 00", ""),
    ("89 00 0000000000000005 000000 01 00", "00"),
    ("8a 00 0000000000000001 00000004 00", "33 34 35"),
    ("8b 00 0000000000000001 00000004 00", "c0"),
    ("8e 02 0000000000000004 00000001 00", "12"),
    ("8f 02 0000000000000004 00000001 00", "12"),
    ("90 00 0000000000000000 00000004 00", ""),
    ("91 00 0000000000000000 00000000 00", ""),
    ("93 01 0000000000000002 00000005 00", ""),
    ("93 08 0000000000000002 00000005 00", "00"),
    ("9e 10 0000000000000000 00000020 00", ""),
    ("9e 12 0000000000000000 00000100 00", ""),
    ("a0 00 00 00 00 00 00000100", ""),
    ("a3 0a 00 00 00 00 00000100", ""),
    ("a3 0c 00 00 0000 00001000", ""),
    ("a3 0d 80 00 00 00 00000010", ""),
    ("28 00 ffffffff 00 ffff", ""),
];

/// Each command alone; sequences of all of them with both block lengths, nexuses, and functions.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let operands = COMMANDS.map(|(cdb, data)| {
        let mut operand = from_hex(cdb);
        operand.resize(16, 0);
        [operand, vec![0, 1], from_hex(data)].concat()
    });
    // No function.
    const PLAIN: u8 = 4 << MANAGE_AT;
    let mut out: Vec<Vec<u8>> = Vec::new();
    for (n, operand) in operands.iter().enumerate() {
        let kinds =
            [PLAIN, PLAIN | OTHER_NEXUS | (n % 4) as u8, (n as u8 % 4) << MANAGE_AT, PLAIN | 2 << LUN_AT];
        let list: Vec<(u8, &[u8])> = kinds.iter().map(|kind| (*kind, &operand[..])).collect();
        out.push([&[n as u8 % 4][..], &operations(&list)].concat());
    }
    for (flags, step) in [(0, 1), (1, 7), (0, 11), (0, 17)] {
        let list: Vec<(u8, &[u8])> = (0..operands.len())
            .map(|n| {
                (
                    PLAIN | if n % step == 3 { OTHER_NEXUS } else { 0 },
                    &operands[n * step % operands.len()][..],
                )
            })
            .collect();
        out.push([&[flags][..], &operations(&list)].concat());
    }
    out
}
