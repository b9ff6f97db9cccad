//! Execution of procedures: arguments, object, duplicate request cache.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_nfs::v3::{
    AccessArgs, CommitArgs, CreateArgs, FsinfoArgs, FsstatArgs, GetattrArgs, LinkArgs, LookupArgs, MkdirArgs,
    MknodArgs, PathconfArgs, Procedure, ReaddirArgs, ReaddirplusArgs, ReadlinkArgs, RemoveArgs, RenameArgs,
    RmdirArgs, SetattrArgs, SymlinkArgs,
};
use millrace_oncrpc::{CallContext, MaybeReady, Results};
use millrace_xdr::Encoder;

use super::{Nfs3, attributes, data, directory, filesystem, names, outcome::ProcedureOutcome};
use crate::drc::Disposition;

/// Executes a procedure: decodes its arguments, resolves its object, and calls the procedure's function with
/// both. `once`: through the duplicate request cache.
macro_rules! run {
    ($nfs:ident, $call:ident, $reply:ident, $args:ty, $procedure:path) => {
        run!(@ $nfs, $call, $reply, $args, env, args, object,
            $procedure(&env, &object, args, $reply).await.map(Results::from))
    };
    (once $nfs:ident, $call:ident, $reply:ident, $args:ty, $procedure:path) => {
        run!(@ $nfs, $call, $reply, $args, env, args, object,
            match env.drc.look_up_or_start(&$call, $reply) {
                Disposition::Execute(entry, reply) => entry.finish($procedure(&env, &object, args, reply).await),
                Disposition::Retransmission(outcome) => return env.retransmission(outcome).await,
                Disposition::TryLater(reply) => return env.try_later(&args, reply),
            })
    };
    (@ $nfs:ident, $call:ident, $reply:ident, $args:ty, $env:ident, $decoded:ident, $object:ident, $run:expr) => {{
        let $env = Arc::clone(&$nfs.env);
        poll_once(async move {
            let $decoded: $args = match $call.arguments() {
                Ok(args) => args,
                Err(fault) => return fault.into(),
            };
            let $object = match $env.resolve(&$call, &$decoded) {
                Ok(object) => object,
                Err(rejection) => return $env.refuse(&$decoded, rejection, $reply),
            };
            let outcome = $run;
            ProcedureOutcome::new(outcome, $object)
        })
    }};
}

impl Nfs3 {
    /// Executes or rejects the call.
    #[rustfmt::skip] // One line per procedure.
    pub(super) fn execute(
        &self,
        procedure: Procedure,
        call: CallContext,
        reply: Encoder,
    ) -> MaybeReady<'static, ProcedureOutcome> {
        match procedure {
            Procedure::Null => MaybeReady::Ready(ProcedureOutcome { outcome: Ok(reply.into()), export: None, counted: true }),
            Procedure::Read => data::read(&self.env, call, reply),
            Procedure::Write => data::write(&self.env, call, reply),
            Procedure::Getattr => run!(self, call, reply, GetattrArgs, attributes::getattr),
            Procedure::Setattr => run!(once self, call, reply, SetattrArgs, attributes::setattr),
            Procedure::Access => run!(self, call, reply, AccessArgs, attributes::access),
            Procedure::Lookup => run!(self, call, reply, LookupArgs<'_>, names::lookup),
            Procedure::Create => run!(once self, call, reply, CreateArgs<'_>, names::create),
            Procedure::Mkdir => run!(once self, call, reply, MkdirArgs<'_>, names::mkdir),
            Procedure::Symlink => run!(once self, call, reply, SymlinkArgs<'_>, names::symlink),
            Procedure::Mknod => run!(once self, call, reply, MknodArgs<'_>, names::mknod),
            Procedure::Remove => run!(once self, call, reply, RemoveArgs<'_>, names::remove),
            Procedure::Rmdir => run!(once self, call, reply, RmdirArgs<'_>, names::rmdir),
            Procedure::Rename => run!(once self, call, reply, RenameArgs<'_>, names::rename),
            Procedure::Link => run!(once self, call, reply, LinkArgs<'_>, names::link),
            Procedure::Readlink => run!(self, call, reply, ReadlinkArgs, data::readlink),
            Procedure::Commit => run!(self, call, reply, CommitArgs, data::commit),
            Procedure::Readdir => run!(self, call, reply, ReaddirArgs, directory::readdir),
            Procedure::Readdirplus => run!(self, call, reply, ReaddirplusArgs, directory::readdirplus),
            Procedure::Fsstat => run!(self, call, reply, FsstatArgs, filesystem::fsstat),
            Procedure::Fsinfo => run!(self, call, reply, FsinfoArgs, filesystem::fsinfo),
            Procedure::Pathconf => run!(self, call, reply, PathconfArgs, filesystem::pathconf),
        }
    }
}

/// Polls `procedure` once, which completes most procedures. The caller polls a pending one again with its
/// waker.
fn poll_once(
    procedure: impl Future<Output = ProcedureOutcome> + Send + 'static,
) -> MaybeReady<'static, ProcedureOutcome> {
    let mut procedure = Box::pin(procedure);
    match procedure.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => MaybeReady::Ready(outcome),
        Poll::Pending => MaybeReady::Pending(procedure),
    }
}
