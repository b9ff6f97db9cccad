//! The objects that file handles refer to.

use std::sync::Arc;

use millrace_nfs::v4::Status;
use millrace_oncrpc::{Credential, Sender};
use millrace_vfs::{FileSystemRef, Handle, Identity};

use crate::{
    export::{AccessDenial, Admission, Export, Exports},
    handle::{HandleBytes, PseudoSealer, SealedHandle},
    metrics::ShardCounters,
};

/// The sender of a call.
pub(super) struct Caller<'c> {
    pub(super) sender: Arc<Sender>,
    pub(super) counters: &'c ShardCounters,
    /// The machine of the client, which ends what users have opened.
    pub(super) is_machine: bool,
}

impl Caller<'_> {
    /// The caller's rights in `export`. Callers are rejected when they use an object, not when they name it,
    /// because SECINFO must work without permission (RFC 8881 section 2.6.3.1).
    fn admit(&self, export: &Export) -> Result<Admission, Status> {
        let admitted = match self.is_machine {
            true => export.admit_machine(&self.sender),
            false => export.admit(&self.sender),
        };
        admitted.map_err(|denial| {
            self.counters.refused();
            tracing::debug!(peer = %self.sender.peer.addr, export = export.name(), "call refused: {denial}");
            match denial {
                AccessDenial::Flavor(_) | AccessDenial::Transport(_) => Status::WrongSec,
                AccessDenial::Address | AccessDenial::Port | AccessDenial::Certificate => Status::Access,
            }
        })
    }

    /// Bytes by which the protection of the call makes its reply longer, at most. They count in the limits of the session (RFC
    /// 8881 section 18.36.3).
    pub(super) fn reply_overhead(&self) -> usize {
        match &self.sender.credential {
            Credential::Gss(gss) => gss.reply_overhead,
            _ => 0,
        }
    }

    /// Whether owners are names for the caller, not numbers.
    pub(super) fn has_names(&self) -> bool {
        matches!(self.sender.credential, Credential::Gss(_))
    }

    /// Whether `export` is visible to the peer.
    pub(super) fn sees(&self, export: &Export) -> bool {
        export.admit_peer(&self.sender).is_ok()
    }
}

/// An object of the server.
#[derive(Clone)]
pub(super) enum Object {
    /// A directory of the pseudo file system, as its position in the namespace.
    Pseudo(usize),
    /// A file of an export.
    File(File),
}

/// A file of an export, and the caller's rights in that export.
#[derive(Clone)]
pub(super) struct File {
    pub(super) export: Arc<Export>,
    pub(super) handle: Handle,
    caller: Result<Admission, Status>,
}

impl File {
    /// The root directory of `export`.
    pub(super) fn root(export: &Arc<Export>, caller: &Caller<'_>) -> Self {
        Self { export: Arc::clone(export), handle: export.fs().root(), caller: caller.admit(export) }
    }

    /// Another file of the same export.
    pub(super) fn sibling(&self, handle: Handle) -> Self {
        Self { handle, ..self.clone() }
    }

    pub(super) fn fs(&self) -> &FileSystemRef {
        self.export.fs()
    }

    /// Identity of the caller.
    ///
    /// # Errors
    /// The caller is not admitted to the export.
    pub(super) fn caller(&self) -> Result<&Identity, Status> {
        self.caller.as_ref().map(|who| &who.identity).map_err(|status| *status)
    }

    /// Checks that the export is visible to the peer, for any flavor of its calls.
    ///
    /// # Errors
    /// ACCESS.
    pub(super) fn check_visible(&self) -> Result<(), Status> {
        match self.caller() {
            Ok(_) | Err(Status::WrongSec) => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Whether the caller's changes are rejected.
    ///
    /// # Errors
    /// The caller is not admitted to the export.
    pub(super) fn is_read_only(&self) -> Result<bool, Status> {
        self.caller.as_ref().map(|who| who.read_only).map_err(|status| *status)
    }

    /// Identity of the caller, for a change.
    ///
    /// # Errors
    /// The caller is not admitted, or may not change the export.
    pub(super) fn writer(&self) -> Result<&Identity, Status> {
        if self.is_read_only()? { Err(Status::RoFs) } else { self.caller() }
    }

    pub(super) fn is_root(&self) -> bool {
        self.handle == self.fs().root()
    }

    /// The NFS handle.
    pub(super) fn seal(&self) -> HandleBytes {
        self.export.seal(&self.handle)
    }
}

impl Object {
    /// The object of an NFS handle.
    pub(super) fn open(handle: &[u8], exports: &Exports, caller: &Caller<'_>) -> Result<Self, Status> {
        if PseudoSealer::is_pseudo(handle) {
            let number = exports.namespace().open(handle).ok_or(Status::BadHandle)?;
            return exports.namespace().find(number).map(Self::Pseudo).ok_or(Status::Stale);
        }
        let handle = SealedHandle::decode(handle).ok_or(Status::BadHandle)?;
        let export = exports.by_id(handle.export()).ok_or(Status::Stale)?;
        let file = export.open(&handle).ok_or(Status::BadHandle)?;
        Ok(Self::File(File { export: Arc::clone(export), handle: file, caller: caller.admit(export) }))
    }

    /// The NFS handle.
    pub(super) fn seal(&self, exports: &Exports) -> HandleBytes {
        match self {
            Self::Pseudo(dir) => exports.namespace().seal(*dir),
            Self::File(file) => file.seal(),
        }
    }

    /// The file of an export.
    ///
    /// # Errors
    /// `in_pseudo` for a directory of the pseudo file system.
    pub(super) fn file(&self, in_pseudo: Status) -> Result<&File, Status> {
        match self {
            Self::Pseudo(_) => Err(in_pseudo),
            Self::File(file) => Ok(file),
        }
    }
}
