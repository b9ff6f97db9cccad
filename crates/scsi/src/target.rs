//! The target device: logical units, nexuses, and tasks.

use std::{collections::BTreeMap, sync::Arc};

use millrace_runtime::{MaybeReady, RangeLocks};
use millrace_vfs::Views;
use parking_lot::{Mutex, RwLock};

use crate::{
    attention::UnitAttention,
    bytes::put,
    cdb::{CDB_LEN, Cdb, Operation},
    config::TargetConfig,
    disk::{Disk, Job, Transfer, absent, parameter_data},
    failure::{Failure, Outcome, Step},
    lun::Lun,
    nexus::{Nexus, TaskGuard},
    reservation::InitiatorPort,
    sense::{AdditionalSense, Sense, Status},
};

/// Maximum number of logical units.
pub const MAX_LUNS: usize = 256;

/// Task attribute (SAM-5 section 8.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskAttribute {
    /// SIMPLE, or untagged.
    Simple,
    /// ORDERED: executed after all earlier tasks and before all later ones.
    Ordered,
    /// HEAD OF QUEUE: executed at once.
    HeadOfQueue,
    /// ACA, which is refused because there is no ACA condition.
    Aca,
}

/// A command that has arrived. Tasks are created in order of arrival, before the data is fetched.
#[derive(Debug)]
pub struct Task {
    lun: [u8; 8],
    unit: Option<(Arc<Disk>, TaskGuard)>,
}

impl Task {
    /// Whether task management or a reservation command has aborted the task ([`Aborted`]).
    pub fn is_aborted(&self) -> bool {
        self.unit.as_ref().is_some_and(|(_, guard)| guard.is_aborted())
    }
}

/// A command to execute.
#[derive(Debug)]
pub struct Request {
    /// The task of the command.
    pub task: Task,
    /// The CDB; a shorter one is padded with zeros.
    pub cdb: [u8; CDB_LEN],
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Data-out: the first bytes of the initiator's data, at least the minimum of [`Transfer::data_out`] and
    /// `data_out_length`. The file system may keep it, so the caller keeps no other reference.
    pub data_out: Views,
    /// Number of bytes that the initiator has for the command: the Expected Data Transfer Length of a write, or 0.
    pub data_out_length: u32,
}

/// The end of a command. The residual of a read follows from the length of the data-in, that of a write from
/// [`Transfer::data_out`].
#[derive(Debug)]
pub struct Response {
    /// Status.
    pub status: Status,
    /// Sense data, with CHECK CONDITION only.
    pub sense: Option<Sense>,
    /// Data-in, of the length that the command transfers. The transport sends no more than the initiator expects.
    pub data_in: Views,
}

/// The task was aborted by task management or by a reservation command. It ends with TASK ABORTED status if another
/// nexus aborted it (TAS is 1), and otherwise without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted by task management or a reservation command")]
pub struct Aborted;

/// A task management function (SAM-5 section 7). ABORT TASK is the transport's: it discards the response of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Management {
    /// Aborts the nexus's tasks at a logical unit.
    AbortTaskSet([u8; 8]),
    /// Aborts all tasks at a logical unit.
    ClearTaskSet([u8; 8]),
    /// Resets a logical unit.
    LunReset([u8; 8]),
    /// Resets all logical units.
    TargetReset,
}

/// The logical unit number has no logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the LUN has no logical unit; see REPORT LUNS")]
pub struct NoSuchLun;

/// Why a disk cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The LUN has a disk.
    #[error("the LUN has a disk; remove it first or choose another LUN")]
    InUse,
    /// There are [`MAX_LUNS`] disks.
    #[error("the target has {MAX_LUNS} disks, its limit; use a second target")]
    Full,
}

/// A SCSI target device with one target port.
pub struct Target {
    config: Arc<TargetConfig>,
    units: RwLock<BTreeMap<Lun, Arc<Disk>>>,
    /// Held while units or nexuses change.
    changes: Mutex<()>,
}

impl Target {
    /// Creates a target without logical units.
    pub fn new(config: TargetConfig) -> Arc<Self> {
        Arc::new(Self { config: Arc::new(config), units: RwLock::default(), changes: Mutex::default() })
    }

    /// The configuration.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Adds a disk. A unit attention condition at the other units informs initiators.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&self, lun: Lun, disk: Arc<Disk>) -> Result<(), AddError> {
        let _changes = self.changes.lock();
        let mut units = self.units.write();
        if units.contains_key(&lun) {
            return Err(AddError::InUse);
        }
        if units.len() >= MAX_LUNS {
            return Err(AddError::Full);
        }
        units.values().for_each(|unit| unit.raise(UnitAttention::ReportedLunsChanged, None));
        units.insert(lun, disk);
        Ok(())
    }

    /// Removes a disk; its tasks complete. A unit attention condition at the other units informs initiators.
    pub fn remove(&self, lun: Lun) -> Option<Arc<Disk>> {
        let _changes = self.changes.lock();
        let mut units = self.units.write();
        let removed = units.remove(&lun);
        if removed.is_some() {
            units.values().for_each(|unit| unit.raise(UnitAttention::ReportedLunsChanged, None));
        }
        removed
    }

    /// The disks in order of LUN.
    pub fn disks(&self) -> Vec<(Lun, Arc<Disk>)> {
        self.units.read().iter().map(|(lun, disk)| (*lun, Arc::clone(disk))).collect()
    }

    fn unit(&self, lun: [u8; 8]) -> Option<Arc<Disk>> {
        Lun::from_bytes(lun).and_then(|lun| self.units.read().get(&lun).cloned())
    }

    /// Begins a nexus: a session of `initiator`. At each unit a unit attention condition is pending: I_T NEXUS LOSS
    /// OCCURRED if `initiator` had a nexus before, otherwise POWER ON.
    pub fn open_nexus(&self, initiator: InitiatorPort) -> Arc<Nexus> {
        Nexus::new(initiator)
    }

    /// The initiator has received the sense data of all responses so far. What was reported in sense data that it has not
    /// received is reported again if it begins another nexus.
    pub fn sense_received(&self, nexus: &Nexus) {
        self.units.read().values().for_each(|unit| unit.sense_received(nexus.id()));
    }

    /// Ends a nexus: its tasks are aborted and its RESERVE(6) is released. The transport creates no task for it
    /// afterwards.
    pub fn close_nexus(&self, nexus: &Nexus) {
        self.units.read().values().for_each(|unit| unit.close_nexus(nexus.id()));
    }

    /// Numbers of bytes that a command transfers, from its CDB alone.
    pub fn transfer(&self, lun: [u8; 8], cdb: &[u8; CDB_LEN]) -> Transfer {
        let Ok(cdb) = Cdb::decode(cdb) else { return Transfer::default() };
        if let Some(unit) = self.unit(lun) {
            return unit.transfer(&cdb).unwrap_or_default();
        }
        match cdb.operation() {
            Operation::Inquiry | Operation::RequestSense | Operation::ReportLuns => {
                Transfer { data_in: cdb.length(), ..Transfer::default() }
            }
            _ => Transfer::default(),
        }
    }

    /// A command of `nexus` has arrived.
    pub fn task(&self, nexus: &Arc<Nexus>, lun: [u8; 8]) -> Task {
        let unit = self.unit(lun).map(|disk| {
            let guard = TaskGuard::new(disk.nexus(nexus));
            (disk, guard)
        });
        Task { lun, unit }
    }

    /// Executes a command. Commands are passed in order of arrival; their results are polled concurrently and to
    /// completion, also if the transport discards them.
    pub fn execute(self: &Arc<Self>, request: Request) -> MaybeReady<'static, Result<Response, Aborted>> {
        let Some((disk, _)) = &request.task.unit else {
            return MaybeReady::Ready(Ok(response(self.without_unit(&request))));
        };
        if request.attribute == TaskAttribute::HeadOfQueue {
            return self.start(request);
        }
        match RangeLocks::lock(Arc::clone(disk.order()), 0..1, request.attribute == TaskAttribute::Ordered) {
            MaybeReady::Ready(guard) => self.start(request).map(move |result| {
                drop(guard);
                result
            }),
            waiting => {
                let this = Arc::clone(self);
                MaybeReady::wait(async move {
                    let _guard = waiting.await;
                    this.start(request).await
                })
            }
        }
    }

    /// Executes a command that its task attribute permits to start, unless it was aborted.
    fn start(&self, request: Request) -> MaybeReady<'static, Result<Response, Aborted>> {
        let Some((disk, guard)) = request.task.unit else {
            return MaybeReady::Ready(Err(Aborted));
        };
        if guard.is_aborted() {
            return MaybeReady::Ready(Err(Aborted));
        }
        let nexus = Arc::clone(&guard.nexus);
        let operation = Cdb::operation_of(&request.cdb);
        let step = match admit(&guard, operation, request.attribute, &request.cdb) {
            Err(failure) => Step::Ready(Err(failure)),
            Ok(cdb) if cdb.operation() == Operation::ReportLuns => {
                nexus.clear(UnitAttention::ReportedLunsChanged);
                Step::Ready(self.report_luns(&cdb))
            }
            Ok(cdb) => {
                let (target, data) = (Arc::clone(&self.config), request.data_out);
                Job { disk, target, nexus, cdb, data, expected: request.data_out_length }.run()
            }
        };
        step.map(move |outcome| {
            // PREEMPT AND ABORT does not abort itself.
            let aborts_others = operation == Some(Operation::PersistentReserveOut);
            if guard.is_aborted() && !aborts_others { Err(Aborted) } else { Ok(response(outcome)) }
        })
    }

    /// A command to a LUN without a logical unit.
    fn without_unit(&self, request: &Request) -> Outcome<Views> {
        let unsupported = Sense::illegal(AdditionalSense::LUN_NOT_SUPPORTED);
        let cdb = match Cdb::decode(&request.cdb) {
            Err(sense) if sense.additional != AdditionalSense::INVALID_OPCODE => return Err(sense.into()),
            Err(_) => return Err(unsupported.into()),
            Ok(cdb) => cdb,
        };
        let data = match cdb.operation() {
            Operation::Inquiry => absent(&cdb)?,
            Operation::RequestSense => unsupported.to_bytes().to_vec(),
            // LUN 0 and the well known logical unit REPORT LUNS.
            Operation::ReportLuns if matches!(request.task.lun, [0, ..] | [0xc1, 0x01, ..]) => {
                return self.report_luns(&cdb);
            }
            _ => return Err(unsupported.into()),
        };
        parameter_data(&self.config.arena, data, cdb.length())
    }

    /// REPORT LUNS (SPC-4 section 6.33).
    fn report_luns(&self, cdb: &Cdb) -> Outcome<Views> {
        let luns: Vec<u8> = match cdb.byte(2) {
            0x00 | 0x02 => self.units.read().keys().flat_map(|lun| lun.to_bytes()).collect(),
            // There are no well known logical units.
            0x01 => Vec::new(),
            _ => return Err(Sense::cdb_field(2, None).into()),
        };
        if cdb.length() < 16 {
            return Err(Sense::cdb_field(cdb.length_at(), None).into());
        }
        let mut data = vec![0; 8];
        // At most MAX_LUNS.
        put(&mut data, 0, &(luns.len() as u32).to_be_bytes());
        parameter_data(&self.config.arena, [data, luns].concat(), cdb.length())
    }

    /// Executes a task management function for `nexus`. Afterwards the aborted tasks do not start, and end with
    /// [`Aborted`]; the transport answers when those of its session have ended. Initiators whose tasks were aborted
    /// by another one get a unit attention condition.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn manage(&self, nexus: &Nexus, function: Management) -> Result<(), NoSuchLun> {
        match function {
            Management::AbortTaskSet(lun) => self.unit(lun).ok_or(NoSuchLun)?.abort_nexus(nexus.id()),
            Management::ClearTaskSet(lun) => self.unit(lun).ok_or(NoSuchLun)?.clear_tasks(nexus.id()),
            Management::LunReset(lun) => self.unit(lun).ok_or(NoSuchLun)?.reset(nexus.id()),
            Management::TargetReset => self.units.read().values().for_each(|unit| unit.reset(nexus.id())),
        }
        Ok(())
    }
}

/// The response for the outcome of a command.
fn response(outcome: Outcome<Views>) -> Response {
    match outcome {
        Ok(data_in) => Response { status: Status::Good, sense: None, data_in },
        Err(Failure::Check(sense)) => {
            Response { status: Status::CheckCondition, sense: Some(sense), data_in: Views::new() }
        }
        Err(Failure::Status(status)) => Response { status, sense: None, data_in: Views::new() },
    }
}

/// Reports a pending unit attention condition; then decodes the CDB.
fn admit(
    guard: &TaskGuard,
    operation: Option<Operation>,
    attribute: TaskAttribute,
    cdb: &[u8; CDB_LEN],
) -> Outcome<Cdb> {
    let exempt =
        matches!(operation, Some(Operation::Inquiry | Operation::ReportLuns | Operation::RequestSense));
    if let Some(attention) = (!exempt).then(|| guard.nexus.take_attention()).flatten() {
        return Err(attention.sense().into());
    }
    if attribute == TaskAttribute::Aca {
        return Err(Sense::illegal(AdditionalSense::INVALID_INFORMATION_UNIT).into());
    }
    Ok(Cdb::decode(cdb)?)
}
