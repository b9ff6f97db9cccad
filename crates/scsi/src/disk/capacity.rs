//! READ CAPACITY(10) and READ CAPACITY(16) (SBC-3 sections 5.16 and 5.17).

use super::{BlockSize, command::Job};
use crate::bytes::put;

impl Job {
    pub(super) fn read_capacity_10(&self) -> Vec<u8> {
        let last = u32::try_from(self.disk.blocks() - 1).unwrap_or(u32::MAX);
        [last.to_be_bytes(), self.disk.block_bytes().to_be_bytes()].concat()
    }

    pub(super) fn read_capacity_16(&self) -> Vec<u8> {
        let mut data = vec![0; 32];
        put(&mut data, 0, &(self.disk.blocks() - 1).to_be_bytes());
        put(&mut data, 8, &self.disk.block_bytes().to_be_bytes());
        // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT: physical blocks have 4096 bytes.
        let exponent = if self.disk.config.block_size == BlockSize::B512 { 3 } else { 0 };
        // LBPME and LBPRZ.
        put(&mut data, 13, &[exponent, if self.disk.thin { 0xc0 } else { 0 }]);
        data
    }
}
