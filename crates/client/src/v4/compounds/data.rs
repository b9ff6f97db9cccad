//! READ, WRITE, COMMIT and READLINK. The data of a reply is its end, where transports place it without a copy.

use millrace_buffer::Views;
use millrace_nfs::v4::{self, Operation, share_access};

use super::changes::{before, changed, put_after, put_before, unchanged};
use crate::{
    ops::{self, Read, Write},
    v4::compound::{Compound, Failure, Operations, Results, UsedState},
};

impl Compound for Read {
    type Ok = ops::ReadOk;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        visit(UsedState { file: self.file.as_bytes(), access: share_access::READ, state: &mut self.state });
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = v4::ReadArgs { stateid: self.state.stateid, offset: self.offset, count: self.count };
        ops.putfh(self.file.as_bytes()).put(Operation::Read, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::ReadOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::ReadOk = r.next(Operation::Read)?;
        Ok(ops::ReadOk { eof: ok.eof, data: ok.data })
    }
}

fn stable(how: ops::StableHow) -> v4::StableHow {
    match how {
        ops::StableHow::Unstable => v4::StableHow::Unstable,
        ops::StableHow::DataSync => v4::StableHow::DataSync,
        ops::StableHow::FileSync => v4::StableHow::FileSync,
    }
}

fn achieved(how: v4::StableHow) -> ops::StableHow {
    match how {
        v4::StableHow::Unstable => ops::StableHow::Unstable,
        v4::StableHow::DataSync => ops::StableHow::DataSync,
        v4::StableHow::FileSync => ops::StableHow::FileSync,
    }
}

impl Compound for Write {
    type Ok = ops::WriteOk;

    fn state(&mut self, visit: &mut dyn FnMut(UsedState<'_>)) {
        visit(UsedState { file: self.file.as_bytes(), access: share_access::WRITE, state: &mut self.state });
    }

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = v4::WriteArgs {
            stateid: self.state.stateid,
            offset: self.offset,
            stable: stable(self.stable),
            data: self.data.clone(),
        };
        put_before(ops.putfh(self.file.as_bytes()));
        put_after(ops.put(Operation::Write, &args));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::WriteOk, Failure> {
        r.done(Operation::Putfh)?;
        let before = before(r)?;
        let ok: v4::WriteOk = r.next(Operation::Write)?;
        let (count, committed, verifier) = (ok.count, achieved(ok.committed), ok.verifier);
        Ok(ops::WriteOk { file: changed(before, count > 0, r)?, count, committed, verifier })
    }
}

impl Compound for ops::Commit {
    type Ok = ops::CommitOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = v4::CommitArgs { offset: self.offset, count: self.count };
        put_after(ops.putfh(self.file.as_bytes()).put(Operation::Commit, &args));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::CommitOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::CommitOk = r.next(Operation::Commit)?;
        Ok(ops::CommitOk { file: unchanged(r)?, verifier: ok.verifier })
    }
}

impl Compound for ops::Readlink {
    type Ok = Views;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.symlink.as_bytes()).put(Operation::Readlink, &());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Views, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::ReadlinkOk = r.next(Operation::Readlink)?;
        Ok(ok.target)
    }
}
