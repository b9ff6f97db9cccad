//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and the operations without a session.

use std::sync::Arc;

use millrace_nfs::v4::{
    BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionOk, Bitmap, CallbackSecurity, ChannelAttrs,
    CreateSessionArgs, CreateSessionOk, DestroyClientidArgs, DestroySessionArgs, Direction, ExchangeIdArgs,
    ExchangeIdOk, Opaque, Operation, ProtectedOperations, ReclaimCompleteArgs, RequestedDirection,
    SEQUENCE_OK_BYTES, SequenceArgs, ServerOwner, SessionId, StateProtect, Status, create_session_flags,
    exchange_id_flags,
};
use millrace_nfs4_state::{
    CallbackTarget, ChannelAttributes, Client, CreateSession, ExchangeId, Sequence, SequenceRequest,
};

use millrace_oncrpc::Sender;

use super::{Env, arguments::Arguments, compound::Compound};
use crate::{
    callbacks::credential,
    nfs4_clients::{KeptReply, Session, is_protected, lease_time, now, principal},
    usage::Usage,
};

/// The operations that only the machine may use for a client with SP4_MACH_CRED, as of Linux's server, which its client wants.
const MACHINE_ONLY: Bitmap = Bitmap::of_operations(&[
    Operation::BindConnToSession,
    Operation::ExchangeId,
    Operation::CreateSession,
    Operation::DestroySession,
    Operation::DestroyClientid,
]);
/// The operations that the machine may use for what users have opened, after their tickets have expired. As of Linux's server;
/// its client asks for WRITE and COMMIT too. It would then write all data with the credential and the flavor of the machine,
/// which is `krb5i`: unencrypted on a mount with `krb5p`.
const MACHINE_TOO: Bitmap = Bitmap::of_operations(&[
    Operation::Close,
    Operation::OpenDowngrade,
    Operation::Locku,
    Operation::Delegreturn,
    Operation::TestStateid,
    Operation::FreeStateid,
]);

impl Env {
    /// The session `id`, and the counters of its client. SEQUENCE needs them with every call, so that the connection keeps
    /// them. `sender` is that of the call.
    fn session(&self, id: SessionId, sender: &Sender) -> Result<(Arc<Session>, Arc<Usage>), Status> {
        let mut kept = self.session.lock();
        if let Some((session, usage)) = &*kept
            && session.id() == id
            && !session.is_destroyed()
        {
            return Ok((Arc::clone(session), Arc::clone(usage)));
        }
        *kept = self.clients.state.session(id).map(|session| {
            self.clients.connected(session.client(), sender);
            let usage = self.counters.nfs4_clients().usage(session.client().owner().into());
            (session, usage)
        });
        kept.clone().ok_or(Status::BadSession)
    }
}

fn channel(attrs: &ChannelAttrs) -> ChannelAttributes {
    ChannelAttributes {
        header_pad: attrs.header_pad_size,
        request_bytes: attrs.max_request_size,
        response_bytes: attrs.max_response_size,
        cached_bytes: attrs.max_response_size_cached,
        operations: attrs.max_operations,
        slots: attrs.max_requests,
    }
}

fn channel_attrs(attributes: &ChannelAttributes) -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: attributes.header_pad,
        max_request_size: attributes.request_bytes,
        max_response_size: attributes.response_bytes,
        max_response_size_cached: attributes.cached_bytes,
        max_operations: attributes.operations,
        max_requests: attributes.slots,
        rdma_ird: None,
    }
}

impl Compound<'_> {
    /// Executes an operation that needs no session, as the only operation of a COMPOUND.
    pub(super) async fn without_session(
        &mut self,
        operation: Operation,
        args: &mut Arguments,
    ) -> Result<(), Status> {
        use Operation as Op;
        match operation {
            Op::ExchangeId
            | Op::CreateSession
            | Op::DestroySession
            | Op::BindConnToSession
            | Op::DestroyClientid
                if args.count() > 1 =>
            {
                return Err(Status::NotOnlyOp);
            }
            _ => {}
        }
        macro_rules! args {
            () => {
                args.get().map_err(|_| Status::BadXdr)?
            };
        }
        match operation {
            Op::ExchangeId => self.exchange_id(&args!()),
            Op::CreateSession => self.create_session(&args!()),
            Op::DestroySession => self.destroy_session(args!()),
            Op::BindConnToSession => self.bind_connection(args!()),
            Op::DestroyClientid => self.destroy_client(args!()).await,
            _ => Err(Status::OpNotInSession),
        }
    }

    pub(super) fn exchange_id(&mut self, args: &ExchangeIdArgs<'_>) -> Result<(), Status> {
        let undefined = match self.scope.minor_version {
            1 => !exchange_id_flags::REQUEST | exchange_id_flags::SUPP_FENCE_OPS,
            _ => !exchange_id_flags::REQUEST,
        };
        if args.flags & undefined != 0 {
            return Err(Status::Inval);
        }
        let Self { scope, reply, .. } = self;
        let credential = &scope.caller.sender.credential;
        let machine = match args.state_protect {
            StateProtect::None => None,
            StateProtect::MachineCredential(asked) if is_protected(credential) => {
                Some(asked.must_allow.intersection(MACHINE_TOO))
            }
            StateProtect::MachineCredential(_) => return Err(Status::Inval),
            StateProtect::Ssv => return Err(Status::EncrAlgUnsupp),
        };
        let clients = &scope.env.clients;
        let request = ExchangeId {
            owner: &args.owner.id,
            verifier: args.owner.verifier,
            update: args.flags & exchange_id_flags::UPD_CONFIRMED_REC_A != 0,
            principal: &principal(credential),
            is_protected: is_protected(credential),
            machine,
            address: scope.caller.sender.peer.addr.ip(),
        };
        let identified = clients.state.exchange_id(&request, now(&scope.env.rt))?;
        let confirmed = if identified.confirmed { exchange_id_flags::CONFIRMED_R } else { 0 };
        reply.put(&ExchangeIdOk {
            client_id: identified.client,
            sequence: identified.sequence,
            flags: exchange_id_flags::USE_NON_PNFS | confirmed,
            state_protect: identified
                .machine
                .map(|must_allow| ProtectedOperations { must_enforce: MACHINE_ONLY, must_allow }),
            server_owner: ServerOwner { minor_id: 0, major_id: Opaque(clients.owner.as_bytes()) },
            server_scope: Opaque(clients.scope.as_bytes()),
            implementation: None,
        });
        Ok(())
    }

    pub(super) fn create_session(&mut self, args: &CreateSessionArgs<'_>) -> Result<(), Status> {
        if args.flags & !create_session_flags::ALL != 0 {
            return Err(Status::Inval);
        }
        let scope = &self.scope;
        if let Some(client) = scope.env.clients.state.client(args.client_id) {
            self.check_machine(&client)?;
        }
        let target = self.callback_target(args.callback_program, &args.callback_security);
        let request = CreateSession {
            client: args.client_id,
            sequence: args.sequence,
            back_channel: args.flags & create_session_flags::CONN_BACK_CHAN != 0 && target.is_some(),
            fore: channel(&args.fore),
            back: channel(&args.back),
            principal: &principal(&scope.caller.sender.credential),
        };
        let created = scope.env.clients.state.create_session(&request, now(&scope.env.rt))?;
        tracing::debug!(peer = %scope.caller.sender.peer.addr, "NFSv4 session created");
        if let Some(session) = scope.env.clients.state.session(created.session) {
            scope.env.clients.connected(session.client(), &scope.caller.sender);
            if let (Some(back), Some(target)) = (session.back(), target) {
                back.set_target(target);
                if created.back_channel {
                    back.add(&scope.env.callbacks);
                }
            }
        }
        self.reply.put(&CreateSessionOk {
            session: created.session,
            sequence: created.sequence,
            flags: if created.back_channel { create_session_flags::CONN_BACK_CHAN } else { 0 },
            fore: channel_attrs(&created.fore),
            back: channel_attrs(&created.back),
        });
        Ok(())
    }

    /// The session of SEQUENCE is destroyed by the last operation only (RFC 8881 section 18.37.3).
    pub(super) fn destroy_session(&mut self, args: DestroySessionArgs) -> Result<(), Status> {
        if !self.is_last && self.session.as_ref().is_some_and(|session| session.id() == args.session) {
            return Err(Status::NotOnlyOp);
        }
        let state = &self.scope.env.clients.state;
        self.check_machine(state.session(args.session).ok_or(Status::BadSession)?.client())?;
        state.destroy_session(args.session)
    }

    pub(super) async fn destroy_client(&self, args: DestroyClientidArgs) -> Result<(), Status> {
        let env = self.scope.env;
        if let Some(client) = env.clients.state.client(args.client_id) {
            self.check_machine(&client)?;
        }
        env.clients.destroy_client(&env.rt, args.client_id).await
    }

    /// Checks that the caller may change `client` and its sessions.
    ///
    /// # Errors
    /// WRONG_CRED
    fn check_machine(&self, client: &Client) -> Result<(), Status> {
        let credential = &self.scope.caller.sender.credential;
        client.check_machine(&principal(credential), is_protected(credential))
    }

    /// Whether the call is of the machine of a client with SP4_MACH_CRED, and ends what users have opened (RFC 8881 section
    /// 18.35.3, `spo_must_allow`). Before these operations, Linux's client gets attributes, or sets the times of a
    /// delegation.
    pub(super) fn is_of_machine(&self, args: &Arguments) -> bool {
        const ENDS: Bitmap = Bitmap::of_operations(&[
            Operation::Close,
            Operation::OpenDowngrade,
            Operation::Locku,
            Operation::Delegreturn,
        ]);
        const BESIDE: Bitmap =
            Bitmap::of_operations(&[Operation::Putfh, Operation::Getattr, Operation::Setattr]);
        let Some(client) = self.session.as_ref().map(|session| session.client()) else { return false };
        let allowed = client.machine_allowed().intersection(ENDS);
        let ends = |operation: &Operation| allowed.contains_operation(*operation);
        !allowed.is_empty()
            && args.planned().is_some_and(|operations| {
                operations.iter().any(ends)
                    && operations
                        .iter()
                        .all(|operation| ends(operation) || BESIDE.contains_operation(*operation))
            })
            && self.check_machine(client).is_ok()
    }

    fn bind_connection(&mut self, args: BindConnToSessionArgs) -> Result<(), Status> {
        use millrace_nfs4_state::Direction as Bound;
        let (session, _) = self.scope.env.session(args.session, &self.scope.caller.sender)?;
        self.check_machine(session.client())?;
        let wanted = match args.direction {
            RequestedDirection::Fore => Bound::Fore,
            RequestedDirection::Back => Bound::Back,
            RequestedDirection::ForeOrBoth => Bound::ForeOrBoth,
            RequestedDirection::BackOrBoth => Bound::BackOrBoth,
        };
        let bound = session.bind(wanted)?;
        if bound != Bound::Fore
            && let Some(back) = session.back()
        {
            back.add(&self.scope.env.callbacks);
        }
        let direction = match bound {
            Bound::Back => Direction::Back,
            Bound::Both => Direction::Both,
            Bound::Fore | Bound::ForeOrBoth | Bound::BackOrBoth => Direction::Fore,
        };
        // A connection does not change to RDMA after its start.
        self.reply.put(&BindConnToSessionOk { session: args.session, direction, use_rdma: args.use_rdma });
        Ok(())
    }

    pub(super) fn backchannel_ctl(&self, args: &BackchannelCtlArgs<'_>) -> Result<(), Status> {
        let session = self.session.as_ref().ok_or(Status::OpNotInSession)?;
        let back = session.back().ok_or(Status::Inval)?;
        back.set_target(
            self.callback_target(args.callback_program, &args.callback_security).ok_or(Status::Inval)?,
        );
        Ok(())
    }

    /// Program and credentials of callbacks.
    fn callback_target(&self, program: u32, security: &[CallbackSecurity<'_>]) -> Option<CallbackTarget> {
        let credential = credential(security)?;
        Some(CallbackTarget { program, minor_version: self.scope.minor_version, credential })
    }

    /// Whether the client can be called back.
    pub(super) fn has_callbacks(&self) -> bool {
        self.session.as_ref().and_then(|session| session.back()).is_some_and(|back| back.is_up())
    }

    /// SEQUENCE of a COMPOUND of `operations` and `bytes`.
    pub(super) fn sequence(
        &mut self,
        args: &SequenceArgs,
        operations: u32,
        bytes: usize,
        digest: u64,
    ) -> Result<Sequence<KeptReply>, Status> {
        let (session, usage) = self.scope.env.session(args.session, &self.scope.caller.sender)?;
        self.usage = Some(usage);
        let fore = session.fore();
        if operations > fore.operations {
            return Err(Status::TooManyOps);
        }
        if bytes > fore.request_bytes as usize {
            return Err(Status::ReqTooBig);
        }
        let reply = self.reply.len() + SEQUENCE_OK_BYTES + self.scope.caller.reply_overhead();
        if reply > fore.response_bytes as usize {
            return Err(Status::RepTooBig);
        }
        if args.cache_this && reply > fore.cached_bytes as usize {
            return Err(Status::RepTooBigToCache);
        }
        let request =
            SequenceRequest { sequence: args.sequence, slot: args.slot, highest_slot: args.highest_slot };
        let sequenced = session.sequence(&request, digest, lease_time(self.timer.started()));
        self.session = Some(session);
        sequenced
    }

    pub(super) async fn reclaim_complete(&self, args: ReclaimCompleteArgs) -> Result<(), Status> {
        if args.one_fs {
            self.current()?;
            return Ok(()); // File systems do not migrate, so that there is nothing to reclaim.
        }
        let env = self.scope.env;
        env.clients.reclaim_complete(&env.rt, self.client()?).await
    }
}
