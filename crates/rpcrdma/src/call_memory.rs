//! The memory of a call of the requester.

use std::cell::RefCell;

use millrace_oncrpc::{Stage, Stages, gss::ReplyCheck};
use smallvec::SmallVec;

use millrace_rdma::{
    Memory, Segment, SteeringTag,
    registration::{RegisteredMemory, Registrar},
};

/// Maximum number of unused [`CallMemory`] of a connection.
const MAX_SPARE: usize = 64;

/// Unused [`CallMemory`] of a connection, for later calls. A call moves its own several times, so it is boxed, and
/// without reuse each call would allocate heap memory.
#[derive(Default)]
#[allow(clippy::vec_box)] // The boxes are reused, not their contents.
pub(crate) struct SpareMemory(RefCell<Vec<Box<CallMemory>>>);

impl SpareMemory {
    /// Memory of a new call.
    pub(crate) fn take(&self, stages: Stages) -> Box<CallMemory> {
        let mut memory = self.0.borrow_mut().pop().unwrap_or_default();
        memory.stages = stages;
        memory
    }

    /// Keeps memory whose regions and buffers were taken.
    fn put(&self, memory: Box<CallMemory>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < MAX_SPARE {
            spare.push(memory);
        }
    }
}

/// The memory of one call: regions that the responder can access, and buffers for its results. Dropping it
/// revokes the regions.
#[derive(Default)]
pub struct CallMemory {
    /// Memory that the responder can read.
    pub(crate) reads: SmallVec<[RegisteredMemory; 1]>,
    /// Memory of the Write chunk.
    pub(crate) write: Option<RegisteredMemory>,
    /// Memory of the Reply chunk.
    pub(crate) reply: Option<RegisteredMemory>,
    /// Stages of the call.
    pub stages: Stages,
    /// For the reply to a protected call.
    pub(crate) check: Option<ReplyCheck>,
}

/// The unmapped memory of a call's results.
pub(crate) struct Recovered {
    pub(crate) write: Option<Memory>,
    pub(crate) reply: Option<Memory>,
}

impl CallMemory {
    /// The Write chunk.
    pub(crate) fn write_chunk(&self) -> Option<&[Segment]> {
        self.write.as_ref().map(RegisteredMemory::segments)
    }

    /// The Reply chunk.
    pub(crate) fn reply_chunk(&self) -> Option<&[Segment]> {
        self.reply.as_ref().map(RegisteredMemory::segments)
    }

    /// The steering tags of the call.
    pub fn tags(&self) -> impl Iterator<Item = SteeringTag> {
        let all = self.reads.iter().chain(&self.write).chain(&self.reply);
        all.flat_map(|r| r.segments().iter().map(|s| s.handle))
    }

    /// Unmaps all memory and returns that of the call's results, of which the responder reports that it wrote
    /// `write` and `reply` bytes. Afterwards the peer cannot access it (RFC 8166 section 3.4.3).
    pub(crate) fn unmap(
        mut self: Box<Self>,
        registrar: &dyn Registrar,
        spare: &SpareMemory,
        write: usize,
        reply: usize,
    ) -> Recovered {
        let mapped = !self.reads.is_empty() || self.write.is_some() || self.reply.is_some();
        if mapped {
            self.stages.end(Stage::Decode);
        }
        for r in self.reads.drain(..) {
            drop(registrar.unmap(r, 0));
        }
        let take = |mapped: Option<RegisteredMemory>, placed| mapped.and_then(|l| registrar.unmap(l, placed));
        let (write, reply) = (take(self.write.take(), write), take(self.reply.take(), reply));
        if mapped {
            self.stages.end(Stage::Deregistration);
        }
        self.stages = Stages::NONE;
        spare.put(self);
        Recovered { write, reply }
    }
}
