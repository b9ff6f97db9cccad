//! The service actions of PERSISTENT RESERVE OUT (SPC-4 sections 5.13.7 to 5.13.11).

use super::initiator_port::{InitiatorPort, TransportId};
use super::kind::ReservationType;
use super::refusal::{Attention, Refusal};
use super::request::{Move, Preempt, Register, Request};
use super::state::{Nexus, Reservation, State};

/// The ports through which registrations can be made.
pub(super) struct Ports<'a> {
    /// Relative target port identifiers.
    pub(super) target: &'a [u16],
    /// Initiator ports of the present nexuses.
    pub(super) initiator: Vec<&'a InitiatorPort>,
}

/// The effects of a service action on other nexuses.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// Unit attention conditions, at most one for each nexus.
    pub(super) attentions: Vec<(Nexus, Attention)>,
    /// Nexuses whose commands are aborted.
    pub(super) aborted: Vec<Nexus>,
}

impl Consequences {
    /// Adds `attention` for all `nexuses` except `requester`.
    fn notify<'a>(
        &mut self,
        nexuses: impl IntoIterator<Item = &'a Nexus>,
        requester: &Nexus,
        attention: Attention,
    ) {
        let others = nexuses.into_iter().filter(|nexus| *nexus != requester);
        self.attentions.extend(others.map(|nexus| (nexus.clone(), attention)));
    }
}

/// A reservation of `nexus`, or of all registrants.
fn reservation(kind: ReservationType, nexus: &Nexus) -> Reservation {
    Reservation { kind, holder: (!kind.is_all_registrants()).then(|| nexus.clone()) }
}

impl State {
    /// Executes `request` of `nexus`. After an error the state is unspecified, and the caller discards it.
    ///
    /// # Errors
    /// The command is refused.
    pub(super) fn execute(
        &mut self,
        nexus: &Nexus,
        request: &Request,
        ports: &Ports<'_>,
    ) -> Result<Consequences, Refusal> {
        match request {
            Request::Register(register) => self.register(nexus, register, ports),
            Request::Reserve { key, kind } => self.reserve(nexus, *key, *kind),
            Request::Release { key, kind } => self.release(nexus, *key, *kind),
            Request::Clear { key } => self.clear(nexus, *key),
            Request::Preempt(preempt) => self.preempt(nexus, preempt),
            Request::Move(request) => self.register_and_move(nexus, request, ports),
        }
    }

    /// The nexus is registered with `key`.
    fn verify(&self, nexus: &Nexus, key: u64) -> Result<(), Refusal> {
        if self.key(nexus) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }

    fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn register(&mut self, nexus: &Nexus, r: &Register, ports: &Ports<'_>) -> Result<Consequences, Refusal> {
        let mut targets = through_ports(&nexus.initiator, nexus.port, r.all_ports, ports);
        // An unregistered nexus has key zero here.
        if r.key.is_some_and(|key| targets.iter().any(|target| self.key(target).unwrap_or(0) != key)) {
            return Err(Refusal::Conflict);
        }
        let registered = targets.iter().any(|target| self.key(target).is_some());
        if !registered && r.new_key == 0 {
            return Ok(Consequences::default());
        }
        if let Some(ids) = &r.initiators {
            for initiator in initiator_ports(ids, ports)? {
                targets.extend(through_ports(&initiator, nexus.port, r.all_ports, ports));
            }
            if targets.iter().any(|target| self.key(target).is_some()) {
                return Err(Refusal::InvalidFieldInParameterList);
            }
        }
        self.aptpl = r.aptpl;
        self.advance();
        if r.new_key == 0 {
            return Ok(self.unregister(nexus, &targets));
        }
        for target in &targets {
            self.set_key(target, r.new_key)?;
        }
        Ok(Consequences::default())
    }

    /// Removes the registrations of `targets` at the request of `nexus` (SPC-4 section 5.13.11.2.3).
    fn unregister(&mut self, nexus: &Nexus, targets: &[Nexus]) -> Consequences {
        let before = self.reservation.as_ref().map(|held| held.kind);
        self.remove(|r| targets.contains(&r.nexus));
        let mut consequences = Consequences::default();
        if self.reservation.is_none() && before.is_some_and(ReservationType::is_shared) {
            consequences.notify(self.nexuses(), nexus, Attention::ReservationsReleased);
        }
        consequences
    }

    fn reserve(
        &mut self,
        nexus: &Nexus,
        key: u64,
        kind: Option<ReservationType>,
    ) -> Result<Consequences, Refusal> {
        self.verify(nexus, key)?;
        let kind = kind.ok_or(Refusal::InvalidFieldInCdb)?;
        match &self.reservation {
            None => self.reservation = Some(reservation(kind, nexus)),
            Some(held) if held.kind == kind && self.holds(nexus) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Consequences::default())
    }

    fn release(
        &mut self,
        nexus: &Nexus,
        key: u64,
        kind: Option<ReservationType>,
    ) -> Result<Consequences, Refusal> {
        self.verify(nexus, key)?;
        let mut consequences = Consequences::default();
        if !self.holds(nexus) {
            return Ok(consequences);
        }
        let held = self.reservation.take().map(|held| held.kind);
        if held != kind {
            return Err(Refusal::InvalidRelease);
        }
        if held.is_some_and(ReservationType::is_shared) {
            consequences.notify(self.nexuses(), nexus, Attention::ReservationsReleased);
        }
        Ok(consequences)
    }

    fn clear(&mut self, nexus: &Nexus, key: u64) -> Result<Consequences, Refusal> {
        self.verify(nexus, key)?;
        let mut consequences = Consequences::default();
        consequences.notify(&self.remove(|_| true), nexus, Attention::ReservationsPreempted);
        self.advance();
        Ok(consequences)
    }

    fn preempt(&mut self, nexus: &Nexus, request: &Preempt) -> Result<Consequences, Refusal> {
        self.verify(nexus, request.key)?;
        let preempted = request.preempted;
        let holder = self.reservation.as_ref().map(|held| held.holder.as_ref());
        let preempts_reservation = match holder {
            Some(None) => preempted == 0,
            Some(Some(holder)) => self.key(holder) == Some(preempted),
            None => false,
        };
        if preempted == 0 && !preempts_reservation {
            return Err(Refusal::InvalidFieldInParameterList);
        }
        // Only the reservation of all registrants is preempted with key zero, and then from all of them.
        let affected: Vec<Nexus> = self
            .registrations
            .iter()
            .filter(|r| preempted == 0 || r.key == preempted)
            .map(|r| r.nexus.clone())
            .collect();
        if affected.is_empty() {
            return Err(Refusal::Conflict);
        }
        let mut consequences = Consequences::default();
        consequences.notify(&affected, nexus, Attention::RegistrationsPreempted);
        if preempts_reservation {
            let kind = request.kind.ok_or(Refusal::InvalidFieldInCdb)?;
            let before = self.reservation.take().map(|held| held.kind);
            self.remove(|r| r.nexus != *nexus && affected.contains(&r.nexus));
            self.reservation = Some(reservation(kind, nexus));
            if before != Some(kind) {
                consequences.notify(self.nexuses(), nexus, Attention::ReservationsReleased);
            }
        } else {
            self.remove(|r| affected.contains(&r.nexus));
        }
        if request.abort {
            consequences.aborted = affected;
        }
        self.advance();
        Ok(consequences)
    }

    fn register_and_move(
        &mut self,
        nexus: &Nexus,
        request: &Move,
        ports: &Ports<'_>,
    ) -> Result<Consequences, Refusal> {
        self.verify(nexus, request.key)?;
        let held = self.reservation.as_mut().ok_or(Refusal::InvalidFieldInCdb)?;
        if held.holder.as_ref() != Some(nexus) {
            return Err(Refusal::Conflict);
        }
        let TransportId::Port(initiator) = &request.initiator else {
            return Err(Refusal::InvalidFieldInParameterList);
        };
        let known = ports.target.contains(&request.port);
        if request.new_key == 0 || *initiator == nexus.initiator || !known {
            return Err(Refusal::InvalidFieldInParameterList);
        }
        let destination = Nexus { initiator: initiator.clone(), port: request.port };
        // Unregister first: the registration of the destination may need its place.
        held.holder = Some(destination.clone());
        if request.unregister {
            self.registrations.retain(|r| r.nexus != *nexus);
        }
        self.set_key(&destination, request.new_key)?;
        self.aptpl = request.aptpl;
        self.advance();
        Ok(Consequences::default())
    }
}

/// The nexuses of `initiator` with `port`, or with all target ports.
fn through_ports(initiator: &InitiatorPort, port: u16, all: bool, ports: &Ports<'_>) -> Vec<Nexus> {
    let others: &[u16] = if all { ports.target } else { &[] };
    let others = others.iter().copied().filter(|&other| other != port);
    std::iter::once(port).chain(others).map(|port| Nexus { initiator: initiator.clone(), port }).collect()
}

/// The initiator ports that TransportIDs identify. A node identifies its present ports; it has at least one.
fn initiator_ports(ids: &[TransportId], ports: &Ports<'_>) -> Result<Vec<InitiatorPort>, Refusal> {
    let mut found = Vec::new();
    for id in ids {
        match id {
            TransportId::Port(port) => found.push(port.clone()),
            TransportId::Node(name) => {
                let before = found.len();
                let of_node = ports.initiator.iter().filter(|port| port.name() == &**name);
                found.extend(of_node.map(|&port| port.clone()));
                if found.len() == before {
                    return Err(Refusal::InvalidFieldInParameterList);
                }
            }
        }
    }
    Ok(found)
}
