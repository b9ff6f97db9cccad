//! CDBs and parameter lists of an initiator.

use crate::{bytes::put, cdb::CDB_LEN};

/// A CDB of 16 bytes with LBA and number of blocks.
fn blocks(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[opcode, flags]);
    put(&mut cdb, 2, &lba.to_be_bytes());
    put(&mut cdb, 10, &count.to_be_bytes());
    cdb
}

const fn fua_bit(fua: bool) -> u8 {
    if fua { 0x08 } else { 0 }
}

/// TEST UNIT READY.
pub const fn test_unit_ready() -> [u8; CDB_LEN] {
    [0; CDB_LEN]
}

/// READ(16) of `count` blocks at `lba`; with `fua` from the medium.
pub fn read_16(lba: u64, count: u32, fua: bool) -> [u8; CDB_LEN] {
    blocks(0x88, fua_bit(fua), lba, count)
}

/// WRITE(16) of `count` blocks at `lba`; with `fua` durable at completion.
pub fn write_16(lba: u64, count: u32, fua: bool) -> [u8; CDB_LEN] {
    blocks(0x8a, fua_bit(fua), lba, count)
}

/// SYNCHRONIZE CACHE(16) of `count` blocks at `lba`; 0 blocks: to the end of the disk.
pub fn synchronize_cache_16(lba: u64, count: u32) -> [u8; CDB_LEN] {
    blocks(0x91, 0, lba, count)
}

/// WRITE SAME(16) of one block to `count` blocks at `lba`. With `unmap` blocks of zeros may lose their storage.
pub fn write_same_16(lba: u64, count: u32, unmap: bool) -> [u8; CDB_LEN] {
    blocks(0x93, fua_bit(unmap), lba, count)
}

/// UNMAP with a parameter list of `length` bytes ([`unmap_list`]).
pub fn unmap(length: u16) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0x42]);
    put(&mut cdb, 7, &length.to_be_bytes());
    cdb
}

/// The parameter list of [`unmap`] for ranges of first block and number of blocks; `None` for more than 4095 ranges,
/// whose list is too long.
pub fn unmap_list(ranges: &[(u64, u32)]) -> Option<Vec<u8>> {
    let length = u16::try_from(ranges.len() * 16 + 8).ok()?;
    let mut list = vec![0; 8];
    put(&mut list, 0, &(length - 2).to_be_bytes());
    put(&mut list, 2, &(length - 8).to_be_bytes());
    for (lba, count) in ranges {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    Some(list)
}

/// READ CAPACITY(16).
pub fn read_capacity_16() -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0x9e, 0x10]);
    put(&mut cdb, 10, &32_u32.to_be_bytes());
    cdb
}

/// GET LBA STATUS from `lba` on.
pub fn get_lba_status(lba: u64, allocation: u32) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0x9e, 0x12]);
    put(&mut cdb, 2, &lba.to_be_bytes());
    put(&mut cdb, 10, &allocation.to_be_bytes());
    cdb
}

/// Standard INQUIRY.
pub fn inquiry(allocation: u16) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0x12]);
    put(&mut cdb, 3, &allocation.to_be_bytes());
    cdb
}

/// INQUIRY of the vital product data page `page`.
pub fn vital_page(page: u8, allocation: u16) -> [u8; CDB_LEN] {
    let mut cdb = inquiry(allocation);
    put(&mut cdb, 1, &[1, page]);
    cdb
}

/// MODE SENSE(10) of the current values of `page`, without block descriptors.
pub fn mode_sense_10(page: u8, allocation: u16) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0x5a, 0x08, page & 0x3f]);
    put(&mut cdb, 7, &allocation.to_be_bytes());
    cdb
}

/// REPORT LUNS.
pub fn report_luns(allocation: u32) -> [u8; CDB_LEN] {
    let mut cdb = [0; CDB_LEN];
    put(&mut cdb, 0, &[0xa0]);
    put(&mut cdb, 6, &allocation.to_be_bytes());
    cdb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdbs_are_byte_exact() {
        let lba = 0x0102_0304_0506_0708;
        assert_eq!(read_16(lba, 9, true), [0x88, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0]);
        assert_eq!(write_16(lba, 9, false), [0x8a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0]);
        assert_eq!(synchronize_cache_16(0, 0), [0x91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(write_same_16(1, 2, true)[..2], [0x93, 8]);
        assert_eq!(read_capacity_16(), [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
        assert_eq!(get_lba_status(lba, 0x1000), [0x9e, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 0, 0, 0]);
        assert_eq!(vital_page(0xb0, 64)[..6], [0x12, 1, 0xb0, 0, 64, 0]);
        assert_eq!(mode_sense_10(0x3f, 256)[..10], [0x5a, 8, 0x3f, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(report_luns(512)[..12], [0xa0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        let list = unmap_list(&[(7, 3)]).unwrap();
        assert_eq!(list, [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(unmap(24)[..10], [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(unmap_list(&[(0, 0); 4096]).map(|list| list.len()), None);
        assert!(unmap_list(&[(0, 0); 4095]).is_some());
    }
}
