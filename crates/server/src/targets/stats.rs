//! Statistics of the iSCSI service.

use std::{path::PathBuf, sync::Arc};

use millrace_iscsi_target::TargetStats;
use millrace_scsi::DiskUsage;

use crate::usage::value;

/// Statistics of iSCSI connections since the start of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IscsiStats {
    /// Connections open now.
    pub open: u64,
    /// Connections opened since the start.
    pub opened: u64,
    /// Sessions now, including discovery sessions.
    pub sessions: u64,
    /// Logins to targets.
    pub logins: u64,
    /// Discovery sessions.
    pub discoveries: u64,
    /// Logins that were refused or violated the protocol.
    pub logins_refused: u64,
    /// Commands that return data.
    pub reads: u64,
    /// Commands with data of the initiator.
    pub writes: u64,
    /// Commands without data.
    pub others: u64,
    /// Commands that ended with a status other than GOOD.
    pub failed: u64,
    /// Commands aborted.
    pub aborted: u64,
    /// Data bytes of reads.
    pub bytes_read: u64,
    /// Data bytes of writes, including those that were refused.
    pub bytes_written: u64,
    /// Connections closed because of a violation of the protocol or a wrong digest.
    pub malformed: u64,
    /// Connections closed because the initiator was too slow, or did not answer a NOP-In.
    pub stalled: u64,
}

/// A disk at a LUN of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunStats {
    /// Name of the target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// Path of the file, which begins with the name of its export.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Commands and bytes since the disk was opened, over all targets and sessions.
    pub usage: DiskUsage,
}

impl IscsiStats {
    /// The sum over all shards, with `sessions` sessions.
    pub(crate) fn sum(shards: &[Arc<TargetStats>], sessions: usize) -> Self {
        let mut out = Self { sessions: sessions as u64, ..Self::default() };
        for s in shards {
            out.open += value(&s.open);
            out.opened += value(&s.connections);
            out.logins += value(&s.logins);
            out.discoveries += value(&s.discoveries);
            out.logins_refused += value(&s.logins_refused);
            out.reads += value(&s.reads);
            out.writes += value(&s.writes);
            out.others += value(&s.others);
            out.failed += value(&s.failed);
            out.aborted += value(&s.aborted);
            out.bytes_read += value(&s.read_bytes);
            out.bytes_written += value(&s.written_bytes);
            out.malformed += value(&s.malformed);
            out.stalled += value(&s.stalled);
        }
        out
    }
}
