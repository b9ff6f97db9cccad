//! Copies between files. Whole blocks become shared by both files; a write to one of them replaces its block.

use std::ops::{ControlFlow, Range};

use millrace_buffer::Views;

use super::{
    MAX_FILE_SIZE, MemoryFs,
    content::{Content, STEP},
    data::RangeChange,
};
use crate::{Copied, FsError, FsResult, Handle, Identity, SeekTarget, Stability, types::check_copy};

/// Maximum bytes of data that one call copies.
const MAX_DATA: u64 = 4 << 20;
/// Part of the limit of [`STEP`] blocks that a hole or a range of data counts as.
const PART: usize = if cfg!(test) { 0 } else { 4 };

impl MemoryFs {
    /// Copies data and holes alternately, until the end of the range or the limit of one call.
    pub(super) fn copy_now(
        &self,
        caller: &Identity,
        (source, from): (&Handle, u64),
        (destination, to): (&Handle, u64),
        length: u64,
    ) -> FsResult<Copied> {
        check_copy((source, from), (destination, to), length)?;
        to.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::FBig)?;
        // Checks the permissions, also for a copy of nothing.
        self.write_now(caller, destination, to, Views::new())?;
        let size = self.read_now(caller, source, from, 0)?.attr.size;
        let end = size.min(from.saturating_add(length));
        let (mut at, mut data_bytes, mut limit) = (from, 0, STEP);
        while at < end && data_bytes < MAX_DATA && limit > 0 {
            limit = limit.saturating_sub(PART);
            let target = to + (at - from);
            let find = |range: Range<u64>, target| {
                let (end, found) = (range.end, self.seek_now(caller, source, range, target)?);
                Ok::<_, FsError>(found.break_value().flatten().unwrap_or(end))
            };
            let data_at = find(at..end, SeekTarget::Data)?;
            if data_at > at {
                let (length, change) = (data_at - at, RangeChange::Zero);
                match self.range_now(caller, destination, target, length, change, &mut limit)? {
                    ControlFlow::Continue(zeroed) if zeroed > target => at += zeroed - target,
                    ControlFlow::Continue(_) => break,
                    ControlFlow::Break(_) => at = data_at,
                }
                continue;
            }
            let hole_at = find(at..end.min(at + MAX_DATA - data_bytes), SeekTarget::Hole)?;
            let count = hole_at.saturating_sub(at) as u32;
            let data = self.read_now(caller, source, at, count)?.data;
            let copied = data.len() as u64;
            if copied == 0 {
                break; // The source was truncated meanwhile.
            }
            self.write_with(caller, destination, target, data, Content::write_shared)?;
            at += copied;
            data_bytes += copied;
        }
        Ok(Copied { count: at.saturating_sub(from), committed: Stability::FileSync })
    }
}
