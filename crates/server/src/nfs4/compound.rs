//! The state of a COMPOUND, and its execution operation by operation.

use std::sync::Arc;

use millrace_nfs::v4::{Bitmap, CHANGE_BYTES, CompoundEncoder, Operation, Stateid, Status};
use millrace_xdr::{Encoder, XdrError};

use super::{
    Env,
    arguments::Arguments,
    object::{Caller, File, Object},
    paths::Paths,
    timer::Timer,
};
use crate::{export::Exports, nfs4_clients::Session, usage::Usage};

/// The supported minor versions.
pub(super) const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

/// The context of an operation, besides the current file handle.
pub(super) struct Scope<'c> {
    pub(super) env: &'c Env,
    /// One version of the export table for the whole COMPOUND.
    pub(super) exports: Arc<Exports>,
    pub(super) caller: Caller<'c>,
    pub(super) minor_version: u32,
}

impl Scope<'_> {
    pub(super) fn paths(&self) -> Paths<'_> {
        Paths { exports: &self.exports, caller: &self.caller }
    }
}

/// A COMPOUND during its execution.
pub(super) struct Compound<'c> {
    pub(super) scope: Scope<'c>,
    /// The session of SEQUENCE.
    pub(super) session: Option<Arc<Session>>,
    /// Counters of the session's client.
    pub(super) usage: Option<Arc<Usage>>,
    pub(super) reply: Encoder,
    pub(super) current: Option<Object>,
    pub(super) saved: Option<Object>,
    pub(super) current_stateid: Option<Stateid>,
    pub(super) saved_stateid: Option<Stateid>,
    /// Bytes of bulk data for which memory is reserved.
    pub(super) bulk: usize,
    /// Bytes of payloads in the reply.
    pub(super) payload: usize,
    pub(super) timer: Timer,
    /// Limits of the reply.
    pub(super) limits: ReplyLimits,
    /// Whether the operation that is executed is the last one.
    pub(super) is_last: bool,
    /// The lock with which LOCK or LOCKT conflicts.
    pub(super) denied: Option<millrace_nfs4_state::LockDenied>,
}

impl<'c> Compound<'c> {
    pub(super) fn new(scope: Scope<'c>, reply: Encoder, bulk: usize, timer: Timer) -> Self {
        Self {
            scope,
            session: None,
            usage: None,
            reply,
            current: None,
            saved: None,
            current_stateid: None,
            saved_stateid: None,
            bulk,
            payload: 0,
            timer,
            limits: ReplyLimits { size: usize::MAX, cached: None },
            is_last: false,
            denied: None,
        }
    }

    /// The object of the current file handle.
    pub(super) fn current(&self) -> Result<&Object, Status> {
        self.current.as_ref().ok_or(Status::NoFileHandle)
    }

    /// The file of the saved file handle, for an operation that uses it and the current one.
    ///
    /// # Errors
    /// NOFILEHANDLE; `in_pseudo` for a directory of the pseudo file system; WRONGSEC and ACCESS if its export does not
    /// admit the caller, even if the other one does: the client looks for a flavor for both (RFC 8881 section 2.6.3.1.2).
    pub(super) fn saved_file(&self, in_pseudo: Status) -> Result<&File, Status> {
        let file = self.saved.as_ref().ok_or(Status::NoFileHandle)?.file(in_pseudo)?;
        file.caller()?;
        Ok(file)
    }

    /// Sets the current file handle, whose stateid is unknown.
    pub(super) fn set_current(&mut self, object: Object) {
        self.current = Some(object);
        self.current_stateid = None;
    }

    /// Takes up to `wanted` of the reserved bytes for bulk data.
    ///
    /// # Errors
    /// REP_TOO_BIG if no memory is reserved: other operations of the COMPOUND have used it, or its call is long.
    pub(super) fn take_bulk(&mut self, wanted: u32) -> Result<u32, Status> {
        let taken = u32::try_from(self.bulk).unwrap_or(u32::MAX).min(wanted);
        if taken == 0 && wanted > 0 {
            return Err(Status::RepTooBig);
        }
        self.bulk -= taken as usize;
        Ok(taken)
    }

    /// Appends a result with `bytes` of data by reference.
    pub(super) fn put_payload(&mut self, bytes: usize, put: impl FnOnce(&mut Encoder)) {
        put(&mut self.reply);
        self.payload += bytes;
    }

    /// Size of the reply so far, without transport headers.
    fn reply_bytes(&self) -> usize {
        self.reply.len() + self.payload
    }

    /// Checks the size of the reply with `more` bytes. Data by reference is not kept.
    ///
    /// # Errors
    /// REP_TOO_BIG or REP_TOO_BIG_TO_CACHE.
    pub(super) fn check_reply(&self, more: usize) -> Result<(), Status> {
        let (ReplyLimits { size, cached }, bytes) = (self.limits, self.reply_bytes() + more);
        if bytes > size {
            return Err(Status::RepTooBig);
        }
        let fits = cached.is_none_or(|cached| bytes <= cached && self.payload == 0);
        if fits { Ok(()) } else { Err(Status::RepTooBigToCache) }
    }

    /// Bytes that the results of a list may have, of which the client permits `wanted`, and the status if no entry fits.
    pub(super) fn list_room(&self, wanted: u32) -> (usize, Status) {
        let (wanted, used) = (wanted as usize, self.reply_bytes());
        let sizes = [(wanted, Status::TooSmall), (self.limits.size.saturating_sub(used), Status::RepTooBig)];
        let cached = self.limits.cached.map(|cached| (cached.saturating_sub(used), Status::RepTooBigToCache));
        let least = sizes.into_iter().chain(cached).min_by_key(|(bytes, _)| *bytes);
        least.unwrap_or((wanted, Status::TooSmall))
    }
}

/// Limits of the reply to a request in a session, in bytes without the protection of RPCSEC_GSS.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyLimits {
    /// Maximum size of the reply.
    pub(super) size: usize,
    /// Maximum size of a reply that the slot keeps; `None` if it is not kept.
    pub(super) cached: Option<usize>,
}

/// Executes the operations after SEQUENCE until one fails.
pub(super) async fn execute(
    compound: &mut Compound<'_>,
    args: &mut Arguments,
    results: &mut CompoundEncoder,
) {
    for position in 1..args.count() {
        let left = args.count() - position - 1;
        compound.is_last = left == 0;
        let Some(operation) = next_operation(args, &mut compound.reply, results) else { return };
        let before = (compound.reply.len(), compound.payload);
        // An operation that changes something fails before it does so.
        let room = if operation.is_idempotent() { 0 } else { CHANGE_BYTES };
        let mut result = compound.check_reply(room);
        if result.is_ok() {
            result = compound.run(operation, args).await;
        }
        if result.is_ok() && !compound.is_last && compound.is_wrongsec(operation, args, left) {
            result = Err(Status::WrongSec);
        }
        if result.is_ok() {
            result = compound.check_reply(0);
        }
        if result.is_ok() && compound.reply.has_failed() {
            result = Err(Status::Delay); // There is no memory for the reply.
        }
        compound.scope.env.executed(operation, result, &mut compound.timer);
        if let Err(status) = result {
            compound.payload = before.1;
            results.fail(&mut compound.reply, status);
            if operation == Operation::Setattr {
                compound.reply.put(&Bitmap::EMPTY);
            }
            if status == Status::Denied {
                compound.put_denied();
            }
            return;
        }
        if !compound.is_last {
            compound.timer.pause_if_late(&compound.scope.env.rt).await;
        }
    }
}

/// Takes the next operation and begins its result. `None` if there is no such operation; its result is complete then.
pub(super) fn next_operation(
    args: &mut Arguments,
    reply: &mut Encoder,
    results: &mut CompoundEncoder,
) -> Option<Operation> {
    let operation = args.next();
    match operation {
        Some(operation) => results.operation(reply, operation),
        None => results.illegal(reply),
    }
    operation
}

/// The status for arguments that cannot be decoded.
fn bad_xdr(error: XdrError) -> Status {
    tracing::debug!("malformed arguments: {error}");
    Status::BadXdr
}

impl Compound<'_> {
    /// Whether an operation that has set the current file handle fails, because the first of the next `left` operations,
    /// but for SAVEFH, uses the file with a flavor that its export does not accept (RFC 8881 section 2.6.3.1.1). LOOKUP,
    /// LOOKUPP and OPEN return the status themselves: they may cross into an export that accepts it.
    fn is_wrongsec(&self, operation: Operation, args: &Arguments, left: u32) -> bool {
        use Operation as Op;
        let puts = |operation| matches!(operation, Op::Putfh | Op::Putrootfh | Op::Putpubfh | Op::RestoreFh);
        let sets = puts(operation) || matches!(operation, Op::Lookup | Op::Lookupp);
        let Some(Object::File(file)) = self.current.as_ref().filter(|_| sets) else { return false };
        let checks =
            |next| matches!(next, Op::Secinfo | Op::SecinfoNoName | Op::Lookup | Op::Lookupp | Op::Open);
        file.caller().err() == Some(Status::WrongSec)
            && args.following(left).is_some_and(|next| !puts(next) && !checks(next))
    }

    /// Executes one operation, and appends the data of its result.
    #[rustfmt::skip] // One line per operation.
    async fn run(&mut self, operation: Operation, args: &mut Arguments) -> Result<(), Status> {
        macro_rules! args {
            () => {
                args.get().map_err(bad_xdr)?
            };
        }
        match operation {
            Operation::Putfh => self.putfh(args!()),
            Operation::Putrootfh | Operation::Putpubfh => {
                self.putrootfh();
                Ok(())
            }
            Operation::Getfh => self.getfh(),
            Operation::Savefh => self.savefh(),
            Operation::RestoreFh => self.restorefh(),
            Operation::Lookup => self.lookup(args!()).await,
            Operation::Lookupp => self.lookupp().await,
            Operation::Secinfo => self.secinfo(args!()).await,
            Operation::SecinfoNoName => self.secinfo_no_name(args!()).await,
            Operation::Getattr => self.getattr(args!()).await,
            Operation::Verify => self.verify(&args!()).await,
            Operation::Nverify => self.nverify(&args!()).await,
            Operation::Access => self.access(args!()).await,
            Operation::Read => self.read(args!()).await,
            Operation::Write => {
                let arena = self.reply.arena().clone();
                self.write(args.take(&arena).map_err(bad_xdr)?).await
            }
            Operation::Commit => self.commit(args!()).await,
            Operation::Readlink => self.readlink().await,
            Operation::Setattr => self.setattr(args!()).await,
            Operation::Create => self.create(args!()).await,
            Operation::Remove => self.remove(args!()).await,
            Operation::Rename => self.rename(args!()).await,
            Operation::Link => self.link(args!()).await,
            Operation::Open => self.open(args!()).await,
            Operation::OpenDowngrade => self.open_downgrade(args!()),
            Operation::Close => self.close(args!()),
            Operation::Delegreturn => self.delegreturn(args!()),
            Operation::Lock => self.lock(&args!()),
            Operation::Lockt => self.lockt(&args!()).await,
            Operation::Locku => self.locku(args!()),
            Operation::TestStateid => self.test_stateids(&args!()),
            Operation::FreeStateid => self.free_stateid(args!()),
            Operation::Allocate => self.allocate(args!()).await,
            Operation::Deallocate => self.deallocate(args!()).await,
            Operation::Copy => self.copy(args!()).await,
            Operation::Clone => self.clone_range(args!()).await,
            Operation::OffloadStatus | Operation::OffloadCancel => self.offload(args!()),
            Operation::ReadPlus => self.read_plus(args!()).await,
            Operation::Seek => self.seek(args.get().map_err(Self::bad_seek)?).await,
            Operation::IoAdvise => self.io_advise(args!()).await,
            Operation::Getxattr => self.getxattr(args!()).await,
            Operation::Setxattr => {
                args.join(self.reply.arena()).map_err(bad_xdr)?;
                let split = args.is_split();
                self.setxattr(args.get().map_err(|e| Self::bad_setxattr(split, &e))?).await
            }
            Operation::Listxattrs => self.listxattrs(args!()).await,
            Operation::Removexattr => self.removexattr(args!()).await,
            Operation::Readdir => self.readdir(args!()).await,
            Operation::BackchannelCtl => self.backchannel_ctl(&args!()),
            Operation::DestroySession => self.destroy_session(args!()),
            Operation::ReclaimComplete => self.reclaim_complete(args!()).await,
            Operation::ExchangeId => self.exchange_id(&args!()),
            Operation::CreateSession => self.create_session(&args!()),
            Operation::DestroyClientid => self.destroy_client(args!()).await,
            Operation::Sequence => Err(Status::SequencePos),
            Operation::BindConnToSession => Err(Status::NotOnlyOp),
            _ => Err(Status::NotSupp),
        }
    }
}
