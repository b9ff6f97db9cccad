//! Resolution of a call's file handle to its object: export, file and identity of the caller.

use std::sync::Arc;

use millrace_nfs::v3::{FileHandle, PostOpAttr, PostOpHandle, Procedure, Status, WccData};
use millrace_oncrpc::{AuthStat, CallContext, Fault};
use millrace_vfs::{FileSystemRef, FsError, Handle, Identity};

use super::convert;
use crate::{
    export::{AccessDenial, Admission, Export, Exports},
    handle::SealedHandle,
    metrics::ShardCounters,
};

/// The rejection of a procedure.
pub(super) struct Rejection {
    pub(super) reason: RejectionReason,
    /// The export of the call's handle.
    pub(super) export: Option<Arc<Export>>,
}

/// The answer to a call whose procedure is rejected.
pub(super) enum RejectionReason {
    /// The procedure fails with this status.
    Status(Status),
    /// The RPC call fails.
    Fault(Fault),
}

/// A file of an export, and the caller's identity in that export.
pub(super) struct Target {
    pub(super) export: Arc<Export>,
    pub(super) file: Handle,
    pub(super) caller: Identity,
    /// Whether the caller's changes are rejected.
    pub(super) read_only: bool,
}

/// Resolves the file handles of one call with one version of the export table.
pub(super) struct Resolver<'c> {
    pub(super) exports: &'c Exports,
    pub(super) call: &'c CallContext,
    pub(super) counters: &'c ShardCounters,
}

impl Resolver<'_> {
    /// Resolves `handle`, if the caller is admitted to its export.
    pub(super) fn target(&self, handle: &FileHandle) -> Result<Target, Rejection> {
        let unknown = |status| Rejection { reason: RejectionReason::Status(status), export: None };
        let handle = SealedHandle::decode(handle.as_bytes()).ok_or_else(|| unknown(Status::BadHandle))?;
        let export = self.exports.by_id(handle.export()).ok_or_else(|| unknown(Status::Stale))?;
        let refused = |reason| Rejection { reason, export: Some(Arc::clone(export)) };
        let file = export.open(&handle).ok_or_else(|| refused(RejectionReason::Status(Status::BadHandle)))?;
        let Admission { identity: caller, read_only } = self.admit(export, &file).map_err(refused)?;
        Ok(Target { export: Arc::clone(export), file, caller, read_only })
    }

    /// Resolves two files of a call. If the second one is rejected, the call is accounted to the export of
    /// the first.
    pub(super) fn targets(
        &self,
        first: &FileHandle,
        second: &FileHandle,
    ) -> Result<(Target, Target), Rejection> {
        let first = self.target(first)?;
        let of_first = |r: Rejection| Rejection { export: Some(Arc::clone(&first.export)), ..r };
        let second = self.target(second).map_err(of_first)?;
        Ok((first, second))
    }

    fn admit(&self, export: &Export, file: &Handle) -> Result<Admission, RejectionReason> {
        let call = self.call;
        let admitted = export.admit(&call.sender).or_else(|denial| {
            let any_flavor = [Procedure::Getattr, Procedure::Fsinfo].map(Procedure::number);
            if any_flavor.contains(&call.header.proc) && *file == export.fs().root() {
                return export.admit_to_root(&call.sender, denial);
            }
            Err(denial)
        });
        admitted.map_err(|denial| {
            self.counters.refused();
            let (peer, export) = (call.sender.peer.addr, export.name());
            // The first call of a mount, so that each rejected mount logs one line.
            if call.header.proc == Procedure::Fsinfo.number() {
                tracing::warn!(%peer, export, "mount refused: {denial}");
            } else {
                tracing::debug!(%peer, export, "call refused: {denial}");
            }
            match denial {
                AccessDenial::Flavor(_) | AccessDenial::Transport(_) => {
                    RejectionReason::Fault(Fault::Auth(AuthStat::TooWeak))
                }
                AccessDenial::Address | AccessDenial::Port | AccessDenial::Certificate => {
                    RejectionReason::Status(Status::Access)
                }
            }
        })
    }
}

impl Target {
    pub(super) fn fs(&self) -> &FileSystemRef {
        self.export.fs()
    }

    /// Checks that the caller may change the export.
    pub(super) fn writable(&self) -> Result<(), FsError> {
        if self.read_only { Err(FsError::RoFs) } else { Ok(()) }
    }

    /// The present attributes of the object for a result, if available.
    pub(super) async fn attr(&self) -> PostOpAttr {
        self.fs().getattr(&self.file).await.ok().map(|a| convert::fattr(&a))
    }

    /// The present attributes as weak cache consistency data, without earlier attributes.
    pub(super) async fn wcc(&self) -> WccData {
        WccData { after: self.attr().await, ..WccData::default() }
    }

    /// The NFS handle of an object of the same export.
    pub(super) fn handle(&self, file: &Handle) -> Result<FileHandle, FsError> {
        FileHandle::new(&self.export.seal(file)).ok_or(FsError::ServerFault)
    }

    /// As [`Self::handle`], for a result in which the handle is optional.
    pub(super) fn post_op_handle(&self, file: &Handle) -> PostOpHandle {
        self.handle(file).ok()
    }
}
