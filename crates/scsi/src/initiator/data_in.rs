//! Parameter data that an initiator receives.

use crate::{
    bytes::{be16, be32, be64},
    lun::Lun,
};

/// Parameter data is shorter than its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the target's {what} is truncated or malformed; check that the target conforms to SPC-4 and SBC-3")]
pub struct Truncated {
    what: &'static str,
}

const fn truncated(what: &'static str) -> Truncated {
    Truncated { what }
}

/// Standard INQUIRY data (SPC-4 section 6.6.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// PERIPHERAL QUALIFIER; 3: there is no logical unit.
    pub qualifier: u8,
    /// PERIPHERAL DEVICE TYPE; 0: a disk.
    pub device_type: u8,
    /// VERSION of SPC.
    pub version: u8,
    /// T10 VENDOR IDENTIFICATION without padding.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION without padding.
    pub product: String,
    /// PRODUCT REVISION LEVEL without padding.
    pub revision: String,
}

/// Printable ASCII without padding; other characters are replaced.
fn text(bytes: &[u8]) -> String {
    let printable = |b: &u8| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' };
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes.iter().take(end).map(printable).collect::<String>().trim().to_string()
}

/// Decodes standard INQUIRY data.
///
/// # Errors
/// It has fewer than 36 bytes.
pub fn inquiry(data: &[u8]) -> Result<Inquiry, Truncated> {
    let Some(data) = data.first_chunk::<36>() else { return Err(truncated("INQUIRY data")) };
    Ok(Inquiry {
        qualifier: data[0] >> 5,
        device_type: data[0] & 0x1f,
        version: data[2],
        vendor: text(&data[8..16]),
        product: text(&data[16..32]),
        revision: text(&data[32..36]),
    })
}

/// The body of the vital product data page `code`, as far as it was received.
fn vital(data: &[u8], code: u8) -> Option<&[u8]> {
    let length = usize::from(be16(data, 2).filter(|_| data.get(1) == Some(&code))?);
    let body = data.get(4..)?;
    Some(body.get(..length).unwrap_or(body))
}

/// Decodes the page Unit Serial Number (80h).
///
/// # Errors
/// The data is not this page.
pub fn serial_number(data: &[u8]) -> Result<String, Truncated> {
    vital(data, 0x80).map(text).ok_or(truncated("serial number page"))
}

/// A designator of the page Device Identification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Designator {
    /// ASSOCIATION: 0 logical unit, 1 target port, 2 target device.
    pub association: u8,
    /// DESIGNATOR TYPE: 1 T10 vendor ID, 3 NAA, 4 relative target port, 5 target port group, 8 SCSI name string.
    pub kind: u8,
    /// The designator.
    pub value: Vec<u8>,
}

/// Decodes the page Device Identification (83h); an incomplete last designator is left out.
///
/// # Errors
/// The data is not this page.
pub fn designators(data: &[u8]) -> Result<Vec<Designator>, Truncated> {
    let mut rest = vital(data, 0x83).ok_or(truncated("device identification page"))?;
    let mut found = Vec::new();
    while let [_, kind, _, length, tail @ ..] = rest {
        let Some((value, tail)) = tail.split_at_checked(usize::from(*length)) else { break };
        let (association, kind) = (kind >> 4 & 3, kind & 0x0f);
        found.push(Designator { association, kind, value: value.to_vec() });
        rest = tail;
    }
    Ok(found)
}

/// Block limits (SBC-3 section 6.5.3); 0 stands for no limit or not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockLimits {
    /// MAXIMUM TRANSFER LENGTH in blocks.
    pub max_transfer: u32,
    /// OPTIMAL TRANSFER LENGTH in blocks.
    pub optimal_transfer: u32,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks.
    pub max_compare_and_write: u8,
    /// MAXIMUM UNMAP LBA COUNT in blocks.
    pub max_unmap: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub max_unmap_descriptors: u32,
    /// MAXIMUM WRITE SAME LENGTH in blocks.
    pub max_write_same: u64,
}

/// Decodes the page Block Limits (b0h); fields that the page does not have are 0.
///
/// # Errors
/// The data is not this page, or has fewer than 12 bytes after the header.
pub fn block_limits(data: &[u8]) -> Result<BlockLimits, Truncated> {
    let body = vital(data, 0xb0).filter(|b| b.len() >= 12).ok_or(truncated("block limits page"))?;
    let field = |at: usize| be32(body, at - 4).unwrap_or(0);
    Ok(BlockLimits {
        max_transfer: field(8),
        optimal_transfer: field(12),
        max_compare_and_write: body.get(1).copied().unwrap_or(0),
        max_unmap: field(20),
        max_unmap_descriptors: field(24),
        max_write_same: be64(body, 32).unwrap_or(0),
    })
}

/// Logical block provisioning (SBC-3 section 6.5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP is supported.
    pub write_same_16: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

/// Decodes the page Logical Block Provisioning (b2h).
///
/// # Errors
/// The data is not this page.
pub fn provisioning(data: &[u8]) -> Result<Provisioning, Truncated> {
    let flags = vital(data, 0xb2).and_then(|b| b.get(1)).ok_or(truncated("provisioning page"))?;
    Ok(Provisioning {
        unmap: flags & 0x80 != 0,
        write_same_16: flags & 0x40 != 0,
        reads_zeros: flags & 0x1c != 0,
    })
}

/// READ CAPACITY(16) data (SBC-3 section 5.17.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number of blocks; saturated at `u64::MAX`.
    pub blocks: u64,
    /// Length of a block in bytes.
    pub block_bytes: u32,
    /// LBPME: blocks can be unmapped.
    pub thin: bool,
}

/// Decodes READ CAPACITY(16) data.
///
/// # Errors
/// It has fewer than 12 bytes, or the length of a block is not a power of two from 512 to 65536.
pub fn capacity(data: &[u8]) -> Result<Capacity, Truncated> {
    let (last, block_bytes) = be64(data, 0).zip(be32(data, 8)).ok_or(truncated("capacity"))?;
    if !block_bytes.is_power_of_two() || !(512..=65536).contains(&block_bytes) {
        return Err(truncated("capacity"));
    }
    let thin = data.get(14).is_some_and(|flags| flags & 0x80 != 0);
    Ok(Capacity { blocks: last.saturating_add(1), block_bytes, thin })
}

/// How blocks are stored (PROVISIONING STATUS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// They have storage, or the device does not report whether they have.
    Mapped,
    /// They have no storage.
    Deallocated,
    /// They have storage and no data: they read as deallocated ones do.
    Anchored,
}

/// An LBA status descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbaStatus {
    /// The first block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// State of all these blocks.
    pub state: BlockState,
}

/// Decodes GET LBA STATUS data (SBC-3 section 5.6.2); an incomplete last descriptor is left out.
///
/// # Errors
/// It has no complete descriptor.
pub fn lba_status(data: &[u8]) -> Result<Vec<LbaStatus>, Truncated> {
    let (Some(length), Some(list)) = (be32(data, 0), data.get(8..)) else {
        return Err(truncated("LBA status"));
    };
    // The length does not count its own field.
    let list = list.get(..(length as usize).saturating_sub(4)).unwrap_or(list);
    let decode = |descriptor: &[u8]| {
        let state = match descriptor.get(12)? & 0x0f {
            1 => BlockState::Deallocated,
            2 => BlockState::Anchored,
            _ => BlockState::Mapped,
        };
        Some(LbaStatus { lba: be64(descriptor, 0)?, blocks: be32(descriptor, 8)?, state })
    };
    let found: Vec<_> = list.chunks_exact(16).filter_map(decode).collect();
    if found.is_empty() { Err(truncated("LBA status")) } else { Ok(found) }
}

/// The parameters of the disk that MODE SENSE(10) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeParameters {
    /// WP: the medium is write-protected.
    pub write_protected: bool,
    /// DPOFUA: FUA is supported.
    pub fua: bool,
    /// WCE: writes are volatile until SYNCHRONIZE CACHE; `None` without the Caching page.
    pub write_cache: Option<bool>,
}

/// Decodes MODE SENSE(10) data.
///
/// # Errors
/// It has fewer than 8 bytes.
pub fn mode_parameters(data: &[u8]) -> Result<ModeParameters, Truncated> {
    let (Some(device), Some(length)) = (data.get(3), be16(data, 6)) else {
        return Err(truncated("mode parameter data"));
    };
    let mut rest = data.get(8 + usize::from(length)..).unwrap_or_default();
    let mut write_cache = None;
    while let [code, second, third, ..] = *rest {
        // A page with SPF has a subpage code and a length of two bytes.
        let len = match be16(rest, 2) {
            Some(long) if code & 0x40 != 0 => usize::from(long) + 4,
            _ => usize::from(second) + 2,
        };
        if code & 0x7f == 0x08 && second > 0 {
            write_cache = Some(third & 0x04 != 0);
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    Ok(ModeParameters { write_protected: device & 0x80 != 0, fua: device & 0x10 != 0, write_cache })
}

/// Decodes REPORT LUNS data: the LUNs of one level, and the length of the whole list in bytes with its header, which
/// is the allocation length for all LUNs.
///
/// # Errors
/// It has fewer than 8 bytes.
pub fn report_luns(data: &[u8]) -> Result<(Vec<Lun>, u32), Truncated> {
    let (Some(length), Some(list)) = (be32(data, 0), data.get(8..)) else {
        return Err(truncated("list of LUNs"));
    };
    let list = list.get(..length as usize).unwrap_or(list);
    let luns = list.chunks_exact(8).filter_map(|lun| lun.first_chunk().copied()).filter_map(Lun::from_bytes);
    Ok((luns.collect(), length.saturating_add(8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_target_have_no_control_characters() {
        let mut data = [b' '; 36];
        data[..5].fill(0);
        data[8..12].copy_from_slice(b"a\x1b[m");
        assert_eq!(inquiry(&data).unwrap().vendor, "a?[m");
        assert!(inquiry(&data[..35]).is_err());
    }

    #[test]
    fn lba_status_is_decoded() {
        let descriptor = |lba: u64, blocks: u32, state: u8| {
            [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[state, 0, 0, 0]].concat()
        };
        let all = [descriptor(7, 1, 0), descriptor(8, 2, 1), descriptor(10, 3, 0xf2), descriptor(13, 4, 9)]
            .concat();
        let data = [&[0, 0, 0, 68, 0, 0, 0, 0][..], &all].concat();
        let status = |lba, blocks, state| LbaStatus { lba, blocks, state };
        let expected = [
            status(7, 1, BlockState::Mapped),
            status(8, 2, BlockState::Deallocated),
            status(10, 3, BlockState::Anchored),
            status(13, 4, BlockState::Mapped),
        ];
        assert_eq!(lba_status(&data).unwrap(), expected);
        assert_eq!(lba_status(&data[..71]).unwrap(), expected[..3], "the last descriptor is incomplete");
        let fewer = [&[0, 0, 0, 20, 0, 0, 0, 0][..], &all].concat();
        assert_eq!(lba_status(&fewer).unwrap(), expected[..1], "the stated length is smaller");
        for short in [&data[..0], &data[..7], &data[..23], &[0; 24]] {
            assert!(lba_status(short).is_err());
        }
    }

    #[test]
    fn truncated_data_is_an_error_or_leaves_fields_out() {
        assert!(block_limits(&[0, 0xb0, 0, 60]).is_err());
        assert!(serial_number(&[0, 0x83, 0, 0]).is_err());
        assert_eq!(serial_number(&[0, 0x80, 0, 9, b'1', b'2']).unwrap(), "12");
        assert_eq!(designators(&[0, 0x83, 0, 8, 1, 3, 0, 9, 1]).unwrap(), []);
        assert!(capacity(&[0xff; 12]).is_err());
        assert_eq!(mode_parameters(&[0, 0, 0, 0x90, 0, 0, 0, 0, 8]).unwrap().write_cache, None);
        assert_eq!(report_luns(&[0, 0, 0, 16, 0, 0, 0, 0, 0, 5]).unwrap(), (vec![], 24));
    }
}
