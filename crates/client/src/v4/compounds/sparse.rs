//! Space and holes of files, which NFSv3 has not: ALLOCATE, DEALLOCATE and SEEK (RFC 7862 sections 15.1, 15.4 and 15.11).

use std::ops::Range;

use millrace_nfs::v4::{
    AllocateArgs, ContentType, DeallocateArgs, Operation, SeekArgs, SeekOk, share_access,
};

use super::attributes::after;
use crate::{
    ops::{FileHandle, OpenState, SpaceChange, Wcc},
    v4::compound::{Compound, Failure, Operations, Results, UsedState},
};

/// DEALLOCATE and ALLOCATE of one range.
pub(crate) struct ChangeSpace {
    pub(crate) file: FileHandle,
    pub(crate) state: OpenState,
    pub(crate) range: Range<u64>,
    pub(crate) change: SpaceChange,
}

impl ChangeSpace {
    fn deallocates(&self) -> bool {
        self.change != SpaceChange::Allocate
    }

    fn allocates(&self) -> bool {
        self.change != SpaceChange::Deallocate
    }
}

impl Compound for ChangeSpace {
    type Ok = Wcc;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        visit(UsedState { file: self.file.as_bytes(), access: share_access::WRITE, state: &mut self.state });
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        let (stateid, offset, length) =
            (self.state.stateid, self.range.start, self.range.end - self.range.start);
        ops.putfh(self.file.as_bytes());
        if self.deallocates() {
            ops.put(Operation::Deallocate, &DeallocateArgs { stateid, offset, length });
        }
        if self.allocates() {
            ops.put(Operation::Allocate, &AllocateArgs { stateid, offset, length });
        }
        ops.attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Wcc, Failure> {
        r.done(Operation::Putfh)?;
        if self.deallocates() {
            r.done(Operation::Deallocate)?;
        }
        if self.allocates() {
            r.done(Operation::Allocate)?;
        }
        // No attributes before: ALLOCATE and DEALLOCATE may change nothing, so a counter could not exclude another change.
        Ok(Wcc { after: after(r)?, ..Wcc::default() })
    }
}

/// SEEK.
pub(crate) struct Seek {
    pub(crate) file: FileHandle,
    pub(crate) state: OpenState,
    pub(crate) offset: u64,
    pub(crate) what: ContentType,
}

impl Compound for Seek {
    type Ok = SeekOk;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        visit(UsedState { file: self.file.as_bytes(), access: share_access::READ, state: &mut self.state });
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = SeekArgs { stateid: self.state.stateid, offset: self.offset, what: self.what };
        ops.putfh(self.file.as_bytes()).put(Operation::Seek, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<SeekOk, Failure> {
        r.done(Operation::Putfh)?;
        r.next(Operation::Seek)
    }
}
