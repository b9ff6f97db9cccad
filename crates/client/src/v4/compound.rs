//! COMPOUND requests of the client: their operations, and the results (RFC 8881 section 16.2).

use millrace_nfs::v4::{
    Bitmap, CompoundRes, GetattrArgs, LookupArgs, Opaque, Operation, Owner, PutfhArgs, SequenceArgs, Status,
    decode_result,
};
use millrace_runtime::MaybeReady;
use millrace_user_database::Kind;
use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{
    ChangeProof,
    owners::{OwnerNames, Owners, UNMAPPED, Unknown},
};
use crate::ops::OpenState;

/// The state of an open file that a request uses.
pub(crate) struct UsedState<'c> {
    pub(crate) file: &'c [u8],
    /// Bits of [`share_access`](millrace_nfs::v4::share_access).
    pub(crate) access: u32,
    pub(crate) state: &'c mut OpenState,
}

/// A COMPOUND without its SEQUENCE: the operations of one call of the protocol layer, and how to decode their
/// results.
pub(crate) trait Compound: Send + Sync {
    /// The results of a success.
    type Ok: Send;

    /// Passes each state to `visit`, which replaces it after a recovery.
    fn state(&mut self, _visit: &mut dyn FnMut(UsedState<'_>)) {}

    /// The numbers of the user and the group that the call sets as owners.
    fn owners(&self) -> [Option<u32>; 2] {
        [None; 2]
    }

    /// Encodes the operations, the same ones for each transmission.
    fn operations(&self, ops: &mut Operations<'_>);

    /// Decodes the results.
    ///
    /// # Errors
    /// The first failed operation, or an invalid result.
    fn results(&self, results: &mut Results<'_>) -> Result<Self::Ok, Failure>;
}

/// Why a COMPOUND has no complete result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An operation failed.
    Status(Operation, Status),
    /// The reply violates the protocol.
    Invalid(String),
}

impl From<XdrError> for Failure {
    fn from(e: XdrError) -> Self {
        Self::Invalid(e.to_string())
    }
}

/// Encodes operations.
pub(crate) struct Operations<'e> {
    e: &'e mut Encoder,
    count: u32,
    /// What the change attribute proves, and whether the caller needs it ([`crate::Options::attributes_before`]).
    pub(crate) proof: ChangeProof,
    /// The names of [`Compound::owners`], if the server does not accept the numbers.
    pub(crate) names: Option<&'e OwnerNames>,
}

impl Operations<'_> {
    /// Appends an operation with its arguments.
    pub(crate) fn put(&mut self, operation: Operation, args: &impl Encode) -> &mut Self {
        self.e.put(&operation);
        self.e.put(args);
        self.count += 1;
        self
    }

    /// Appends PUTFH.
    pub(crate) fn putfh(&mut self, handle: &[u8]) -> &mut Self {
        self.put(Operation::Putfh, &PutfhArgs { handle: Opaque(handle) })
    }

    /// Appends LOOKUP, or LOOKUPP for `..`; nothing for `.`.
    pub(crate) fn lookup(&mut self, name: &[u8]) -> &mut Self {
        match step(name) {
            None => self,
            Some(Operation::Lookup) => self.put(Operation::Lookup, &LookupArgs { name: Opaque(name) }),
            Some(operation) => self.put(operation, &()),
        }
    }

    /// Appends GETATTR.
    pub(crate) fn getattr(&mut self, requested: Bitmap) -> &mut Self {
        self.put(Operation::Getattr, &GetattrArgs { requested })
    }
}

/// The operation that goes from a directory to `name`; `None` for the directory itself.
pub(crate) fn step(name: &[u8]) -> Option<Operation> {
    match name {
        b"." => None,
        b".." => Some(Operation::Lookupp),
        _ => Some(Operation::Lookup),
    }
}

/// The arguments of COMPOUND: SEQUENCE, if the call belongs to a session, and the operations.
pub(crate) struct Request<'c, C> {
    pub(crate) minor_version: u32,
    pub(crate) sequence: Option<SequenceArgs>,
    /// [`Operations::proof`].
    pub(crate) proof: ChangeProof,
    /// [`Operations::names`].
    pub(crate) names: Option<&'c OwnerNames>,
    pub(crate) compound: &'c C,
}

impl<'c, C> Request<'c, C> {
    /// A COMPOUND that belongs to no session: an operation on client IDs, sessions or connections.
    pub(crate) fn without_session(minor_version: u32, compound: &'c C) -> Self {
        Self { minor_version, sequence: None, proof: ChangeProof::Nothing, names: None, compound }
    }
}

impl<C: Compound> Encode for Request<'_, C> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(b""); // tag
        e.put_u32(self.minor_version);
        let count_at = e.len();
        e.put_u32(0);
        let mut ops = Operations { e, count: 0, proof: self.proof, names: self.names };
        if let Some(sequence) = &self.sequence {
            ops.put(Operation::Sequence, sequence);
        }
        self.compound.operations(&mut ops);
        let count = ops.count;
        e.patch_u32(count_at, count);
    }
}

/// Whether a success of `operation` changes files or state, so that its repetition may have another result.
fn changes(operation: Operation) -> bool {
    use Operation as Op;
    matches!(
        operation,
        Op::Open
            | Op::Close
            | Op::Create
            | Op::Remove
            | Op::Rename
            | Op::Link
            | Op::Setattr
            | Op::Lock
            | Op::Locku
    )
}

/// The results of a COMPOUND, decoded one after another.
pub(crate) struct Results<'a> {
    d: Decoder<'a>,
    left: u32,
    status: Status,
    /// Whether an operation that changes something has succeeded.
    pub(crate) changed: bool,
    /// Whether an operation failed whose failure does not matter.
    failed: bool,
    /// [`Operations::proof`].
    pub(crate) proof: ChangeProof,
    /// What names of owners are; without it, unmapped.
    owners: Option<&'a Owners>,
    /// The names that are looked up. Until then they are unmapped.
    pub(crate) unknown: Vec<Unknown>,
}

impl<'a> Results<'a> {
    /// Decodes the part before the results of a [`Request`] with this `proof`.
    pub(crate) fn new(mut d: Decoder<'a>, proof: ChangeProof) -> Result<Self, XdrError> {
        let frame: CompoundRes<'_> = d.get()?;
        let (left, status, unknown) = (frame.results, frame.status, Vec::new());
        Ok(Self { d, left, status, changed: false, failed: false, proof, owners: None, unknown })
    }

    /// As [`Self::new`], with the names of owners.
    pub(crate) fn with_owners(
        d: Decoder<'a>,
        proof: ChangeProof,
        owners: &'a Owners,
    ) -> Result<Self, XdrError> {
        Ok(Self { owners: Some(owners), ..Self::new(d, proof)? })
    }

    /// The number of an owner.
    pub(crate) fn owner(&mut self, kind: Kind, owner: Option<Owner<'_>>) -> u32 {
        let (owners, name) = match (self.owners, owner) {
            (_, Some(Owner::Id(id))) => return id,
            (Some(owners), Some(Owner::Name(name))) => (owners, name),
            _ => return UNMAPPED,
        };
        match owners.id(kind, name) {
            MaybeReady::Ready(id) => id.unwrap_or(UNMAPPED),
            unknown => {
                self.unknown.push(unknown);
                UNMAPPED
            }
        }
    }

    /// The status of the COMPOUND, if it failed without the result of an operation.
    pub(crate) fn rejected(&self) -> Option<Status> {
        (self.left == 0 && self.status != Status::Ok).then_some(self.status)
    }

    /// Decodes the result of the next operation.
    ///
    /// # Errors
    /// The status of the operation if it failed; an invalid or missing result.
    pub(crate) fn next<T: Decode<'a>>(&mut self, operation: Operation) -> Result<T, Failure> {
        if self.left == 0 {
            return Err(Failure::Invalid(format!("no result of {operation}")));
        }
        self.left -= 1;
        match decode_result(&mut self.d, operation)? {
            Ok(value) => {
                self.changed |= changes(operation);
                Ok(value)
            }
            Err(status) => Err(Failure::Status(operation, status)),
        }
    }

    /// Decodes the result of an operation whose failure does not matter; `None` if it or an earlier such operation
    /// failed.
    pub(crate) fn optional<T: Decode<'a>>(&mut self, operation: Operation) -> Result<Option<T>, Failure> {
        if self.failed {
            return Ok(None);
        }
        match self.next(operation) {
            Ok(value) => Ok(Some(value)),
            Err(Failure::Status(..)) => {
                self.failed = true;
                Ok(None)
            }
            Err(invalid) => Err(invalid),
        }
    }

    /// Checks that no results are left.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        match (self.left, self.failed || self.status == Status::Ok) {
            (0, true) => Ok(()),
            (0, false) => Err(Failure::Invalid(format!("success, and the status {:?}", self.status))),
            (n, _) => Err(Failure::Invalid(format!("{n} results more than operations"))),
        }
    }

    /// Accepts the failure of an operation, after which the server executes no others.
    ///
    /// # Errors
    /// The failure, if the server asks to repeat the call, or the result is invalid.
    pub(crate) fn accept(&mut self, failure: Failure) -> Result<(), Failure> {
        match failure {
            Failure::Status(_, Status::Delay | Status::Grace | Status::RetryUncachedRep) => Err(failure),
            Failure::Status(..) => {
                self.failed = true;
                Ok(())
            }
            Failure::Invalid(_) => Err(failure),
        }
    }

    /// Decodes the data of a failure, which [`Self::next`] has returned. The failure is an expected outcome.
    pub(crate) fn of_failure<T: Decode<'a>>(&mut self) -> Result<T, Failure> {
        self.failed = true;
        Ok(self.d.get()?)
    }

    /// Decodes the result of an operation without data.
    pub(crate) fn done(&mut self, operation: Operation) -> Result<(), Failure> {
        self.next(operation)
    }

    /// Decodes the result of [`Operations::lookup`].
    pub(crate) fn lookup(&mut self, name: &[u8]) -> Result<(), Failure> {
        step(name).map_or(Ok(()), |operation| self.done(operation))
    }
}

/// A COMPOUND of SEQUENCE alone: it renews the lease, and settles an uncertain slot.
pub(crate) struct Nothing;

impl Compound for Nothing {
    type Ok = ();

    fn operations(&self, _: &mut Operations<'_>) {}

    /// Ignores all results: the reply may be that to another request with the same sequence number.
    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        (r.left, r.failed) = (0, true);
        Ok(())
    }
}
