//! The gather list of a batch of frames.

use std::{collections::VecDeque, io::IoSlice};

use millrace_rdma::stag::StagTable;
use smallvec::SmallVec;

use super::{
    frame::{Frame, MAX_PIECES},
    work::{Work, pieces},
};
use crate::fault::Fault;

type Pieces<'a> = SmallVec<[IoSlice<'a>; MAX_PIECES]>;

/// Appends `piece` without its first `skip` bytes, and reduces `skip` by the bytes skipped. Returns false if
/// the list is full.
fn push<'a>(out: &mut Pieces<'a>, piece: &'a [u8], skip: &mut usize) -> bool {
    let cut = (*skip).min(piece.len());
    *skip -= cut;
    let piece = &piece[cut..];
    if piece.is_empty() {
        return true;
    }
    if out.len() == MAX_PIECES {
        return false;
    }
    out.push(IoSlice::new(piece));
    true
}

/// The unsent frames of a transmitter, and the location of their bytes.
pub(super) struct Unsent<'a> {
    /// The unsent frames, in stream order.
    pub(super) frames: &'a VecDeque<Frame>,
    /// Bytes of the first frame that were sent.
    pub(super) sent: usize,
    /// The work to which the frames belong.
    pub(super) queue: &'a VecDeque<Work>,
    /// The number of the first work in `queue`.
    pub(super) first_work: u64,
    /// Headers and trailers in stream order.
    pub(super) scratch: &'a [u8],
    /// Position in `scratch` of the first frame's header.
    pub(super) scratch_at: usize,
}

/// Appends the bytes of `tx` to `out` in stream order, as far as the list has space.
///
/// # Errors
/// The source of a Read Response is no longer exposed.
pub(super) fn gather<'a>(
    tx: &Unsent<'a>,
    table: Option<&'a StagTable>,
    out: &mut Pieces<'a>,
) -> Result<(), Fault> {
    let mut skip = tx.sent;
    // Scratch bytes from `run` to `at` are to be added as one piece.
    let (mut run, mut at) = (tx.scratch_at, tx.scratch_at);
    // Frames of one work are consecutive, so its bytes are located once.
    let mut looked_up = None;
    for f in tx.frames {
        at += f.head;
        if f.len > 0 {
            let found = match looked_up {
                Some((work, found)) if work == f.work => found,
                _ => {
                    let Some(work) = tx.queue.get((f.work - tx.first_work) as usize) else { break };
                    match work.find(table) {
                        Ok(found) => found,
                        // Send the frames before it; the error recurs when its frame is the first.
                        Err(_) if !out.is_empty() => return Ok(()),
                        Err(fault) => return Err(fault),
                    }
                }
            };
            looked_up = Some((f.work, found));
            if !push(out, &tx.scratch[run..at], &mut skip) {
                return Ok(());
            }
            let mut room = true;
            pieces(found, f.start, f.cursor, f.len, |p| {
                room = push(out, p, &mut skip);
                room
            });
            if !room {
                return Ok(());
            }
            run = at;
        }
        at += f.tail;
    }
    push(out, &tx.scratch[run..at], &mut skip);
    Ok(())
}
