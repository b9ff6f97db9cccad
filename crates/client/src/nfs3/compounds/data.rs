//! READ, WRITE, COMMIT and READLINK. The data of a reply is its end, where transports place it without a copy.

use millrace_nfs::{
    v3,
    v4::{self, Operation},
};

use super::{
    super::call::{Read, Write},
    changes::{before, changed, put_after, put_before, unchanged},
};
use crate::nfs4::compound::{Compound, Failure, Operations, Results};

impl Compound for Read {
    type Ok = v3::ReadOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let v3::ReadArgs { file, offset, count } = self.args;
        let args = v4::ReadArgs { stateid: self.stateid, offset, count };
        ops.putfh(file.as_bytes()).put(Operation::Read, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::ReadOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::ReadOk = r.next(Operation::Read)?;
        Ok(v3::ReadOk { attributes: None, count: ok.data.len() as u32, eof: ok.eof, data: ok.data })
    }
}

fn stable(how: v3::StableHow) -> v4::StableHow {
    match how {
        v3::StableHow::Unstable => v4::StableHow::Unstable,
        v3::StableHow::DataSync => v4::StableHow::DataSync,
        v3::StableHow::FileSync => v4::StableHow::FileSync,
    }
}

fn stable3(how: v4::StableHow) -> v3::StableHow {
    match how {
        v4::StableHow::Unstable => v3::StableHow::Unstable,
        v4::StableHow::DataSync => v3::StableHow::DataSync,
        v4::StableHow::FileSync => v3::StableHow::FileSync,
    }
}

impl Compound for Write {
    type Ok = v3::WriteOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = v4::WriteArgs {
            stateid: self.stateid,
            offset: self.args.offset,
            stable: stable(self.args.stable),
            data: self.args.data.clone(),
        };
        put_before(ops.putfh(self.args.file.as_bytes()));
        put_after(ops.put(Operation::Write, &args));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::WriteOk, Failure> {
        r.done(Operation::Putfh)?;
        let before = before(r)?;
        let ok: v4::WriteOk = r.next(Operation::Write)?;
        let (count, committed, verifier) = (ok.count, stable3(ok.committed), ok.verifier);
        Ok(v3::WriteOk { file: changed(before, count > 0, r)?, count, committed, verifier })
    }
}

impl Compound for v3::CommitArgs {
    type Ok = v3::CommitOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = v4::CommitArgs { offset: self.offset, count: self.count };
        put_after(ops.putfh(self.file.as_bytes()).put(Operation::Commit, &args));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::CommitOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::CommitOk = r.next(Operation::Commit)?;
        Ok(v3::CommitOk { file: unchanged(r)?, verifier: ok.verifier })
    }
}

impl Compound for v3::ReadlinkArgs {
    type Ok = v3::ReadlinkOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.symlink.as_bytes()).put(Operation::Readlink, &());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::ReadlinkOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::ReadlinkOk = r.next(Operation::Readlink)?;
        Ok(v3::ReadlinkOk { attributes: None, target: ok.target })
    }
}
