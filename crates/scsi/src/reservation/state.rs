//! The registrations and the persistent reservation of a logical unit.

use super::initiator_port::InitiatorPort;
use super::kind::ReservationType;
use super::refusal::Refusal;

/// Limit of the registrations of a logical unit.
pub const MAX_REGISTRATIONS: usize = 128;

/// An I_T nexus by name. Registrations belong to it, and it is the same after another login of the initiator port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The relative target port identifier, from 1.
    pub port: u16,
}

/// A registered nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) nexus: Nexus,
    /// The reservation key, not zero.
    pub(super) key: u64,
}

/// The persistent reservation. Its scope is the logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) kind: ReservationType,
    /// The holder, which is registered; `None` exactly for the types of all registrants, which all hold it.
    pub(super) holder: Option<Nexus>,
}

/// The state that PERSISTENT RESERVE OUT changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// PRgeneration.
    pub(super) generation: u32,
    /// The most recent APTPL: registrations and reservation survive power loss.
    pub(super) aptpl: bool,
    /// At most [`MAX_REGISTRATIONS`], oldest first, each nexus once.
    pub(super) registrations: Vec<Registration>,
    /// Released with the registration of its last holder.
    pub(super) reservation: Option<Reservation>,
}

impl State {
    /// The reservation key of `nexus`, if it is registered.
    pub(super) fn key(&self, nexus: &Nexus) -> Option<u64> {
        self.registrations.iter().find(|r| r.nexus == *nexus).map(|r| r.key)
    }

    /// `nexus` holds the reservation.
    pub(super) fn holds(&self, nexus: &Nexus) -> bool {
        self.reservation.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => holder == nexus,
            None => self.key(nexus).is_some(),
        })
    }

    /// Registers `nexus` with `key`, or changes its key.
    ///
    /// # Errors
    /// The table is full.
    pub(super) fn set_key(&mut self, nexus: &Nexus, key: u64) -> Result<(), Refusal> {
        if let Some(registration) = self.registrations.iter_mut().find(|r| r.nexus == *nexus) {
            registration.key = key;
            return Ok(());
        }
        if self.registrations.len() >= MAX_REGISTRATIONS {
            return Err(Refusal::InsufficientRegistrationResources);
        }
        self.registrations.push(Registration { nexus: nexus.clone(), key });
        Ok(())
    }

    /// Removes the registrations that `selected` selects, and the reservation with its last holder. Returns the
    /// nexuses that were registered.
    pub(super) fn remove(&mut self, selected: impl Fn(&Registration) -> bool) -> Vec<Nexus> {
        let removed: Vec<Nexus> =
            self.registrations.extract_if(.., |r| selected(r)).map(|r| r.nexus).collect();
        let held = match self.reservation.as_ref().map(|held| &held.holder) {
            Some(Some(holder)) => self.key(holder).is_some(),
            Some(None) => !self.registrations.is_empty(),
            None => true,
        };
        if !held {
            self.reservation = None;
        }
        removed
    }

    /// The registered nexuses.
    pub(super) fn nexuses(&self) -> impl Iterator<Item = &Nexus> {
        self.registrations.iter().map(|r| &r.nexus)
    }

    /// The part that survives power loss, if any.
    pub(super) fn durable(&self) -> Option<(&[Registration], Option<&Reservation>)> {
        self.aptpl.then_some((&self.registrations, self.reservation.as_ref()))
    }
}
