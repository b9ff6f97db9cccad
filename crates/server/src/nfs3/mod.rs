//! NFS version 3 (program 100003, RFC 1813) on [`millrace_vfs::FileSystem`].
//!
//! READ and WRITE have a separate path ([`data`]) without allocations if the file system answers immediately.
//! The other procedures are futures that are polled once before a task waits for them.

mod arguments;
mod attributes;
mod convert;
mod data;
mod delegations;
mod directory;
mod execute;
mod filesystem;
mod names;
mod outcome;
mod target;

use std::{ops::RangeInclusive, sync::Arc};

use millrace_admission::ClientAddr;
use millrace_buffer::slot_bytes;
use millrace_nfs::v3::{PROGRAM, Procedure, Status, VERSION};
use millrace_oncrpc::{
    CallClass, CallContext, CallHeader, Fault, MaybeReady, Outcome, Plan, Program, Results, SMALL_CALL,
    SMALL_REPLY,
};
use millrace_runtime::{Instant, RuntimeRef};
use millrace_xdr::{Decoder, Encode, Encoder};

use self::{
    arguments::Arguments,
    outcome::{Executed, ProcedureOutcome},
    target::{Rejection, RejectionReason},
};
use crate::{
    bulk,
    callbacks::CallbackSender,
    drc::DuplicateRequestCache,
    export::{Export, ExportTable},
    metrics::ShardCounters,
    shared::Shared,
    usage::Usage,
};

/// The common state of the procedures of one connection.
pub(crate) struct Env {
    exports: Arc<ExportTable>,
    counters: Arc<ShardCounters>,
    /// Counters of the connection's client.
    client: Arc<Usage>,
    /// Index of this shard's counters in each export.
    shard: usize,
    drc: Arc<DuplicateRequestCache>,
    /// Recalls the delegations of NFSv4 clients.
    sender: CallbackSender,
    rt: RuntimeRef,
    rtmax: u32,
    wtmax: u32,
}

impl Env {
    /// Creates the state of a connection from `client` on shard number `shard`.
    pub(crate) fn new(
        shared: &Shared,
        counters: &Arc<ShardCounters>,
        shard: usize,
        rt: &RuntimeRef,
        client: ClientAddr,
    ) -> Self {
        // Validation limits both to 4 MiB.
        let bytes = |s: millrace_buffer::ByteSize| u32::try_from(s.0).unwrap_or(u32::MAX);
        let limits = &shared.config.limits;
        Self {
            exports: Arc::clone(&shared.exports),
            counters: Arc::clone(counters),
            client: counters.clients().usage(client),
            shard,
            drc: Arc::clone(&shared.drc),
            sender: shared.callback_sender(counters, rt),
            rt: Arc::clone(rt),
            rtmax: bytes(limits.rtmax),
            wtmax: bytes(limits.wtmax),
        }
    }
}

/// The program, one per connection.
pub(crate) struct Nfs3 {
    env: Arc<Env>,
}

impl Nfs3 {
    pub(crate) fn new(env: Env) -> Self {
        Self { env: Arc::new(env) }
    }
}

impl Program for Nfs3 {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        let Ok(procedure) = Procedure::try_from(header.proc) else { return Plan::default() };
        let class = match procedure {
            Procedure::Read => CallClass::Read,
            Procedure::Write => CallClass::Write,
            _ => CallClass::Other,
        };
        let bulk = procedure.bulk(args).map_or(0, |bulk| bulk::bytes(bulk, self.env.rtmax));
        if bulk > 0 {
            let reply_bytes =
                (length <= SMALL_CALL).then(|| (slot_bytes(bulk as usize) + SMALL_REPLY) as u32);
            return Plan { reply_bytes, bulk, class, ..Plan::default() };
        }
        Plan { data_offset: procedure.data_offset(args).map(|at| at as u32), class, ..Plan::default() }
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Ok(procedure) = Procedure::try_from(call.header.proc) else {
            return MaybeReady::Ready(Err(Fault::ProcUnavail));
        };
        let started = self.env.rt.now();
        match self.execute(procedure, call, reply) {
            MaybeReady::Ready(result) => MaybeReady::Ready(self.env.account(procedure, started, result)),
            MaybeReady::Pending(result) => {
                let env = Arc::clone(&self.env);
                MaybeReady::wait(async move { env.account(procedure, started, result.await) })
            }
        }
    }
}

/// Encodes the result of a successful procedure.
fn done(mut reply: Encoder, result: &impl Encode) -> Executed {
    reply.put(&Status::Ok);
    reply.put(result);
    Ok(reply)
}

impl Env {
    /// Counts an answered call and its duration.
    fn account(&self, procedure: Procedure, started: Instant, result: ProcedureOutcome) -> Outcome {
        let ProcedureOutcome { outcome, export, counted } = result;
        if counted {
            self.counters.procedures.executed(procedure.number());
        }
        if !counted || procedure == Procedure::Null {
            return outcome;
        }
        let took = self.rt.now().duration_since(started).into();
        self.counters.procedures.took(procedure.number(), took);
        self.client.call(took);
        if let Some(usage) = export.as_ref().and_then(|e| e.usage().get(self.shard)) {
            usage.call(took);
        }
        outcome
    }

    /// Counts bytes that READ returns.
    fn read(&self, export: &Export, bytes: u64) {
        self.counters.read(bytes);
        self.client.read(bytes);
        if let Some(usage) = export.usage().get(self.shard) {
            usage.read(bytes);
        }
    }

    /// Counts bytes that WRITE writes.
    fn written(&self, export: &Export, bytes: u64) {
        self.counters.written(bytes);
        self.client.written(bytes);
        if let Some(usage) = export.usage().get(self.shard) {
            usage.written(bytes);
        }
    }

    /// Encodes the result of a failed procedure.
    fn failed(
        &self,
        procedure: Procedure,
        mut reply: Encoder,
        status: impl Into<Status>,
        result: &impl Encode,
    ) -> Executed {
        self.counters.procedures.failed(procedure.number());
        reply.put(&status.into());
        reply.put(result);
        Ok(reply)
    }

    /// The answer to a call whose procedure is rejected.
    fn refuse<'a, A: Arguments<'a>>(&self, _: &A, rejection: Rejection, reply: Encoder) -> ProcedureOutcome {
        let outcome = match rejection.reason {
            RejectionReason::Status(status) => {
                self.failed(A::PROCEDURE, reply, status, &A::Failure::default())
            }
            RejectionReason::Fault(fault) => Err(fault),
        };
        ProcedureOutcome { outcome: outcome.map(Results::from), export: rejection.export, counted: true }
    }

    /// The answer to a retransmission.
    fn retransmission(&self, outcome: MaybeReady<'static, Outcome>) -> MaybeReady<'static, ProcedureOutcome> {
        self.counters.replayed();
        outcome.map(ProcedureOutcome::uncounted)
    }

    /// The answer to a call that the client is to retransmit later.
    fn try_later<'a, A: Arguments<'a>>(&self, _: &A, mut reply: Encoder) -> ProcedureOutcome {
        reply.put(&Status::Jukebox);
        reply.put(&A::Failure::default());
        ProcedureOutcome::uncounted(Ok(reply.into()))
    }
}
