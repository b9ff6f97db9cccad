//! PERSISTENT RESERVE IN and OUT, RESERVE(6) and RELEASE(6).

use millrace_runtime::RangeLocks;
use millrace_vfs::Views;

use super::{
    Disk,
    command::{Job, parameter_data},
};
use crate::{
    attention::UnitAttention,
    cdb::Operation,
    failure::{Direction, Failure, Outcome, Step},
    reservation::{Attention, Effects, NexusId, Refusal},
    sense::{AdditionalSense, Sense, Status},
};

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal.additional_sense() {
            None => Self::Status(Status::ReservationConflict),
            Some((code, qualifier)) => Self::Check(Sense::illegal(AdditionalSense(code, qualifier))),
        }
    }
}

impl Job {
    fn id(&self) -> NexusId {
        NexusId(self.nexus.nexus.id())
    }

    pub(super) fn reserve_in(&self) -> Outcome<Vec<u8>> {
        Ok(self.disk.reservations.lock().report(&self.cdb.first_ten())?)
    }

    /// RESERVE(6) and RELEASE(6), one command that changes reservations at a time.
    pub(super) fn reserve_unit(self) -> Step<Views> {
        Step::wait(async move {
            let _guard = RangeLocks::lock(&*self.disk.reserving, 0..1, true).await;
            let mut reservations = self.disk.reservations.lock();
            if self.cdb.operation() == Operation::Reserve {
                reservations.reserve(self.id())?;
            } else {
                reservations.release(self.id())?;
            }
            Ok(Views::new())
        })
    }

    /// PERSISTENT RESERVE OUT: the change applies when its record is durable.
    pub(super) fn reserve_out(self) -> Step<Views> {
        Step::wait(async move {
            let _guard = RangeLocks::lock(&*self.disk.reserving, 0..1, true).await;
            let len = self.data.len().min(self.cdb.length() as usize);
            let list = self.data.slice(0, len).to_vec();
            let change = self.disk.reservations.lock().plan(self.id(), &self.cdb.first_ten(), &list)?;
            if let Some(record) = change.record() {
                let record = parameter_data(&self.target.arena, record.to_vec(), u32::MAX)?;
                let stored = self.disk.record.store(record).await;
                stored.map_err(|e| Failure::of_file(e, Direction::Write))?;
            }
            let effects = self.disk.reservations.lock().commit(change);
            self.disk.apply(&effects);
            Ok(Views::new())
        })
    }
}

impl Disk {
    /// Informs nexuses of a change of reservations, and aborts tasks.
    fn apply(&self, effects: &Effects) {
        for NexusId(id) in &effects.aborted {
            self.abort_nexus(*id);
        }
        let nexuses = self.nexuses.lock();
        for (NexusId(id), attention) in &effects.attentions {
            if let Some(nexus) = nexuses.present.get(id) {
                nexus.raise(match attention {
                    Attention::ReservationsPreempted => UnitAttention::ReservationsPreempted,
                    Attention::ReservationsReleased => UnitAttention::ReservationsReleased,
                    Attention::RegistrationsPreempted => UnitAttention::RegistrationsPreempted,
                });
            }
        }
    }
}
