//! The record of the registrations and the reservation that survive power loss (SPC-4 section 5.13.5).
//!
//! All numbers are big-endian:
//!
//! ```text
//! magic "MRPR", version u16 = 1, APTPL u8, TYPE u8 (0: no reservation), holder u16 (index; ffff: none),
//! registrations u16, each: key u64, port u16, ISID [6], length u8, name; CRC32C of all bytes before it u32
//! ```

use crc_fast::{CrcAlgorithm, checksum};

use super::initiator_port::{InitiatorPort, MAX_NAME};
use super::kind::ReservationType;
use super::state::{MAX_REGISTRATIONS, Nexus, Registration, Reservation, State};

const MAGIC: [u8; 4] = *b"MRPR";
const VERSION: u16 = 1;
const NO_HOLDER: u16 = u16::MAX;

/// Longest record in bytes.
pub const MAX_RECORD: usize = 12 + MAX_REGISTRATIONS * (17 + MAX_NAME) + 4;

/// A stored record of persistent reservations is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The magic number or the checksum is wrong, or the length.
    #[error(
        "the record of persistent reservations is damaged; restore it, or remove it to drop all registrations"
    )]
    Damaged,
    /// The version is not supported.
    #[error(
        "the record of persistent reservations has version {0}, not 1; use the program version that stored it"
    )]
    Version(u16),
    /// The checksum is right and the content is not.
    #[error("the record of persistent reservations is inconsistent; remove it to drop all registrations")]
    Inconsistent,
}

impl State {
    /// The record of the state. Without APTPL it has no registrations.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (registrations, reservation) = self.durable().unwrap_or_default();
        let holder = reservation.and_then(|held| held.holder.as_ref());
        let holder = holder.and_then(|holder| registrations.iter().position(|r| r.nexus == *holder));
        let mut record = MAGIC.to_vec();
        record.extend_from_slice(&VERSION.to_be_bytes());
        record.push(u8::from(self.aptpl));
        record.push(reservation.map_or(0, |held| held.kind.code()));
        record.extend_from_slice(&holder.map_or(NO_HOLDER, bounded).to_be_bytes());
        record.extend_from_slice(&bounded(registrations.len()).to_be_bytes());
        for Registration { nexus, key } in registrations {
            record.extend_from_slice(&key.to_be_bytes());
            record.extend_from_slice(&nexus.port.to_be_bytes());
            record.extend_from_slice(&nexus.initiator.isid());
            record.push(u8::try_from(nexus.initiator.name().len()).unwrap_or(u8::MAX));
            record.extend_from_slice(nexus.initiator.name().as_bytes());
        }
        record.extend_from_slice(&crc(&record).to_be_bytes());
        record
    }

    /// The state of a record, after power loss: PRgeneration is zero.
    ///
    /// # Errors
    /// The record is not one that [`encode`](Self::encode) returns.
    pub(super) fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let (body, &stored) = record.split_last_chunk().ok_or(RecordError::Damaged)?;
        if record.len() > MAX_RECORD || crc(body) != u32::from_be_bytes(stored) {
            return Err(RecordError::Damaged);
        }
        let body = body.strip_prefix(&MAGIC).ok_or(RecordError::Damaged)?;
        let (&version, body) = body.split_first_chunk().ok_or(RecordError::Damaged)?;
        match u16::from_be_bytes(version) {
            VERSION => decode_body(body).ok_or(RecordError::Inconsistent),
            version => Err(RecordError::Version(version)),
        }
    }
}

fn decode_body(bytes: &[u8]) -> Option<State> {
    let (&[aptpl, kind, h0, h1, c0, c1], mut bytes) = bytes.split_first_chunk()?;
    let count = u16::from_be_bytes([c0, c1]);
    let mut state = State { aptpl: aptpl == 1, ..State::default() };
    if aptpl > 1 || (aptpl == 0 && (count > 0 || kind > 0)) {
        return None;
    }
    for _ in 0..count {
        let (registration, rest) = decode_registration(bytes)?;
        if state.key(&registration.nexus).is_some() {
            return None;
        }
        state.set_key(&registration.nexus, registration.key).ok()?;
        bytes = rest;
    }
    let holder = match u16::from_be_bytes([h0, h1]) {
        NO_HOLDER => None,
        index => Some(state.registrations.get(usize::from(index))?.nexus.clone()),
    };
    if kind > 0 {
        let kind = ReservationType::from_code(kind)?;
        if kind.is_all_registrants() != holder.is_none() || count == 0 {
            return None;
        }
        state.reservation = Some(Reservation { kind, holder });
    } else if holder.is_some() {
        return None;
    }
    bytes.is_empty().then_some(state)
}

fn decode_registration(bytes: &[u8]) -> Option<(Registration, &[u8])> {
    let (&key, bytes) = bytes.split_first_chunk()?;
    let (&port, bytes) = bytes.split_first_chunk()?;
    let (&isid, bytes) = bytes.split_first_chunk()?;
    let (&length, bytes) = bytes.split_first()?;
    let (name, bytes) = bytes.split_at_checked(usize::from(length))?;
    let initiator = InitiatorPort::new(std::str::from_utf8(name).ok()?, isid).ok()?;
    let nexus = Nexus { initiator, port: u16::from_be_bytes(port) };
    let key = u64::from_be_bytes(key);
    (key != 0).then_some((Registration { nexus, key }, bytes))
}

/// A number of registrations or an index.
fn bounded(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(NO_HOLDER)
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32 // 32-bit algorithm: the upper half is zero.
}
