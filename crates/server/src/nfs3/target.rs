//! Resolves the file handle of a call to its object: export, file and the identity of the caller.

use std::sync::Arc;

use millrace_nfs::v3::{FileHandle, PostOpAttr, PostOpHandle, Procedure, Status, WccData};
use millrace_oncrpc::{AuthStat, CallContext, Fault};
use millrace_vfs::{FileSystemRef, FsError, Handle, Identity};

use super::{Env, arguments::Arguments, convert};
use crate::{
    export::{Export, Exports, Refusal},
    handle::SealedHandle,
    metrics::ShardCounters,
};

/// Why a procedure is not executed.
pub(super) struct Refused {
    pub(super) reason: Reason,
    /// The export that the call's handle names.
    pub(super) export: Option<Arc<Export>>,
}

/// How a call is answered whose procedure is not executed.
pub(super) enum Reason {
    /// The procedure fails with this status.
    Status(Status),
    /// The RPC call fails.
    Fault(Fault),
}

/// A file of an export, and the identity of the caller there.
pub(super) struct Target {
    pub(super) export: Arc<Export>,
    pub(super) file: Handle,
    pub(super) caller: Identity,
}

/// Resolves the file handles in the arguments of one call, with one version of the export table.
pub(super) struct Resolver<'c> {
    exports: &'c Exports,
    call: &'c CallContext,
    counters: &'c ShardCounters,
}

impl Resolver<'_> {
    /// The file that `handle` names, if the caller is admitted to its export.
    pub(super) fn target(&self, handle: &FileHandle) -> Result<Target, Refused> {
        let unknown = |status| Refused { reason: Reason::Status(status), export: None };
        let handle = SealedHandle::decode(handle.as_bytes()).ok_or_else(|| unknown(Status::BadHandle))?;
        let export = self.exports.by_id(handle.export()).ok_or_else(|| unknown(Status::Stale))?;
        let refused = |reason| Refused { reason, export: Some(Arc::clone(export)) };
        let file = export.open(&handle).ok_or_else(|| refused(Reason::Status(Status::BadHandle)))?;
        let caller = self.admit(export).map_err(refused)?;
        Ok(Target { export: Arc::clone(export), file, caller })
    }

    /// Two files of a call. A call whose second file is refused is accounted to the export of the first.
    pub(super) fn targets(
        &self,
        first: &FileHandle,
        second: &FileHandle,
    ) -> Result<(Target, Target), Refused> {
        let first = self.target(first)?;
        let of_first = |r: Refused| Refused { export: Some(Arc::clone(&first.export)), ..r };
        let second = self.target(second).map_err(of_first)?;
        Ok((first, second))
    }

    fn admit(&self, export: &Export) -> Result<Identity, Reason> {
        let call = self.call;
        export.admit(&call.peer, &call.header.cred).map_err(|refusal| {
            self.counters.refused();
            let (peer, export) = (call.peer.addr, export.name());
            // The first call of a mount: one line for each refused mount.
            if call.header.proc == Procedure::Fsinfo.number() {
                tracing::warn!(%peer, export, "mount refused: {refusal}");
            } else {
                tracing::debug!(%peer, export, "call refused: {refusal}");
            }
            match refusal {
                Refusal::Credential => Reason::Fault(Fault::Auth(AuthStat::TooWeak)),
                Refusal::Network | Refusal::Port => Reason::Status(Status::Access),
            }
        })
    }
}

impl Env {
    /// Loads the export table, resolves the object of `call` and admits the caller to its export.
    pub(super) fn resolve<'a, A: Arguments<'a>>(
        &self,
        call: &CallContext,
        args: &A,
    ) -> Result<A::Object, Refused> {
        let exports = self.exports.load();
        args.resolve(&Resolver { exports: &exports, call, counters: &self.counters })
    }
}

impl Target {
    pub(super) fn fs(&self) -> &FileSystemRef {
        self.export.fs()
    }

    /// Whether the export may be changed.
    pub(super) fn writable(&self) -> Result<(), FsError> {
        if self.export.read_only() { Err(FsError::RoFs) } else { Ok(()) }
    }

    /// The object's attributes now, for a result that carries them whatever happened; none if they cannot be had.
    pub(super) async fn attr(&self) -> PostOpAttr {
        self.fs().getattr(&self.file).await.ok().map(|a| convert::fattr(&a))
    }

    /// The same as weak cache consistency data, without attributes from before.
    pub(super) async fn wcc(&self) -> WccData {
        WccData { before: None, after: self.attr().await }
    }

    /// The NFS handle of an object of the same export.
    pub(super) fn handle(&self, file: &Handle) -> Result<FileHandle, FsError> {
        FileHandle::new(&self.export.seal(file)).ok_or(FsError::ServerFault)
    }

    /// The same where a result may go without.
    pub(super) fn post_op_handle(&self, file: &Handle) -> PostOpHandle {
        self.handle(file).ok()
    }
}
