//! A unit whose records are stored in memory, and encoders of commands.

use millrace_scsi::reservation::{Change, Effects, InitiatorPort, Nexus, NexusId, Refusal, Reservations};

pub(crate) const PORTS: [u16; 2] = [1, 2];

pub(crate) const REGISTER: u8 = 0;
pub(crate) const RESERVE: u8 = 1;
pub(crate) const RELEASE: u8 = 2;
pub(crate) const CLEAR: u8 = 3;
pub(crate) const PREEMPT: u8 = 4;
pub(crate) const PREEMPT_AND_ABORT: u8 = 5;
pub(crate) const REGISTER_AND_IGNORE: u8 = 6;
pub(crate) const REGISTER_AND_MOVE: u8 = 7;

pub(crate) const APTPL: u8 = 0x01;
pub(crate) const ALL_TG_PT: u8 = 0x04;
pub(crate) const SPEC_I_PT: u8 = 0x08;

pub(crate) fn initiator(index: u8) -> InitiatorPort {
    InitiatorPort::new(&format!("iqn.2024-01.org.example:host{index}"), [0x40, 0, 0, 1, 0, index]).unwrap()
}

pub(crate) fn nexus(index: u8, port: u16) -> Nexus {
    Nexus { initiator: initiator(index), port }
}

pub(crate) fn out_cdb(action: u8, kind: u8, length: usize) -> [u8; 10] {
    let [a, b, c, d] = u32::try_from(length).unwrap().to_be_bytes();
    [0x5f, action, kind, 0, 0, a, b, c, d, 0]
}

pub(crate) fn in_cdb(action: u8, allocation: u16) -> [u8; 10] {
    let [a, b] = allocation.to_be_bytes();
    [0x5e, action, 0, 0, 0, 0, 0, a, b, 0]
}

/// The basic parameter list; with TransportIDs if SPEC_I_PT is one.
pub(crate) fn basic(key: u64, action_key: u64, bits: u8, ids: &[u8]) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, bits, 0, 0, 0]);
    if bits & SPEC_I_PT != 0 {
        list.extend(u32::try_from(ids.len()).unwrap().to_be_bytes());
        list.extend(ids);
    }
    list
}

/// The parameter list of REGISTER AND MOVE; bit 1 of `bits` is UNREG, bit 0 APTPL.
pub(crate) fn moving(key: u64, action_key: u64, bits: u8, port: u16, id: &[u8]) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, bits]);
    list.extend(port.to_be_bytes());
    list.extend(u32::try_from(id.len()).unwrap().to_be_bytes());
    list.extend(id);
    list
}

/// A unit and its stored record. The session of `nexus(index, port)` has the number `10 * index + port`.
pub(crate) struct Unit {
    pub(crate) reservations: Reservations,
    pub(crate) stored: Option<Vec<u8>>,
}

pub(crate) fn id(index: u8, port: u16) -> NexusId {
    NexusId(u64::from(index) * 10 + u64::from(port))
}

impl Unit {
    /// A unit with sessions of the first `count` initiator ports with target port 1.
    pub(crate) fn new(count: u8) -> Self {
        let mut unit = Self { reservations: Reservations::new(&PORTS), stored: None };
        (0..count).for_each(|index| unit.attach(index, 1));
        unit
    }

    pub(crate) fn attach(&mut self, index: u8, port: u16) {
        self.reservations.attach(id(index, port), nexus(index, port));
    }

    pub(crate) fn commit(&mut self, change: Change) -> Effects {
        if let Some(record) = change.record() {
            self.stored = Some(record.to_vec());
        }
        self.reservations.commit(change)
    }

    /// PERSISTENT RESERVE OUT with a parameter list.
    pub(crate) fn send(
        &mut self,
        id: NexusId,
        action: u8,
        kind: u8,
        list: &[u8],
    ) -> Result<Effects, Refusal> {
        let change = self.reservations.plan(id, &out_cdb(action, kind, list.len()), list)?;
        Ok(self.commit(change))
    }

    /// PERSISTENT RESERVE OUT of initiator `index` at target port 1 with a basic parameter list without bits.
    pub(crate) fn out(
        &mut self,
        index: u8,
        action: u8,
        kind: u8,
        key: u64,
        action_key: u64,
    ) -> Result<Effects, Refusal> {
        self.send(id(index, 1), action, kind, &basic(key, action_key, 0, &[]))
    }

    /// Registers an unregistered initiator.
    pub(crate) fn register(&mut self, index: u8, key: u64) {
        assert_eq!(self.out(index, REGISTER, 0, 0, key), Ok(Effects::default()));
    }

    pub(crate) fn report(&self, action: u8) -> Vec<u8> {
        self.reservations.report(&in_cdb(action, u16::MAX)).unwrap()
    }

    pub(crate) fn generation(&self) -> u32 {
        u32::from_be_bytes(*self.report(0).first_chunk().unwrap())
    }

    /// READ KEYS.
    pub(crate) fn keys(&self) -> Vec<u64> {
        let data = self.report(0);
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// READ RESERVATION: key, and scope and type.
    pub(crate) fn reservation(&self) -> Option<(u64, u8)> {
        let data = self.report(1);
        (data.len() > 8).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
    }

    /// Power loss: the unit is restored from the stored record, without sessions.
    pub(crate) fn restart(&mut self) {
        self.reservations = match &self.stored {
            Some(record) => Reservations::restore(&PORTS, record).unwrap(),
            None => Reservations::new(&PORTS),
        };
    }
}
