//! Which blocks of a device have storage.

use std::ops::Range;

pub use millrace_scsi::initiator::BlockState;
use millrace_scsi::initiator::lba_status;

/// A range of bytes whose blocks have the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The range, which consists of whole blocks.
    pub range: Range<u64>,
    /// The state of its blocks.
    pub state: BlockState,
}

/// The extents of `range`, which is not empty, by GET LBA STATUS data that was requested for its first block of `block`
/// bytes.
///
/// # Errors
/// The data has no extent at the beginning of the range: the reason as text. Later extents that are not consecutive are left
/// out.
pub(crate) fn extents(data: &[u8], range: Range<u64>, block: u64) -> Result<Vec<Extent>, String> {
    let mut found: Vec<Extent> = Vec::new();
    let mut at = range.start;
    for status in lba_status(data).map_err(|e| e.to_string())? {
        let start = status.lba.checked_mul(block);
        let end = status.lba.checked_add(status.blocks.into()).and_then(|lba| lba.checked_mul(block));
        let (Some(start), Some(end)) = (start, end) else { break };
        // The first extent may begin earlier.
        if start > at || end <= at || (!found.is_empty() && start < at) || at >= range.end {
            break;
        }
        let end = end.min(range.end);
        match found.last_mut() {
            Some(last) if last.state == status.state => last.range.end = end,
            _ => found.push(Extent { range: at..end, state: status.state }),
        }
        at = end;
    }
    match found.is_empty() {
        true => Err("the LBA status does not contain the requested block".into()),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(descriptors: &[(u64, u32, u8)]) -> Vec<u8> {
        let mut data = vec![0; 8];
        for (lba, blocks, state) in descriptors {
            data.extend(lba.to_be_bytes());
            data.extend(blocks.to_be_bytes());
            data.extend([*state, 0, 0, 0]);
        }
        let length = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&length.to_be_bytes());
        data
    }

    fn of(descriptors: &[(u64, u32, u8)]) -> Result<Vec<Extent>, String> {
        extents(&data(descriptors), 5120..20480, 512)
    }

    #[test]
    fn extents_are_consecutive_and_within_the_range() {
        let extent = |range, state| Extent { range, state };
        let (mapped, hole) = (BlockState::Mapped, BlockState::Deallocated);
        // Blocks 10 to 40 are requested.
        assert_eq!(of(&[(10, 30, 1)]).unwrap(), [extent(5120..20480, hole)]);
        assert_eq!(of(&[(0, 100, 0)]).unwrap(), [extent(5120..20480, mapped)]);
        let two = [extent(5120..6144, mapped), extent(6144..10240, hole)];
        assert_eq!(of(&[(10, 2, 0), (12, 8, 1)]).unwrap(), two);
        assert_eq!(
            of(&[(10, 1, 0), (11, 1, 0), (12, 8, 1)]).unwrap(),
            two,
            "equal neighbours are one extent"
        );
        for rest in [(30, 1, 0), (11, 20, 0), (20, 0, 0), (u64::MAX, 1, 0)] {
            assert_eq!(of(&[(10, 2, 0), (12, 8, 1), rest]).unwrap(), two, "{rest:?} does not follow");
        }
        assert_eq!(of(&[(10, 30, 0), (40, 9, 1)]).unwrap(), [extent(5120..20480, mapped)]);
    }

    #[test]
    fn an_answer_without_the_requested_block_is_an_error() {
        for wrong in
            [(11, 30, 0), (0, 10, 0), (10, 0, 1), (u64::MAX / 512 + 1, 1, 0), (u64::MAX, u32::MAX, 1)]
        {
            assert!(of(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(extents(&data(&[]), 0..512, 512).is_err());
    }
}
