//! NFS version 4, minor versions 1 and 2 (program 100003, RFC 8881, RFC 7862), on [`millrace_vfs::FileSystem`].
//!
//! A COMPOUND is a future that is polled once before a task waits for it ([`execute`]). Its operations are methods
//! of [`compound::Compound`]. The state of clients is in the crate `millrace-nfs4-state`.

pub(crate) mod administration;
mod arguments;
mod attributes;
mod changes;
mod compound;
mod convert;
mod copy;
mod data;
mod delegation;
mod directory;
mod execute;
mod kind;
mod lock;
mod names;
mod object;
mod open;
mod paths;
mod plan;
mod read_plus;
mod session;
mod settable;
mod sparse;
mod stateids;
mod timer;
mod xattr;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use millrace_admission::ClientAddr;
use millrace_nfs::v4::{Bitmap, Operation, PROGRAM, Status, VERSION};
use millrace_oncrpc::{CallContext, CallHeader, Callbacks, Fault, MaybeReady, Outcome, Plan, Program};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_xdr::{Decoder, Encoder};

use self::{attributes::Parameters, timer::Timer};
use crate::{
    callbacks::CallbackSender,
    export::{Export, ExportTable},
    metrics::ShardCounters,
    nfs4_clients::{Clients, Session},
    owners::Owners,
    shared::Shared,
    usage::Usage,
};

/// RPC procedures.
mod procedure {
    pub(super) const NULL: u32 = 0;
    pub(super) const COMPOUND: u32 = 1;
}

/// The common state of the COMPOUNDs of one connection.
pub(crate) struct Env {
    exports: Arc<ExportTable>,
    counters: Arc<ShardCounters>,
    /// Counters of the connection's client.
    client: Arc<Usage>,
    /// Index of this shard's counters in each export.
    shard: usize,
    clients: Arc<Clients>,
    owners: Arc<Owners>,
    /// The session of the last SEQUENCE, and the counters of its client.
    session: Mutex<Option<(Arc<Session>, Arc<Usage>)>>,
    /// Calls to the client.
    callbacks: Callbacks,
    /// Sends callbacks to all clients.
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
        callbacks: Callbacks,
    ) -> Self {
        // Validation limits both to 4 MiB.
        let bytes = |s: millrace_buffer::ByteSize| u32::try_from(s.0).unwrap_or(u32::MAX);
        let limits = &shared.config.limits;
        Self {
            exports: Arc::clone(&shared.exports),
            counters: Arc::clone(counters),
            client: counters.clients().usage(client),
            shard,
            clients: Arc::clone(&shared.nfs4_clients),
            owners: Arc::clone(&shared.owners),
            session: Mutex::new(None),
            callbacks,
            sender: shared.callback_sender(counters, rt),
            rt: Arc::clone(rt),
            rtmax: bytes(limits.rtmax),
            wtmax: bytes(limits.wtmax),
        }
    }

    fn parameters(&self, supported: Bitmap) -> Parameters {
        let lease_seconds = self.clients.lease_seconds();
        Parameters { supported, lease_seconds, maxread: self.rtmax, maxwrite: self.wtmax }
    }

    /// Counts bytes that READ returns. `client`: the counters of the session's client.
    fn read(&self, export: &Export, client: Option<&Usage>, bytes: u64) {
        self.counters.read(bytes);
        self.client.read(bytes);
        client.into_iter().for_each(|client| client.read(bytes));
        if let Some(usage) = export.usage().get(self.shard) {
            usage.read(bytes);
        }
    }

    /// Counts bytes that WRITE writes.
    fn written(&self, export: &Export, client: Option<&Usage>, bytes: u64) {
        self.counters.written(bytes);
        self.client.written(bytes);
        client.into_iter().for_each(|client| client.written(bytes));
        if let Some(usage) = export.usage().get(self.shard) {
            usage.written(bytes);
        }
    }

    /// Counts an answered COMPOUND that took `duration`, for its client and for the export of its last file handle.
    fn account(&self, export: Option<&Export>, client: Option<&Usage>, duration: Duration) {
        let took = duration.into();
        self.client.call(took);
        client.into_iter().for_each(|client| client.call(took));
        if let Some(usage) = export.and_then(|e| e.usage().get(self.shard)) {
            usage.call(took);
        }
    }

    /// Counts an executed operation, and its time if it is measured.
    fn executed(&self, operation: Operation, result: Result<(), Status>, timer: &mut Timer) {
        let counters = &self.counters.operations;
        counters.executed(operation.number());
        if let Some(took) = timer.executed(operation, &self.rt) {
            counters.took(operation.number(), took.into());
        }
        if let Err(status) = result {
            debug_assert!(operation.permits(status), "{operation} cannot return {status:?}");
            counters.failed(operation.number());
            tracing::trace!(%operation, ?status, "operation failed");
        }
    }
}

/// The program, one per connection.
pub(crate) struct Nfs4 {
    env: Arc<Env>,
}

impl Nfs4 {
    pub(crate) fn new(env: Env) -> Self {
        Self { env: Arc::new(env) }
    }
}

impl Program for Nfs4 {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        if header.proc == procedure::COMPOUND {
            plan::plan(args, length, self.env.rtmax, self.env.clients.state.limits().operations)
        } else {
            Plan::default()
        }
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        match call.header.proc {
            procedure::NULL => MaybeReady::Ready(Ok(reply.into())),
            procedure::COMPOUND => execute::compound(&self.env, call, reply),
            _ => MaybeReady::Ready(Err(Fault::ProcUnavail)),
        }
    }
}
