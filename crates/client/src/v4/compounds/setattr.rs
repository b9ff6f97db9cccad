//! SETATTR.

use millrace_nfs::v4::{self, Attributes, Operation, share_access};

use super::{
    attributes::{settable, time4},
    changes::{attributes_changed, before, put_before},
};
use crate::{
    ops::{self, Setattr, Wcc},
    v4::compound::{Compound, Failure, Operations, Results, UsedState},
};

impl Compound for Setattr {
    type Ok = Wcc;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        visit(UsedState {
            file: self.object.as_bytes(),
            access: share_access::WRITE,
            state: &mut self.state,
        });
    }

    fn owners(&self) -> [Option<u32>; 2] {
        [self.attributes.uid, self.attributes.gid]
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.object.as_bytes());
        if let Some(ctime) = self.guard {
            let same = Attributes { time_metadata: Some(time4(ctime)), ..Attributes::default() };
            ops.put(Operation::Verify, &same);
        }
        put_before(ops);
        let mut attributes = settable(&self.attributes);
        if let Some(names) = ops.names {
            names.set(&mut attributes);
        }
        ops.put(Operation::Setattr, &v4::SetattrArgs { stateid: self.state.stateid, attributes });
        ops.attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Wcc, Failure> {
        r.done(Operation::Putfh)?;
        if self.guard.is_some() {
            r.done(Operation::Verify)?;
        }
        let before = before(r)?;
        r.next::<v4::SetattrRes>(Operation::Setattr)?;
        attributes_changed(before, self.attributes != ops::SetAttributes::default(), r)
    }
}
