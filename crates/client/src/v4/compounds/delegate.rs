//! The request for a read delegation of a file.

use millrace_nfs::v4::{
    Attributes, Claim, ClientId, CloseArgs, Delegation, NoDelegation, Opaque, OpenArgs, OpenOk, Operation,
    StateOwner, Stateid, StateidOk, share_access, share_deny,
};

use super::attributes::after;
use crate::{
    ops,
    v4::compound::{Compound, Failure, Operations, Results},
};

/// The owner of the opens. Each is closed in the COMPOUND that opens.
const OWNER: &[u8] = b"delegate";

/// OPEN for reading that wants a delegation, CLOSE, and the attributes under the delegation.
pub(crate) struct Delegate<'a>(pub(crate) &'a [u8]);

/// The result of [`Delegate`].
pub(crate) enum Delegates {
    /// A delegation. `attributes`: those of the file, unless the delegation is of no use.
    Granted { stateid: Stateid, attributes: Option<ops::Attributes> },
    /// None for now: others use the file, or it cannot be opened.
    Contended,
    /// None, for another reason.
    Refused,
}

impl Compound for Delegate<'_> {
    type Ok = Delegates;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.0).put(
            Operation::Open,
            &OpenArgs::<Attributes<'_>> {
                seqid: 0,
                share_access: share_access::READ | share_access::WANT_READ_DELEG,
                share_deny: share_deny::NONE,
                owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(OWNER) },
                create: None,
                claim: Claim::Fh,
            },
        );
        ops.put(Operation::Close, &CloseArgs { seqid: 0, stateid: Stateid::CURRENT }).attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Delegates, Failure> {
        r.done(Operation::Putfh)?;
        let delegation = r.next::<OpenOk<'_>>(Operation::Open)?.delegation;
        // The delegation exists even if the rest fails.
        r.optional::<StateidOk>(Operation::Close)?;
        let attributes = after(r)?;
        Ok(match delegation {
            Delegation::Read(read) | Delegation::ReadAttrs(read) => {
                let attributes = attributes.filter(|_| !read.recall);
                Delegates::Granted { stateid: read.stateid, attributes }
            }
            // Not wanted: the client writes through.
            Delegation::Write(write) | Delegation::WriteAttrs(write) => {
                Delegates::Granted { stateid: write.stateid, attributes: None }
            }
            Delegation::NoneExt(NoDelegation::Contention { .. }) => Delegates::Contended,
            Delegation::None | Delegation::NoneExt(_) => Delegates::Refused,
        })
    }
}
