//! A disk: a logical unit of device type 0 (SBC-3) on a regular file.
//!
//! A `Target` passes commands to its `Disk`s. A `Job` executes one command; each group of commands has a
//! file. `Nexuses` contains the state of each nexus, and the initiator ports of former ones.

mod blocks;
mod capacity;
mod command;
mod compare;
mod inquiry;
mod mode;
mod persistence;
mod provisioning;
mod report;
mod reserve;
mod transfer;
mod usage;
mod vital;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub use command::Transfer;
pub(crate) use command::{Job, parameter_data};
pub(crate) use inquiry::absent;
use millrace_runtime::RangeLocks;
use millrace_vfs::{FileKind, FileSystemRef, FsError, Handle, Identity};
use mode::Modes;
use parking_lot::Mutex;
use persistence::Record;
pub use usage::DiskUsage;

use crate::{
    attention::{Attentions, UnitAttention},
    cdb::Operation,
    medium::Medium,
    nexus::{Nexus, UnitNexus},
    reservation::{self, InitiatorPort, RecordError, Reservations},
};

/// Relative identifier of the only target port, and tag of the target portal group.
pub(crate) const TARGET_PORT: u16 = 1;

/// Maximum number of bytes that a command transfers or verifies (MAXIMUM TRANSFER LENGTH).
pub const MAX_TRANSFER_BYTES: u32 = 8 << 20;

/// Maximum number of blocks that WRITE SAME writes (MAXIMUM WRITE SAME LENGTH): what WRITE SAME(10) can state.
const MAX_WRITE_SAME_BLOCKS: u32 = 0xffff;

/// Number of former nexuses whose initiator ports a disk records. The condition after their return is I_T NEXUS LOSS
/// OCCURRED; of others, as after a restart, it is POWER ON.
const MAX_FORMER: usize = 1024;

/// Maximum number of block descriptors of UNMAP.
const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// Length of a logical block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockSize {
    /// 512 bytes, in physical blocks of 4096 bytes.
    #[default]
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// Length in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// Configuration of a [`Disk`].
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Length of a logical block.
    pub block_size: BlockSize,
    /// Whether the medium is write-protected.
    pub read_only: bool,
    /// Identifies the disk among all disks: the lower 60 bits are its locally assigned NAA identifier, and the
    /// hexadecimal digits its serial number. It must not change during the life of the data.
    pub identifier: u64,
    /// Directory of the file system in which the record of persistent reservations is stored.
    pub record_directory: Handle,
    /// Name of that record. While it is replaced, a file with `.new` appended exists.
    pub record_name: Vec<u8>,
}

/// Why a disk cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file system cannot access the file or the record of reservations.
    #[error("cannot access the file of the disk: {0}; check its path and permissions")]
    File(FsError),
    /// The file is not a regular file.
    #[error("the file of the disk is not a regular file; name a regular file")]
    NotRegular,
    /// The file is shorter than a block.
    #[error("the file of the disk is shorter than one block; extend it to the size of the disk")]
    Empty,
    /// The record of persistent reservations is invalid.
    #[error(
        "the record of persistent reservations is invalid: {0}; remove the record if all its reservations may end"
    )]
    Record(RecordError),
}

/// A disk. It is used through a [`Target`](crate::Target).
pub struct Disk {
    config: DiskConfig,
    medium: Arc<Medium>,
    /// Whether UNMAP is supported.
    thin: bool,
    /// Capacity in blocks, at least 1.
    blocks: AtomicU64,
    /// Locks on ranges of bytes, for commands that write.
    ranges: Arc<RangeLocks>,
    /// Exclusive for ORDERED tasks, shared for others.
    order: Arc<RangeLocks>,
    modes: Mutex<Modes>,
    reservations: Mutex<Reservations>,
    /// Exclusive for a command that changes reservations.
    reserving: Arc<RangeLocks>,
    record: Record,
    nexuses: Mutex<Nexuses>,
    counters: usage::Counters,
}

/// The present nexuses, and the initiator ports of former ones.
#[derive(Default)]
struct Nexuses {
    present: HashMap<u64, Arc<UnitNexus>>,
    /// Initiator ports of removed nexuses, the oldest first: each with its pending unit attentions, and the number of
    /// losses of unstable data that have been reported to it.
    former: VecDeque<(InitiatorPort, Attentions, u64)>,
}

impl Nexuses {
    /// Removes a nexus, and records its initiator port.
    fn remove(&mut self, nexus: u64) -> Option<Arc<UnitNexus>> {
        let closed = self.present.remove(&nexus)?;
        if self.former.len() == MAX_FORMER {
            self.former.pop_front();
        }
        let (pending, losses) = closed.unknown();
        self.former.push_back((closed.nexus.initiator().clone(), pending, losses));
        Some(closed)
    }

    /// Takes the pending unit attentions, and the number of reported losses, of a former nexus of `port`.
    fn take_former(&mut self, port: &InitiatorPort) -> Option<(Attentions, u64)> {
        let at = self.former.iter().rposition(|(former, ..)| former == port)?;
        self.former.remove(at).map(|(_, pending, losses)| (pending, losses))
    }
}

impl Disk {
    /// Opens the disk in `file` of `fs`, which is accessed as `caller`. Its capacity is the size of the file.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(
        fs: FileSystemRef,
        file: Handle,
        caller: Identity,
        config: DiskConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let attr = fs.getattr(&file).await.map_err(OpenError::File)?;
        if attr.kind != FileKind::Regular {
            return Err(OpenError::NotRegular);
        }
        let blocks = attr.size / u64::from(config.block_size.bytes());
        if blocks == 0 {
            return Err(OpenError::Empty);
        }
        let info = fs.info();
        let read_only = config.read_only || !info.writable;
        let record = Record::new(&fs, &caller, &config);
        let reservations = match record.load().await.map_err(OpenError::File)? {
            Some(stored) => Reservations::restore(&[TARGET_PORT], &stored).map_err(OpenError::Record)?,
            None => Reservations::new(&[TARGET_PORT]),
        };
        Ok(Arc::new(Self {
            config: DiskConfig { read_only, ..config },
            medium: Medium::new(fs, file, caller),
            thin: info.sparse_files && !read_only,
            blocks: AtomicU64::new(blocks),
            ranges: Arc::default(),
            order: Arc::default(),
            modes: Mutex::default(),
            reservations: Mutex::new(reservations),
            reserving: Arc::default(),
            record,
            nexuses: Mutex::default(),
            counters: usage::Counters::default(),
        }))
    }

    /// Commands that have read and written data since the disk was opened.
    pub fn usage(&self) -> DiskUsage {
        self.counters.snapshot()
    }

    /// The configuration; `read_only` also if the file system is.
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// Capacity in blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Reads the size of the file again. If the capacity has changed, all initiators get a unit attention condition.
    ///
    /// # Errors
    /// [`OpenError::File`], or [`OpenError::Empty`]: the capacity remains.
    pub async fn refresh(&self) -> Result<(), OpenError> {
        let size = self.medium.size().await.map_err(OpenError::File)?;
        let blocks = size / u64::from(self.block_bytes());
        if blocks == 0 {
            return Err(OpenError::Empty);
        }
        if self.blocks.swap(blocks, Ordering::AcqRel) != blocks {
            self.raise(UnitAttention::CapacityChanged, None);
        }
        Ok(())
    }

    /// Whether commands that write are refused in any case.
    fn is_write_protected(&self) -> bool {
        self.config.read_only || self.modes.lock().software_write_protect
    }

    fn block_bytes(&self) -> u32 {
        self.config.block_size.bytes()
    }

    /// Whether the disk supports a command that is in the table of commands.
    fn supports(&self, operation: Operation) -> bool {
        self.thin || operation != Operation::Unmap
    }

    /// The queue of ORDERED tasks.
    pub(crate) fn order(&self) -> &Arc<RangeLocks> {
        &self.order
    }

    /// The state of `nexus` at this disk, which starts with the first task.
    pub(crate) fn nexus(&self, nexus: &Arc<Nexus>) -> Arc<UnitNexus> {
        let mut nexuses = self.nexuses.lock();
        if let Some(present) = nexuses.present.get(&nexus.id()) {
            return Arc::clone(present);
        }
        let name = reservation::Nexus { initiator: nexus.initiator().clone(), port: TARGET_PORT };
        self.reservations.lock().attach(reservation::NexusId(nexus.id()), name);
        let former = nexuses.take_former(nexus.initiator());
        // NEXUS LOSS informs an initiator that reconnects that its completed writes are still in the cache.
        let condition = if former.is_some() { UnitAttention::NexusLoss } else { UnitAttention::PowerOn };
        let (mut pending, losses) = former.unwrap_or_else(|| (Attentions::default(), self.medium.losses()));
        pending.raise(condition);
        let new = Arc::new(UnitNexus::new(Arc::clone(nexus), pending, losses));
        nexuses.present.insert(nexus.id(), Arc::clone(&new));
        new
    }

    /// The nexus has ended: its tasks are aborted, its RESERVE(6) is released.
    pub(crate) fn close_nexus(&self, nexus: u64) {
        let mut nexuses = self.nexuses.lock();
        if let Some(closed) = nexuses.remove(nexus) {
            closed.abort();
            self.reservations.lock().detach(reservation::NexusId(nexus));
        }
    }

    /// The initiator of `nexus` has received all sense data.
    pub(crate) fn sense_received(&self, nexus: u64) {
        if let Some(nexus) = self.nexuses.lock().present.get(&nexus) {
            nexus.received();
        }
    }

    /// Raises a condition for all nexuses other than `except`.
    pub(crate) fn raise(&self, attention: UnitAttention, except: Option<u64>) {
        for (id, nexus) in self.nexuses.lock().present.iter() {
            if Some(*id) != except {
                nexus.raise(attention);
            }
        }
    }

    /// Aborts the tasks of `nexus`.
    pub(crate) fn abort_nexus(&self, nexus: u64) {
        if let Some(nexus) = self.nexuses.lock().present.get(&nexus) {
            nexus.abort();
        }
    }

    /// Aborts all tasks; nexuses other than `by` that had tasks get a unit attention condition.
    pub(crate) fn clear_tasks(&self, by: u64) {
        for (id, nexus) in self.nexuses.lock().present.iter() {
            if nexus.abort() && *id != by {
                nexus.raise(UnitAttention::CommandsCleared);
            }
        }
    }

    /// Logical unit reset (SAM-5 section 6.3.3) by nexus `by`, which is informed by the response.
    pub(crate) fn reset(&self, by: u64) {
        self.nexuses.lock().present.values().for_each(|nexus| _ = nexus.abort());
        self.raise(UnitAttention::DeviceReset, Some(by));
        self.reservations.lock().reset();
        *self.modes.lock() = Modes::default();
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("config", &self.config)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
