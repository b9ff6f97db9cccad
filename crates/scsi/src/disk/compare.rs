//! VERIFY, WRITE AND VERIFY, COMPARE AND WRITE and ORWRITE.

use std::sync::Arc;

use millrace_buffer::BLOCK_BYTES;
use millrace_vfs::{Stability, Views};

use super::{
    Disk,
    blocks::{Extent, first_difference},
    command::Job,
    transfer::{PIECE, locked},
};
use crate::{
    failure::{Failure, Outcome, Step},
    sense::{AdditionalSense, Sense, SenseKey, Status},
};

/// The condition that the blocks of a range must fulfil.
enum Expected {
    /// Readable.
    Any,
    /// Equal to the data of the same length.
    Data(Views),
    /// Each equal to this block.
    Each(Views),
}

fn miscompare(at: u64) -> Failure {
    Sense::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE).with_information(at).into()
}

impl Disk {
    /// Reads `extent` and compares it. The information of a miscompare is the offset in the data.
    async fn compare(&self, extent: Extent, expected: &Expected) -> Outcome<()> {
        for (offset, count) in extent.pieces(PIECE) {
            let found = self.medium.read(offset, count).await?;
            // At most MAX_TRANSFER_BYTES.
            let start = (offset - extent.offset) as usize;
            let difference = match expected {
                Expected::Any => None,
                Expected::Data(data) => first_difference(&found, &data.slice(start, found.len())),
                Expected::Each(block) => {
                    let starts = (0..found.len()).step_by(block.len().max(1));
                    let different =
                        |at| first_difference(block, &found.slice(at, block.len())).map(|offset| at + offset);
                    starts.into_iter().find_map(different)
                }
            };
            if let Some(at) = difference {
                return Err(miscompare((start + at) as u64));
            }
        }
        Ok(())
    }

    /// Replaces the data of `extent` by its disjunction with `data`.
    async fn or(&self, job: &Job, extent: Extent, data: &Views, stable: Stability) -> Outcome<()> {
        for (offset, count) in extent.pieces(PIECE) {
            let start = (offset - extent.offset) as usize;
            let old = self.medium.read(offset, count).await?;
            let new = disjunction(job, &old, &data.slice(start, old.len()))?;
            drop(old);
            self.medium.write(offset, new, stable).await?;
        }
        Ok(())
    }
}

/// The disjunction of two lists of the same length, in new buffers.
fn disjunction(job: &Job, a: &Views, b: &Views) -> Outcome<Views> {
    let mut out = Views::new();
    for start in (0..a.len()).step_by(BLOCK_BYTES) {
        let len = BLOCK_BYTES.min(a.len() - start);
        let mut buffer = job.target.arena.alloc(len).map_err(|_| Failure::Status(Status::Busy))?;
        a.slice(start, len).copy_to(&mut buffer);
        let mut bytes = buffer.iter_mut();
        for view in &b.slice(start, len) {
            view.iter().zip(&mut bytes).for_each(|(from, to)| *to |= from);
        }
        out.push(buffer.freeze());
    }
    Ok(out)
}

impl Job {
    /// The data of a command that fails unless the initiator has exactly the data that it needs.
    pub(super) fn exact_data(&self, bytes: u64) -> Outcome<Views> {
        if u64::from(self.expected) != bytes || (self.data.len() as u64) < bytes {
            return Err(Sense::illegal(AdditionalSense::INVALID_INFORMATION_UNIT).into());
        }
        Ok(self.data.slice(0, bytes as usize))
    }

    pub(super) fn verify(self) -> Step<Views> {
        match self.expected_blocks() {
            Err(failure) => Step::Ready(Err(failure)),
            Ok((extent, expected)) => Step::wait(async move {
                self.disk.compare(extent, &expected).await?;
                Ok(Views::new())
            }),
        }
    }

    /// The range of VERIFY, and what it is compared with.
    fn expected_blocks(&self) -> Outcome<(Extent, Expected)> {
        let extent = self.disk.transfer_extent(&self.cdb)?;
        Ok(match self.cdb.byte_check() {
            0 => (extent, Expected::Any),
            1 => {
                let (extent, data) = self.write_data(extent)?;
                (extent, Expected::Data(data))
            }
            3 if extent.bytes == 0 => (extent, Expected::Any),
            3 => {
                let block = self.disk.block_bytes() as usize;
                if self.data.len() < block {
                    return Err(Sense::illegal(AdditionalSense::INVALID_INFORMATION_UNIT).into());
                }
                (extent, Expected::Each(self.data.slice(0, block)))
            }
            _ => return Err(Sense::cdb_field(1, Some(2)).into()),
        })
    }

    /// Writes durably, then reads. No other write comes in between.
    pub(super) fn write_and_verify(self) -> Step<Views> {
        let checked = self.disk.transfer_extent(&self.cdb).map_err(Failure::from);
        let (extent, data) = match checked.and_then(|extent| self.write_data(extent)) {
            Ok(_) if self.cdb.byte_check() > 1 => {
                return Step::Ready(Err(Sense::cdb_field(1, Some(2)).into()));
            }
            Ok(checked) => checked,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        self.disk.counters.written(extent.bytes);
        let ranges = Arc::clone(&self.disk.ranges);
        locked(&ranges, extent, true, move || {
            Step::wait(async move {
                let expected =
                    if self.cdb.byte_check() == 1 { Expected::Data(data.clone()) } else { Expected::Any };
                self.disk.medium.write(extent.offset, data, Stability::FileSync).await?;
                self.disk.compare(extent, &expected).await?;
                Ok(Views::new())
            })
        })
    }

    /// Compares the first half of the data with the blocks, and writes the second half if they are equal. No other
    /// write comes in between.
    pub(super) fn compare_and_write(self) -> Step<Views> {
        let checked = self.disk.transfer_extent(&self.cdb).map_err(Failure::from);
        let checked = checked.and_then(|extent| match extent.bytes {
            // The initiator has data for more blocks than the CDB can state.
            0 if self.expected > 0 => Err(Sense::cdb_field(self.cdb.length_at(), None).into()),
            bytes => Ok((extent, self.exact_data(2 * bytes)?)),
        });
        let (extent, data) = match checked {
            Ok((extent, _)) if extent.bytes == 0 => return Step::Ready(Ok(Views::new())),
            Ok(checked) => checked,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        let half = data.len() / 2;
        let (old, new) = (data.slice(0, half), data.slice(half, half));
        let ranges = Arc::clone(&self.disk.ranges);
        locked(&ranges, extent, true, move || {
            Step::wait(async move {
                self.disk.compare(extent, &Expected::Data(old)).await?;
                let stable = self.stability(self.cdb.fua());
                self.disk.medium.write(extent.offset, new, stable).await?;
                Ok(Views::new())
            })
        })
    }

    pub(super) fn or_write(self) -> Step<Views> {
        let checked = self.disk.transfer_extent(&self.cdb).map_err(Failure::from);
        let (extent, data) = match checked.and_then(|extent| self.write_data(extent)) {
            Ok(checked) => checked,
            Err(failure) => return Step::Ready(Err(failure)),
        };
        let ranges = Arc::clone(&self.disk.ranges);
        locked(&ranges, extent, true, move || {
            Step::wait(async move {
                let stable = self.stability(self.cdb.fua());
                self.disk.or(&self, extent, &data, stable).await?;
                Ok(Views::new())
            })
        })
    }
}
