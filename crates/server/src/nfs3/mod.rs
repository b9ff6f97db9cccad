//! NFS version 3 (program 100003, RFC 1813) onto [`vfs::FileSystem`].
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
use nfs::v3::{PROGRAM, Procedure, Status, VERSION};
use oncrpc::{Call, Fault, MaybeReady, Outcome, Program, Stage, Stages};
use target::Refused;
use xdr::{Encode, Encoder};

use crate::{Limits, export::Exports, metrics::ShardCounters};

/// What the procedures of one shard share.
pub(crate) struct Env {
    exports: Arc<Exports>,
    counters: Arc<ShardCounters>,
    rtmax: u32,
    wtmax: u32,
}

/// The program, one per shard.
pub(crate) struct Nfs3 {
    env: Arc<Env>,
}

impl Nfs3 {
    pub(crate) fn new(exports: Arc<Exports>, counters: Arc<ShardCounters>, limits: &Limits) -> Self {
        // The configuration was checked: both are at most 4 MiB.
        let bytes = |s: crate::size::ByteSize| u32::try_from(s.0).unwrap_or(u32::MAX);
        let (rtmax, wtmax) = (bytes(limits.rtmax), bytes(limits.wtmax));
        Self { env: Arc::new(Env { exports, counters, rtmax, wtmax }) }
    }
}

impl Program for Nfs3 {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn call(&self, call: Call, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Ok(procedure) = Procedure::try_from(call.header.proc) else {
            return MaybeReady::Ready(Err(Fault::ProcUnavail));
        };
        self.env.counters.call(procedure);
        match procedure {
            Procedure::Null => return MaybeReady::Ready(Ok(reply)),
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

/// Decodes a call's arguments. Bytes after them are ignored.
/// Ends a procedure that was done.
fn done(mut reply: Encoder, result: &impl Encode) -> Outcome {
    reply.put(&Status::Ok);
    reply.put(result);
    Ok(reply)
}

impl Env {
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
