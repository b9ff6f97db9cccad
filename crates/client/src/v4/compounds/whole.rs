//! A file with its whole content, in one COMPOUND.

use millrace_nfs::v4::{
    self, Attributes, Claim, ClientId, CloseArgs, CreateHow, GetfhOk, Opaque, OpenArgs, OpenOk, Operation,
    SetattrRes, StableHow, StateOwner, Stateid, StateidOk, share_access, share_deny,
};
use millrace_xdr::Views;

use super::attributes::{handle, settable};
use crate::{
    ops::{self, FileHandle, NameIn},
    v4::compound::{Compound, Failure, Operations, Results},
};

/// Creates a file under a temporary name, writes its content to stable storage, sets its attributes, and renames it.
pub(crate) struct Whole<'a> {
    /// The directory, and the temporary name, which no other file has.
    pub(crate) temporary: NameIn<'a>,
    /// The final name.
    pub(crate) name: &'a [u8],
    pub(crate) data: Views,
    /// Attributes of the complete file.
    pub(crate) attributes: ops::SetAttributes,
    /// Owner of the open, which ends with the call.
    pub(crate) owner: u64,
}

impl Compound for Whole<'_> {
    type Ok = FileHandle;

    fn operations(&self, ops: &mut Operations<'_>) {
        let owner = self.owner.to_be_bytes();
        let private =
            ops::SetAttributes { mode: Some(0o600), size: Some(0), ..ops::SetAttributes::default() };
        ops.putfh(self.temporary.dir.as_bytes()).put(Operation::Savefh, &());
        ops.put(
            Operation::Open,
            &OpenArgs {
                seqid: 0,
                share_access: share_access::WRITE | share_access::WANT_NO_DELEG,
                share_deny: share_deny::NONE,
                owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(&owner) },
                create: Some(CreateHow::Unchecked(settable(&private))),
                claim: Claim::Null(Opaque(self.temporary.name)),
            },
        );
        let (stateid, data) = (Stateid::CURRENT, self.data.clone());
        let write = v4::WriteArgs { stateid, offset: 0, stable: StableHow::FileSync, data };
        ops.put(Operation::Write, &write);
        // A short write ends the COMPOUND before the file gets its name.
        let complete = Attributes { size: Some(self.data.len() as u64), ..Attributes::default() };
        ops.put(Operation::Verify, &complete);
        let attributes = settable(&self.attributes);
        ops.put(Operation::Setattr, &v4::SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        ops.put(Operation::Close, &CloseArgs { seqid: 0, stateid });
        ops.put(Operation::Getfh, &()).put(Operation::RestoreFh, &());
        let rename = v4::RenameArgs { from: Opaque(self.temporary.name), to: Opaque(self.name) };
        ops.put(Operation::Rename, &rename);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<FileHandle, Failure> {
        r.done(Operation::Putfh)?;
        r.done(Operation::Savefh)?;
        r.next::<OpenOk<'_>>(Operation::Open)?;
        let written: v4::WriteOk = r.next(Operation::Write)?;
        r.done(Operation::Verify)?;
        r.next::<SetattrRes>(Operation::Setattr)?;
        r.next::<StateidOk>(Operation::Close)?;
        let file = handle(&r.next::<GetfhOk<'_>>(Operation::Getfh)?.handle)?;
        r.done(Operation::RestoreFh)?;
        r.next::<v4::RenameOk>(Operation::Rename)?;
        if written.committed != StableHow::FileSync || written.count as usize != self.data.len() {
            return Err(Failure::Invalid("less written, or less stable, than requested".into()));
        }
        Ok(file)
    }
}

/// The status of a procedure for the operation that failed.
pub(crate) fn procedure_of(operation: Operation) -> ops::Procedure {
    match operation {
        Operation::Write | Operation::Verify => ops::Procedure::Write,
        Operation::Setattr => ops::Procedure::Setattr,
        Operation::Rename => ops::Procedure::Rename,
        _ => ops::Procedure::Create,
    }
}
