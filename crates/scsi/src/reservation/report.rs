//! The parameter data of PERSISTENT RESERVE IN (SPC-4 section 6.15).

use super::kind::ReservationType;
use super::refusal::Refusal;
use super::state::State;

impl State {
    /// Answers the CDB, truncated to its allocation length.
    ///
    /// # Errors
    /// The service action is unknown.
    pub(super) fn report(&self, cdb: &[u8; 10]) -> Result<Vec<u8>, Refusal> {
        let mut data = match cdb[1] & 0x1f {
            0 => self.with_generation(self.keys()),
            1 => self.with_generation(self.reservation_descriptor()),
            2 => self.capabilities(),
            3 => self.with_generation(self.full_status()),
            _ => return Err(Refusal::InvalidFieldInCdb),
        };
        data.truncate(usize::from(u16::from_be_bytes([cdb[7], cdb[8]])));
        Ok(data)
    }

    /// PRgeneration, the length of `list` before truncation, and `list`.
    fn with_generation(&self, list: Vec<u8>) -> Vec<u8> {
        let length = u32::try_from(list.len()).unwrap_or(u32::MAX);
        [&self.generation.to_be_bytes(), &length.to_be_bytes(), list.as_slice()].concat()
    }

    fn keys(&self) -> Vec<u8> {
        self.registrations.iter().flat_map(|r| r.key.to_be_bytes()).collect()
    }

    /// The descriptor of READ RESERVATION; empty without a reservation.
    fn reservation_descriptor(&self) -> Vec<u8> {
        let Some(held) = &self.reservation else {
            return Vec::new();
        };
        let key = held.holder.as_ref().and_then(|holder| self.key(holder)).unwrap_or(0);
        let mut descriptor = key.to_be_bytes().to_vec();
        descriptor.extend_from_slice(&[0, 0, 0, 0, 0, held.kind.code(), 0, 0]);
        descriptor
    }

    /// SIP_C, ATP_C, PTPL_C; TMV and PTPL_A; all types. CRH is zero: RESERVE(6) and registrations exclude each other.
    fn capabilities(&self) -> Vec<u8> {
        vec![0, 8, 0x0d, 0x80 | u8::from(self.aptpl), 0xea, 0x01, 0, 0]
    }

    fn full_status(&self) -> Vec<u8> {
        let kind = self.reservation.as_ref().map_or(0, |held| ReservationType::code(held.kind));
        let mut list = Vec::new();
        for registration in &self.registrations {
            let holds = self.holds(&registration.nexus);
            let id = registration.nexus.initiator.transport_id();
            list.extend_from_slice(&registration.key.to_be_bytes());
            // ALL_TG_PT is zero: each target port has its own registration.
            list.extend_from_slice(&[0, 0, 0, 0, u8::from(holds), if holds { kind } else { 0 }, 0, 0, 0, 0]);
            list.extend_from_slice(&registration.nexus.port.to_be_bytes());
            list.extend_from_slice(&u32::try_from(id.len()).unwrap_or(u32::MAX).to_be_bytes());
            list.extend_from_slice(&id);
        }
        list
    }
}
