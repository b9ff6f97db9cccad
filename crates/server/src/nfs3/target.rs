//! The object of a call: export, file and caller, all checked.

use std::sync::Arc;

use millrace_nfs::v3::{FileHandle, PostOpAttr, PostOpHandle, Procedure, Status, WccData};
use millrace_oncrpc::{AuthStat, CallContext, Fault};
use millrace_vfs::{FileSystemRef, FsError, Handle, Identity};

use super::{Env, convert};
use crate::export::{Export, Refusal};

/// Why a call does not reach its object.
pub(super) enum Refused {
    /// The procedure fails.
    Status(Status),
    /// The call is not executed.
    Fault(Fault),
}

impl From<FsError> for Refused {
    fn from(e: FsError) -> Self {
        Self::Status(convert::status(e))
    }
}

/// A file of an export and who wants it.
pub(super) struct Target {
    pub(super) export: Arc<Export>,
    pub(super) file: Handle,
    pub(super) who: Identity,
}

impl Env {
    /// The object that `handle` names, for the caller of `call`.
    pub(super) fn target(&self, call: &CallContext, handle: &FileHandle) -> Result<Target, Refused> {
        let exports = self.exports.load();
        let (export, file) = exports.open(handle.as_bytes())?;
        let who = export.admit(&call.peer, &call.header.cred).map_err(|refusal| {
            self.counters.refused();
            let (peer, export) = (call.peer.addr, export.name());
            // What clients call first when they mount: one line for each that is refused.
            if call.header.proc == Procedure::Fsinfo.number() {
                tracing::warn!(%peer, export, "mount refused: {refusal}");
            } else {
                tracing::debug!(%peer, export, "call refused: {refusal}");
            }
            match refusal {
                Refusal::Credential => Refused::Fault(Fault::Auth(AuthStat::TooWeak)),
                Refusal::Network | Refusal::Port => Refused::Status(Status::Access),
            }
        })?;
        Ok(Target { export: Arc::clone(export), file, who })
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
