//! The state of NFSv4 clients for an administrator: lists and revocation.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_nfs::v4::{ClientId, Status};
use millrace_nfs4_state::{ClientReport, Selection, StateidKind, StateidPosition};
use millrace_runtime::{RuntimeRef, yield_now};
use millrace_vfs::{FsError, Handle, Identity};
use thiserror::Error;

use crate::{
    export::{ExportTable, Exports},
    file_key::{FileKey, key_of, split_key},
    nfs4_clients::{Clients, Protection, blocking, now},
};

/// Which state is listed or revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFilter {
    /// That of the client with this client ID.
    Client(u64),
    /// That of the files of the export with this name.
    Export(String),
    /// That of the file with this path, which begins with the name of its export. Symbolic links are not followed.
    File(PathBuf),
}

/// A stateid, and its file by export and inode number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    /// Its position in the list.
    pub at: StateidPosition,
    /// Name of the export; `None` if the server no longer exports it.
    pub export: Option<String>,
    /// Number of the file's inode; `None` if the file is removed.
    pub fileid: Option<u64>,
    /// The open owner or lock owner.
    pub owner: Arc<[u8]>,
    /// The kind of state.
    pub kind: StateidKind,
    /// Whether it is revoked, and the client has not freed it.
    pub revoked: bool,
}

/// Why state was not listed or revoked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The client does not exist.
    #[error(
        "no NFSv4 client has the ID {0:#x}; list the clients to find its present ID, which changes when it restarts"
    )]
    NoClient(u64),
    /// The export does not exist.
    #[error("no export is named {0}; the exports are {1}")]
    NoExport(String, String),
    /// The file cannot be found.
    #[error(
        "cannot find the file {}: {reason}; give the path as clients of the root see it, such as /EXPORT/DIRECTORY/FILE",
        path.display()
    )]
    NoFile {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: FsError,
    },
    /// The list of clients in the state directory cannot be written, and nothing is revoked.
    #[error(
        "nothing is revoked, because the list of clients in the state directory cannot be written; see the server's log, and check the directory's space and permissions"
    )]
    NotDurable,
}

/// Lists and revokes the state of a server's NFSv4 clients. It may be used while the server runs and after its end.
#[derive(Clone)]
pub struct Nfs4State {
    clients: Arc<Clients>,
    exports: Arc<ExportTable>,
    rt: RuntimeRef,
}

/// The state that a [`StateFilter`] selects.
enum Selected {
    Client(ClientId),
    Export([u8; 4]),
    File(FileKey),
}

impl Selected {
    fn selection(&self) -> Selection<'_> {
        match self {
            Self::Client(id) => Selection::Client(*id),
            Self::Export(prefix) => Selection::Prefix(prefix),
            Self::File(key) => Selection::File(key),
        }
    }
}

impl Nfs4State {
    pub(crate) fn new(clients: &Arc<Clients>, exports: &Arc<ExportTable>, rt: &RuntimeRef) -> Self {
        Self { clients: Arc::clone(clients), exports: Arc::clone(exports), rt: Arc::clone(rt) }
    }

    /// Time after which a lease expires that its client does not renew.
    pub fn lease(&self) -> std::time::Duration {
        self.clients.state.limits().lease
    }

    /// The names of the clients that the grace period waits for, in order.
    pub fn awaited(&self) -> Vec<Arc<[u8]>> {
        self.clients.state.awaited()
    }

    /// At most `limit` clients with IDs above `after`, in the order of their IDs.
    pub fn clients(&self, after: Option<u64>, limit: usize) -> Vec<ClientReport> {
        let after = after.map(|number| ClientId { number });
        self.clients.state.client_reports(after, limit, now(&self.rt))
    }

    /// The protection of the client's connection that was the last to begin to use its session; `None` if it has none.
    pub fn protection(&self, client: u64) -> Option<Protection> {
        self.clients.protection(ClientId { number: client })
    }

    /// At most `limit` selected stateids after a position, in the order of their positions.
    ///
    /// # Errors
    /// [`StateError::NoExport`], [`StateError::NoFile`]. The list of a client that does not exist is empty.
    pub async fn stateids(
        &self,
        filter: &StateFilter,
        after: Option<StateidPosition>,
        limit: usize,
    ) -> Result<Vec<FileState>, StateError> {
        let exports = self.exports.load_full();
        let selected = select(&exports, filter).await?;
        let (mut states, mut after) = (Vec::new(), after);
        loop {
            let left = limit - states.len();
            let page = self.clients.state.stateid_reports(selected.selection(), after, left);
            for report in page.stateids {
                let (export, fileid) = file(&exports, &report.file).await;
                let (at, owner) = (report.at, report.owner);
                states.push(FileState {
                    at,
                    export,
                    fileid,
                    owner,
                    kind: report.kind,
                    revoked: report.revoked,
                });
            }
            after = page.next;
            if after.is_none() || states.len() >= limit {
                return Ok(states);
            }
            yield_now().await;
        }
    }

    /// Revokes state, and returns the number of its stateids. The next request of each client reports it (RFC 8881
    /// section 8.5); the client may open the files again.
    ///
    /// # Errors
    /// [`StateError`]; nothing is revoked then.
    pub async fn revoke(&self, filter: &StateFilter) -> Result<usize, StateError> {
        let selected = select(&self.exports.load_full(), filter).await?;
        let clients = Arc::clone(&self.clients);
        // The revocation may wait for the disk, where the list of clients is.
        let revoked = blocking(&self.rt, move || clients.state.revoke(selected.selection())).await;
        let revoked = revoked.unwrap_or(Err(Status::Delay)).map_err(|status| match (status, filter) {
            (Status::StaleClientid, StateFilter::Client(id)) => StateError::NoClient(*id),
            _ => StateError::NotDurable,
        })?;
        tracing::info!(?filter, stateids = revoked, "NFSv4 state revoked");
        Ok(revoked)
    }
}

async fn select(exports: &Exports, filter: &StateFilter) -> Result<Selected, StateError> {
    match filter {
        StateFilter::Client(number) => Ok(Selected::Client(ClientId { number: *number })),
        StateFilter::Export(name) => {
            let export = exports.iter().find(|export| export.name() == name).ok_or_else(|| {
                let names: Vec<_> = exports.iter().map(|export| export.name()).collect();
                StateError::NoExport(name.clone(), names.join(", "))
            })?;
            Ok(Selected::Export(export.id().to_be_bytes()))
        }
        StateFilter::File(path) => {
            let found = find(exports, path).await;
            found.map(Selected::File).map_err(|reason| StateError::NoFile { path: path.clone(), reason })
        }
    }
}

/// The key of the file at a path.
async fn find(exports: &Exports, path: &Path) -> Result<FileKey, FsError> {
    let (export, rest) = exports.find(path.as_os_str().as_bytes()).ok_or(FsError::NoEnt)?;
    let mut handle = export.fs().root();
    for name in rest.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        handle = export.fs().lookup(&Identity::root(), &handle, name).await?.0;
    }
    Ok(key_of(export.id(), &handle))
}

/// The export and the inode of the file with a key.
async fn file(exports: &Exports, key: &[u8]) -> (Option<String>, Option<u64>) {
    let Some((id, handle)) = split_key(key) else { return (None, None) };
    let Some(export) = exports.by_id(id) else { return (None, None) };
    let attr = match Handle::new(handle) {
        Some(handle) => export.fs().getattr(&handle).await.ok(),
        None => None,
    };
    (Some(export.name().to_owned()), attr.map(|attr| attr.fileid))
}
