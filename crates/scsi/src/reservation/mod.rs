//! Reservations of one logical unit: persistent reservations (SPC-4 section 5.13), and RESERVE(6) and RELEASE(6)
//! (SPC-2 section 5.5).
//!
//! [`Reservations`] is a state machine without I/O and without locks. The device server asks it whether a command is
//! allowed ([`Reservations::allows`]). A PERSISTENT RESERVE OUT command has two steps: [`Reservations::plan`] computes
//! the [`Change`] and leaves the state as it was; after the caller has stored the change's record, if it has one,
//! [`Reservations::commit`] applies it. A failure to store it leaves the unit unchanged.
//!
//! RESERVE(6) and registrations exclude each other (CRH is zero in REPORT CAPABILITIES).

mod actions;
mod initiator_port;
mod kind;
mod record;
mod refusal;
mod report;
mod request;
mod state;

use std::collections::BTreeMap;

use actions::{Consequences, Ports};
use request::Request;
use state::State;

pub use initiator_port::{InitiatorPort, InvalidName};
pub use kind::{Access, ReservationType};
pub use record::{MAX_RECORD, RecordError};
pub use refusal::{Attention, Refusal};
pub use request::MAX_PARAMETER_LIST;
pub use state::{MAX_REGISTRATIONS, Nexus};

/// A present I_T nexus: a session. The caller gives each session another number and never repeats one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// A PERSISTENT RESERVE OUT command that has been checked and not yet applied.
#[derive(Debug)]
#[must_use = "the command has no effect before it is committed"]
pub struct Change {
    state: State,
    consequences: Consequences,
    record: Option<Vec<u8>>,
}

impl Change {
    /// The record that is stored durably before the change is committed and the command ends with GOOD status. It
    /// replaces the record before, and has at most [`MAX_RECORD`] bytes. `None`: the stored record remains valid.
    pub fn record(&self) -> Option<&[u8]> {
        self.record.as_deref()
    }
}

/// The actions of the device server for other nexuses after a [`Change`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// Unit attention conditions to establish, in the order of the nexuses.
    pub attentions: Vec<(NexusId, Attention)>,
    /// Nexuses whose commands are aborted, except the command that caused this (PREEMPT AND ABORT). The nexus of that
    /// command can be among them.
    pub aborted: Vec<NexusId>,
}

/// The reservations of a logical unit.
#[derive(Debug)]
pub struct Reservations {
    /// Relative target port identifiers of the target device.
    ports: Vec<u16>,
    nexuses: BTreeMap<NexusId, Nexus>,
    state: State,
    /// The holder of RESERVE(6).
    reserved: Option<NexusId>,
}

impl Reservations {
    /// A unit without registrations, of a target device with the target ports `ports` (relative target port
    /// identifiers).
    pub fn new(ports: &[u16]) -> Self {
        Self { ports: ports.to_vec(), nexuses: BTreeMap::new(), state: State::default(), reserved: None }
    }

    /// The unit after power loss: with the registrations and the reservation of the stored record, and PRgeneration
    /// zero.
    ///
    /// # Errors
    /// The record is not valid. A unit without its registrations could accept writes of hosts that were excluded, so
    /// the caller does not replace it by [`new`](Self::new) without the consent of an administrator.
    pub fn restore(ports: &[u16], record: &[u8]) -> Result<Self, RecordError> {
        Ok(Self { state: State::decode(record)?, ..Self::new(ports) })
    }

    /// A nexus is present: a session has begun. It has the registration that was made by the same name.
    pub fn attach(&mut self, id: NexusId, nexus: Nexus) {
        self.nexuses.insert(id, nexus);
    }

    /// Loss of a nexus: a session has ended. Its RESERVE(6) is released; its registration remains.
    pub fn detach(&mut self, id: NexusId) {
        self.nexuses.remove(&id);
        self.reserved.take_if(|holder| *holder == id);
    }

    /// Logical unit reset: RESERVE(6) is released; registrations and the persistent reservation remain.
    pub fn reset(&mut self) {
        self.reserved = None;
    }

    /// A command of `id` with this access is allowed; otherwise its status is RESERVATION CONFLICT.
    pub fn allows(&self, id: NexusId, access: Access) -> bool {
        if access == Access::Always {
            return true;
        }
        if self.reserved.is_some_and(|holder| holder != id) {
            return false;
        }
        let Some(held) = &self.state.reservation else {
            return true;
        };
        let reads = access == Access::Read && held.kind.allows_reads();
        reads || access == Access::Status || self.nexuses.get(&id).is_some_and(|nexus| self.has_access(nexus))
    }

    /// `nexus` has the access that the reservation reserves.
    fn has_access(&self, nexus: &Nexus) -> bool {
        let shared = self.state.reservation.as_ref().is_some_and(|held| held.kind.is_shared());
        self.state.holds(nexus) || (shared && self.state.key(nexus).is_some())
    }

    /// RESERVE(6) of `id`.
    ///
    /// # Errors
    /// Another nexus holds the unit, or a nexus is registered for persistent reservations.
    pub fn reserve(&mut self, id: NexusId) -> Result<(), Refusal> {
        let held = self.reserved.is_some_and(|holder| holder != id);
        if held || !self.state.registrations.is_empty() || !self.nexuses.contains_key(&id) {
            return Err(Refusal::Conflict);
        }
        self.reserved = Some(id);
        Ok(())
    }

    /// RELEASE(6) of `id`. It has no effect if another nexus holds the unit.
    ///
    /// # Errors
    /// A nexus is registered for persistent reservations.
    pub fn release(&mut self, id: NexusId) -> Result<(), Refusal> {
        if !self.state.registrations.is_empty() {
            return Err(Refusal::Conflict);
        }
        self.reserved.take_if(|holder| *holder == id);
        Ok(())
    }

    /// PERSISTENT RESERVE IN: the parameter data, truncated to the allocation length of the CDB.
    ///
    /// # Errors
    /// A nexus holds RESERVE(6), or the service action is unknown.
    pub fn report(&self, cdb: &[u8; 10]) -> Result<Vec<u8>, Refusal> {
        if self.reserved.is_some() {
            return Err(Refusal::Conflict);
        }
        self.state.report(cdb)
    }

    /// PERSISTENT RESERVE OUT of `id`, whose parameter list is the first bytes of `list`; a longer one than
    /// [`MAX_PARAMETER_LIST`] is refused. The state does not change before [`commit`](Self::commit). Until then the
    /// caller executes no other PERSISTENT RESERVE OUT, RESERVE(6) or RELEASE(6) on the unit; nexuses can come and go.
    ///
    /// # Errors
    /// The command is refused, and nothing changes.
    pub fn plan(&self, id: NexusId, cdb: &[u8; 10], list: &[u8]) -> Result<Change, Refusal> {
        let nexus = self.nexuses.get(&id).filter(|_| self.reserved.is_none()).ok_or(Refusal::Conflict)?;
        let request = Request::decode(cdb, list)?;
        let initiator = self.nexuses.values().map(|nexus| &nexus.initiator).collect();
        let mut state = self.state.clone();
        let consequences = state.execute(nexus, &request, &Ports { target: &self.ports, initiator })?;
        let record = (state.durable() != self.state.durable()).then(|| state.encode());
        Ok(Change { state, consequences, record })
    }

    /// Applies a change, after its record has been stored. The command ends with GOOD status.
    pub fn commit(&mut self, change: Change) -> Effects {
        let Consequences { attentions, aborted } = change.consequences;
        self.state = change.state;
        let mut effects = Effects::default();
        for (&id, nexus) in &self.nexuses {
            if let Some(&(_, attention)) = attentions.iter().find(|(other, _)| other == nexus) {
                effects.attentions.push((id, attention));
            }
            if aborted.contains(nexus) {
                effects.aborted.push(id);
            }
        }
        effects
    }
}
