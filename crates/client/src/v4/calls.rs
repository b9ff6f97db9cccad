//! The operations on client IDs and sessions, as COMPOUNDs (RFC 8881 sections 18.34 to 18.37, 18.50, 18.51).

use millrace_nfs::v4::{
    Attribute, Attributes, BindConnToSessionArgs, BindConnToSessionOk, Bitmap, ChannelAttrs, ClientId,
    ClientOwner, CreateSessionArgs, CreateSessionOk, DestroyClientidArgs, DestroySessionArgs, ExchangeIdArgs,
    ExchangeIdOk, List, Opaque, Operation, ReclaimCompleteArgs, RequestedDirection, SessionId, StateProtect,
    Status, Verifier, create_session_flags, exchange_id_flags,
};

use super::{
    back_channel,
    compound::{Compound, Failure, Operations, Results},
};

/// EXCHANGE_ID.
pub(super) struct ExchangeId<'o> {
    pub(super) verifier: Verifier,
    pub(super) owner: &'o [u8],
}

/// The result of EXCHANGE_ID.
pub(super) struct Exchanged {
    pub(super) client_id: ClientId,
    /// Sequence number of the next CREATE_SESSION.
    pub(super) sequence: u32,
    /// Whether the server has a record of the client and its state.
    pub(super) confirmed: bool,
}

impl Compound for ExchangeId<'_> {
    type Ok = Exchanged;

    fn operations(&self, ops: &mut Operations<'_>) {
        let owner = ClientOwner { verifier: self.verifier, id: Opaque(self.owner) };
        let args =
            ExchangeIdArgs { owner, flags: 0, state_protect: StateProtect::None, implementation: None };
        ops.put(Operation::ExchangeId, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Exchanged, Failure> {
        let ok: ExchangeIdOk<'_> = r.next(Operation::ExchangeId)?;
        if ok.state_protect.is_some() {
            return Err(Failure::Invalid("a protection of state that was not requested".into()));
        }
        let confirmed = ok.flags & exchange_id_flags::CONFIRMED_R != 0;
        Ok(Exchanged { client_id: ok.client_id, sequence: ok.sequence, confirmed })
    }
}

/// CREATE_SESSION with the connection for calls and for callbacks.
pub(super) struct CreateSession {
    pub(super) client_id: ClientId,
    pub(super) sequence: u32,
    pub(super) fore: ChannelAttrs,
}

/// The back channel: the smallest that servers accept.
const BACK: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 4096,
    max_response_size: 4096,
    max_response_size_cached: 0,
    max_operations: back_channel::MAX_OPERATIONS,
    max_requests: 1,
    rdma_ird: None,
};

impl Compound for CreateSession {
    type Ok = CreateSessionOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = CreateSessionArgs {
            client_id: self.client_id,
            sequence: self.sequence,
            flags: create_session_flags::CONN_BACK_CHAN,
            fore: self.fore,
            back: BACK,
            callback_program: back_channel::PROGRAM,
            callback_security: List(vec![millrace_nfs::v4::CallbackSecurity::None]),
        };
        ops.put(Operation::CreateSession, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<CreateSessionOk, Failure> {
        let ok: CreateSessionOk = r.next(Operation::CreateSession)?;
        let fore = &ok.fore;
        if fore.max_requests == 0 || fore.max_operations < self.fore.max_operations {
            return Err(Failure::Invalid(format!(
                "a session with {} slots for {} operations",
                fore.max_requests, fore.max_operations
            )));
        }
        Ok(ok)
    }
}

/// BIND_CONN_TO_SESSION for the fore channel, and for the back channel if possible and requested.
pub(super) struct Bind {
    pub(super) session: SessionId,
    pub(super) back_channel: bool,
}

impl Compound for Bind {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        let direction = match self.back_channel {
            true => RequestedDirection::ForeOrBoth,
            false => RequestedDirection::Fore,
        };
        let args = BindConnToSessionArgs { session: self.session, direction, use_rdma: false };
        ops.put(Operation::BindConnToSession, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.next::<BindConnToSessionOk>(Operation::BindConnToSession).map(drop)
    }
}

/// DESTROY_SESSION.
pub(super) struct DestroySession(pub(super) SessionId);

impl Compound for DestroySession {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.put(Operation::DestroySession, &DestroySessionArgs { session: self.0 });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.done(Operation::DestroySession)
    }
}

/// DESTROY_CLIENTID.
pub(super) struct DestroyClientid(pub(super) ClientId);

impl Compound for DestroyClientid {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.put(Operation::DestroyClientid, &DestroyClientidArgs { client_id: self.0 });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.done(Operation::DestroyClientid)
    }
}

/// RECLAIM_COMPLETE, after it has queried the duration of a lease: `lease_time` in seconds.
pub(super) struct ReclaimComplete;

impl Compound for ReclaimComplete {
    type Ok = u32;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.put(Operation::Putrootfh, &());
        ops.getattr(Bitmap::of(&[Attribute::LeaseTime]));
        ops.put(Operation::ReclaimComplete, &ReclaimCompleteArgs { one_fs: false });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<u32, Failure> {
        r.done(Operation::Putrootfh)?;
        let attributes: Attributes<'_> = r.next(Operation::Getattr)?;
        let lease = attributes.lease_time.ok_or_else(|| Failure::Invalid("no lease_time".into()))?;
        match r.done(Operation::ReclaimComplete) {
            Ok(()) | Err(Failure::Status(_, Status::CompleteAlready)) => Ok(lease),
            Err(failure) => Err(failure),
        }
    }
}
