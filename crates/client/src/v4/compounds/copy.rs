//! COPY within a server, which NFSv3 has not (RFC 7862 section 15.2).

use millrace_nfs::v4::{CopyArgs, CopyOk, CopyRequirements, List, Operation, Stateid};

use crate::{
    ops::FileHandle,
    v4::compound::{Compound, Failure, Operations, Results},
};

/// A synchronous COPY.
pub(crate) struct Copy {
    pub(crate) source: FileHandle,
    pub(crate) from: u64,
    pub(crate) destination: FileHandle,
    pub(crate) to: u64,
    /// Number of bytes, not 0.
    pub(crate) len: u64,
    /// Those of source and destination.
    pub(crate) stateids: [Stateid; 2],
}

impl Compound for Copy {
    type Ok = CopyOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let [source, destination] = self.stateids;
        ops.putfh(self.source.as_bytes()).put(Operation::Savefh, &());
        let args = CopyArgs {
            source,
            destination,
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
