//! COPY within a server, which NFSv3 has not (RFC 7862 section 15.2).

use millrace_nfs::v4::{CopyArgs, CopyOk, CopyRequirements, List, Operation, share_access};

use crate::{
    ops::{FileHandle, OpenState},
    v4::compound::{Compound, Failure, Operations, Results, UsedState},
};

/// A synchronous COPY.
pub(crate) struct Copy {
    pub(crate) source: FileHandle,
    pub(crate) from: u64,
    pub(crate) destination: FileHandle,
    pub(crate) to: u64,
    /// Number of bytes, not 0.
    pub(crate) len: u64,
    pub(crate) source_state: OpenState,
    pub(crate) destination_state: OpenState,
}

impl Compound for Copy {
    type Ok = CopyOk;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        let (source, destination) = (self.source.as_bytes(), self.destination.as_bytes());
        visit(UsedState { file: source, access: share_access::READ, state: &mut self.source_state });
        visit(UsedState {
            file: destination,
            access: share_access::WRITE,
            state: &mut self.destination_state,
        });
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.source.as_bytes()).put(Operation::Savefh, &());
        let args = CopyArgs {
            source: self.source_state.stateid,
            destination: self.destination_state.stateid,
            source_offset: self.from,
            destination_offset: self.to,
            count: self.len,
            // Consecutive, so that a short copy is the beginning of the range.
            requirements: CopyRequirements { consecutive: true, synchronous: true },
            source_servers: List(Vec::new()),
        };
        ops.putfh(self.destination.as_bytes()).put(Operation::Copy, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<CopyOk, Failure> {
        r.done(Operation::Putfh)?;
        r.done(Operation::Savefh)?;
        r.done(Operation::Putfh)?;
        r.next(Operation::Copy)
    }
}
