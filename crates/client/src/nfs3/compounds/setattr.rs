//! SETATTR.

use millrace_nfs::{
    v3::{Sattr, WccData},
    v4::{self, Attributes, Operation},
};

use super::{
    super::call::Setattr,
    attributes::{settable, time4},
    changes::{attributes_changed, before, put_before},
};
use crate::nfs4::compound::{Compound, Failure, Operations, Results};

impl Compound for Setattr {
    type Ok = WccData;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.args.object.as_bytes());
        if let Some(ctime) = self.args.guard {
            let same = Attributes { time_metadata: Some(time4(ctime)), ..Attributes::default() };
            ops.put(Operation::Verify, &same);
        }
        put_before(ops);
        let attributes = settable(&self.args.attributes);
        ops.put(Operation::Setattr, &v4::SetattrArgs { stateid: self.stateid, attributes });
        ops.attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<WccData, Failure> {
        r.done(Operation::Putfh)?;
        if self.args.guard.is_some() {
            r.done(Operation::Verify)?;
        }
        let before = before(r)?;
        r.next::<v4::SetattrRes>(Operation::Setattr)?;
        attributes_changed(before, self.args.attributes != Sattr::default(), r)
    }
}
