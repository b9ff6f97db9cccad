//! The gather list of a batch of frames.

use std::io::IoSlice;

use millrace_rdma::stag::StagTable;
use smallvec::SmallVec;

use super::{Tx, work::pieces};
use crate::fault::Fault;

/// The most pieces in one write: the kernel's own limit, IOV_MAX.
pub(super) const MAX_PIECES: usize = 1024;

type Pieces<'a> = SmallVec<[IoSlice<'a>; MAX_PIECES]>;

/// Adds `piece` without its first `skip` bytes, of which it takes off what it used; false when the list is full.
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

/// Lists what is unsent of `tx`'s frames, in stream order, as far as the list goes.
///
/// # Errors
/// When the source of a Read Response is gone.
pub(super) fn gather<'a>(
    tx: &'a Tx,
    table: Option<&'a StagTable>,
    out: &mut Pieces<'a>,
) -> Result<(), Fault> {
    let mut skip = tx.sent;
    // Scratch bytes from `run` to `at` wait to be added as one piece.
    let (mut run, mut at) = (tx.scratch_at, tx.scratch_at);
    // Frames of one work follow each other, so its bytes are looked up once.
    let mut looked_up = None;
    for f in &tx.frames {
        at += f.head;
        if f.len > 0 {
            let found = match looked_up {
                Some((work, found)) if work == f.work => found,
                _ => {
                    let Some(work) = tx.queue.get((f.work - tx.first_work) as usize) else { break };
                    match work.find(table) {
                        Ok(found) => found,
                        // What stands before it can still go; the error comes back when it is first.
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
