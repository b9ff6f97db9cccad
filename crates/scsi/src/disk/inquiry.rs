//! Standard INQUIRY data (SPC-4 section 6.6.2).

use super::command::Job;
use crate::{bytes::put, cdb::Cdb, failure::Outcome, sense::Sense};

/// T10 VENDOR IDENTIFICATION.
pub(super) const VENDOR: &[u8; 8] = b"MILLRACE";
const PRODUCT: &[u8; 16] = b"Disk            ";
const REVISION: &[u8; 4] = b"0001";
/// Version descriptors: SAM-5, SPC-4, SBC-3, iSCSI.
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];
const LEN: usize = 96;

/// EVPD.
const VITAL: u8 = 0x01;

/// Standard INQUIRY data with the first byte `peripheral`.
fn standard(peripheral: u8) -> Vec<u8> {
    let mut data = vec![0; LEN];
    // Version SPC-4; HISUP and response data format 2; TPGS implicit; CMDQUE.
    put(&mut data, 0, &[peripheral, 0, 6, 0x12, LEN as u8 - 5, 0x10, 0, 0x02]);
    put(&mut data, 8, VENDOR);
    put(&mut data, 16, PRODUCT);
    put(&mut data, 32, REVISION);
    for (descriptor, version) in data[58..].chunks_exact_mut(2).zip(VERSIONS) {
        descriptor.copy_from_slice(&version.to_be_bytes());
    }
    data
}

/// INQUIRY of a LUN without a logical unit: only standard data.
pub(crate) fn absent(cdb: &Cdb) -> Outcome<Vec<u8>> {
    if cdb.flag(VITAL) || cdb.byte(2) != 0 {
        Err(Sense::cdb_field(1, Some(0)).into())
    } else {
        Ok(standard(0x7f))
    }
}

impl Job {
    pub(super) fn inquiry(&self) -> Outcome<Vec<u8>> {
        if self.cdb.flag(VITAL) {
            return Ok(self.vital_page(self.cdb.byte(2))?);
        }
        if self.cdb.byte(2) != 0 {
            return Err(Sense::cdb_field(2, None).into());
        }
        Ok(standard(0))
    }
}
