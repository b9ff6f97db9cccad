//! The cases of a disk over iSER and iSCSI.

use millrace_iscsi_initiator::Transport;

use super::{
    Compare,
    case::{Case, Measured, RANDOM, READ, Reference, WRITE},
};
use crate::{
    At, BenchError,
    disk::{DiskRun, DiskSession},
    embedded::EmbeddedServer,
    iozone::{Test, WORKING_SET},
};

/// Bytes of a large operation of a disk.
const DISK_RECORD: usize = 512 << 10;
/// The transports of the disk, in the order of their sessions.
const DISKS: [Transport; 2] = [Transport::Iser, Transport::Tcp];

impl Compare {
    /// Opens one session over iSER and one over iSCSI, and fills the disk.
    pub(super) fn open_disks(&self, server: &EmbeddedServer) -> Result<Vec<DiskSession>, BenchError> {
        let mut disks = Vec::new();
        for transport in DISKS {
            let mut options = millrace_iscsi_initiator::Options::default();
            options.provider = At::LOOPBACK.provider;
            disks.push(DiskSession::open(server.disk_url(transport)?, options, WORKING_SET)?);
        }
        let fill =
            DiskRun { operations: self.size.div_ceil(DISK_RECORD as u64), ..self.disk_run(Test::Write) };
        disks.first().map(|disk| disk.run(&fill, server)).transpose()?;
        Ok(disks)
    }

    /// Large operations of a disk.
    fn disk_run(&self, test: Test) -> DiskRun {
        DiskRun {
            test,
            record: DISK_RECORD,
            outstanding: 8,
            operations: self.passes.max(1) * self.size / DISK_RECORD as u64,
            span: self.size,
            memory: WORKING_SET.min(usize::try_from(self.size).unwrap_or(usize::MAX)),
            flush: true,
        }
    }

    /// The disk over iSER, compared with NFS/RDMA, and over iSCSI, compared with the raw stream.
    pub(super) fn disk_cases(&self) -> Vec<Case> {
        let large = |session, test| Measured::Disk { session, run: self.disk_run(test) };
        let random = |session| {
            let (outstanding, operations, memory) = (16, self.random_ops, 0);
            let run =
                DiskRun { record: 4096, outstanding, operations, memory, ..self.disk_run(Test::RandomRead) };
            Measured::Disk { session, run }
        };
        let raw = |server_is_sender| Reference::RawRate { server_is_sender };
        let operations = Reference::Operations(RANDOM);
        vec![
            Case::new("iSER: READ 512 KiB x 8", large(0, Test::Read), Reference::Rate(READ), ">= 0.95"),
            Case::new("iSER: WRITE 512 KiB x 8", large(0, Test::Write), Reference::Rate(WRITE), ">= 0.95"),
            Case::new("iSER: random READ 4 KiB x 16", random(0), operations, ""),
            Case::new("iSCSI: READ 512 KiB x 8", large(1, Test::Read), raw(true), ">= 0.90"),
            Case::new("iSCSI: WRITE 512 KiB x 8", large(1, Test::Write), raw(false), ">= 0.90"),
            Case::new("iSCSI: random READ 4 KiB x 16", random(1), operations, ""),
        ]
    }
}
