//! NFS version 3 (program 100003, RFC 1813) onto [`millrace_vfs::FileSystem`].
//!
//! READ and WRITE have a path of their own ([`data`]) that allocates nothing when the file system answers at once;
//! the other procedures are futures that are polled once before anyone waits for them.

mod attributes;
mod convert;
mod data;
mod directory;
mod filesystem;
mod names;
mod target;

use std::{
    future::Future,
    ops::RangeInclusive,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::FutureExt;
use millrace_nfs::v3::{FileHandle, MAX_HANDLE, PROGRAM, Procedure, Status, VERSION};
use millrace_oncrpc::{
    CallContext, Fault, MaybeReady, Outcome, Program, SMALL_REPLY, Stage, Stages,
    serving::{ClientAddr, slot_bytes},
};
use millrace_runtime::{Instant, RuntimeRef};
use millrace_xdr::{Encode, Encoder};
use target::Refused;

use crate::{export::Export, metrics::ShardCounters, reload::ExportTable, server::Shared, usage::Usage};

/// The longest text of a symbolic link.
const MAX_LINK: u32 = 4096;
/// No call that asks for bulk data is longer than this.
const MAX_SMALL_CALL: usize = 4096;

/// What the procedures of one connection share.
pub(crate) struct Env {
    exports: Arc<ExportTable>,
    counters: Arc<ShardCounters>,
    /// Counts for the client whose connection it is.
    client: Arc<Usage>,
    /// Which of an export's counters are this shard's.
    shard: usize,
    rt: RuntimeRef,
    rtmax: u32,
    wtmax: u32,
}

impl Env {
    /// That of a connection from `client` on shard number `shard`.
    pub(crate) fn new(
        shared: &Shared,
        counters: &Arc<ShardCounters>,
        shard: usize,
        rt: &RuntimeRef,
        client: ClientAddr,
    ) -> Self {
        // The configuration was checked: both are at most 4 MiB.
        let bytes = |s: crate::size::ByteSize| u32::try_from(s.0).unwrap_or(u32::MAX);
        let limits = &shared.config.limits;
        Self {
            exports: Arc::clone(&shared.exports),
            counters: Arc::clone(counters),
            client: counters.clients().usage(client),
            shard,
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

    fn reply_bytes(&self, call: &CallContext) -> Option<usize> {
        let bulk = self.env.bulk(call);
        if bulk == 0 {
            return Some(SMALL_REPLY);
        }
        (call.message().stream_len() <= MAX_SMALL_CALL).then(|| slot_bytes(bulk) + SMALL_REPLY)
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Ok(procedure) = Procedure::try_from(call.header.proc) else {
            return MaybeReady::Ready(Err(Fault::ProcUnavail));
        };
        self.env.counters.call(procedure);
        if procedure == Procedure::Null {
            return MaybeReady::Ready(Ok(reply));
        }
        // Whatever the procedure, its arguments begin with a handle.
        let started = self.env.rt.now();
        let exports = self.env.exports.load();
        let handle = call.args().get::<FileHandle>().ok();
        let export = handle.and_then(|h| exports.claimed(h.as_bytes()));
        match self.execute(procedure, call, reply) {
            MaybeReady::Pending(outcome) => {
                let (env, export) = (Arc::clone(&self.env), export.cloned());
                MaybeReady::wait(async move {
                    let outcome = outcome.await;
                    env.timed(procedure, export.as_deref(), started);
                    outcome
                })
            }
            now => {
                self.env.timed(procedure, export.map(|e| &**e), started);
                now
            }
        }
    }
}

impl Nfs3 {
    fn execute(
        &self,
        procedure: Procedure,
        call: CallContext,
        reply: Encoder,
    ) -> MaybeReady<'static, Outcome> {
        match procedure {
            Procedure::Read => return data::read(&self.env, call, reply),
            Procedure::Write => return data::write(&self.env, call, reply),
            _ => {}
        }
        let (env, stages) = (Arc::clone(&self.env), call.stages.clone());
        match procedure {
            Procedure::Getattr => now(stages, attributes::getattr(env, call, reply)),
            Procedure::Setattr => now(stages, attributes::setattr(env, call, reply)),
            Procedure::Access => now(stages, attributes::access(env, call, reply)),
            Procedure::Lookup => now(stages, names::lookup(env, call, reply)),
            Procedure::Create => now(stages, names::create(env, call, reply)),
            Procedure::Mkdir => now(stages, names::mkdir(env, call, reply)),
            Procedure::Symlink => now(stages, names::symlink(env, call, reply)),
            Procedure::Mknod => now(stages, names::mknod(env, call, reply)),
            Procedure::Remove => now(stages, names::remove(env, call, reply)),
            Procedure::Rmdir => now(stages, names::rmdir(env, call, reply)),
            Procedure::Rename => now(stages, names::rename(env, call, reply)),
            Procedure::Link => now(stages, names::link(env, call, reply)),
            Procedure::Readlink => now(stages, data::readlink(env, call, reply)),
            Procedure::Commit => now(stages, data::commit(env, call, reply)),
            Procedure::Readdir => now(stages, directory::readdir(env, call, reply)),
            Procedure::Readdirplus => now(stages, directory::readdirplus(env, call, reply)),
            Procedure::Fsstat => now(stages, filesystem::fsstat(env, call, reply)),
            Procedure::Fsinfo => now(stages, filesystem::fsinfo(env, call, reply)),
            Procedure::Pathconf => now(stages, filesystem::pathconf(env, call, reply)),
            Procedure::Null | Procedure::Read | Procedure::Write => MaybeReady::Ready(Err(Fault::SystemErr)),
        }
    }
}

/// Polls `procedure` once; most are done then. Whoever gets a pending one polls it again with a waker of its own.
fn now(
    stages: Stages,
    procedure: impl Future<Output = Outcome> + Send + 'static,
) -> MaybeReady<'static, Outcome> {
    let mut procedure = Box::pin(procedure.inspect(move |_| stages.end(Stage::FileSystem)));
    match procedure.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => MaybeReady::Ready(outcome),
        Poll::Pending => MaybeReady::Pending(procedure),
    }
}

/// Ends a procedure that was done.
fn done(mut reply: Encoder, result: &impl Encode) -> Outcome {
    reply.put(&Status::Ok);
    reply.put(result);
    Ok(reply)
}

impl Env {
    /// The maximum size in bytes of the data, directory page or link text that `call` asks for, as far as the server gives
    /// it; 0 if the call is malformed, or its results are small.
    fn bulk(&self, call: &CallContext) -> usize {
        // The handle is skipped here and decoded with the arguments.
        let count_at = |skip: usize| {
            let mut args = call.args();
            args.opaque(MAX_HANDLE).ok()?;
            args.raw(skip).ok()?;
            args.u32().ok()
        };
        let count = match Procedure::try_from(call.header.proc) {
            // Behind the offset.
            Ok(Procedure::Read) => count_at(8).map(|n| n.min(self.rtmax)),
            // Behind cookie and verifier, and in READDIRPLUS dircount.
            Ok(Procedure::Readdir) => count_at(16).map(|n| n.min(directory::MAX_PAGE)),
            Ok(Procedure::Readdirplus) => count_at(20).map(|n| n.min(directory::MAX_PAGE)),
            Ok(Procedure::Readlink) => Some(MAX_LINK),
            _ => None,
        };
        count.unwrap_or(0) as usize
    }

    /// Counts a call that is answered.
    fn timed(&self, procedure: Procedure, export: Option<&Export>, started: Instant) {
        let took = self.rt.now().duration_since(started).into();
        self.counters.took(procedure, took);
        self.client.call(took);
        if let Some(usage) = export.and_then(|e| e.usage().get(self.shard)) {
            usage.call(took);
        }
    }

    /// Counts bytes that READ gives.
    fn read(&self, export: &Export, bytes: u64) {
        self.counters.read(bytes);
        self.client.read(bytes);
        if let Some(usage) = export.usage().get(self.shard) {
            usage.read(bytes);
        }
    }

    /// Counts bytes that WRITE took.
    fn written(&self, export: &Export, bytes: u64) {
        self.counters.written(bytes);
        self.client.written(bytes);
        if let Some(usage) = export.usage().get(self.shard) {
            usage.written(bytes);
        }
    }

    /// Ends a procedure that failed, with what its result carries on failure.
    fn failed(&self, mut reply: Encoder, status: impl Into<Status>, result: &impl Encode) -> Outcome {
        self.counters.failure();
        reply.put(&status.into());
        reply.put(result);
        Ok(reply)
    }

    /// Ends a procedure that did not get as far as to know its object.
    fn refused<F: Encode + Default>(&self, reply: Encoder, refused: Refused) -> Outcome {
        match refused {
            Refused::Status(status) => self.failed(reply, status, &F::default()),
            Refused::Fault(fault) => Err(fault),
        }
    }
}
