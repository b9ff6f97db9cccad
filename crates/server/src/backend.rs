//! Opening what an export offers.

use std::{path::Path, sync::Arc};

use millrace_buffer::Arena;
use millrace_runtime::RuntimeRef;
use millrace_vfs::{
    FileSystemRef,
    memory::{MemoryConfig, MemoryFs},
};
use millrace_vfs_local::{IdentityMode, KeySource, LocalConfig, LocalError, LocalFs};

use crate::{Backend, ExportConfig, Identities, handle::export_id};

/// What a file system is given to be opened with.
pub struct Resources<'a> {
    /// Memory for data: the network's buffers come from it too, so that data can move by reference. Memory exports have
    /// quotas of it, apart from its limit, which is the network's.
    pub arena: &'a Arena,
    /// Time, randomness, and threads for work that blocks.
    pub runtime: &'a RuntimeRef,
    /// Where keys that survive a restart are kept, if anywhere.
    pub state_dir: Option<&'a Path>,
}

/// Opens the file system of an export; the error is a sentence that says why it cannot be opened.
pub(crate) type Opener =
    Box<dyn FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String> + Send>;

/// Opens the file system that an export's configuration names: what [`crate::Server::start`] does for each export.
///
/// # Errors
/// A sentence that says why it cannot be opened.
pub fn open(export: &ExportConfig, with: &Resources<'_>) -> Result<FileSystemRef, String> {
    let id = export_id(&export.name);
    match &export.backend {
        Backend::Memory { capacity } => Ok(MemoryFs::new(MemoryConfig {
            capacity_bytes: capacity.0,
            fsid: u64::from(id),
            ..MemoryConfig::new(with.arena.clone(), Arc::clone(with.runtime))
        })),
        Backend::Local { path } => {
            let key = match with.state_dir {
                Some(dir) => KeySource::File(dir.join(format!("export-{id:08x}.key"))),
                None => KeySource::Attribute,
            };
            let config = LocalConfig {
                // Read-only is for the procedures to enforce, which a reload tells otherwise; the files stay open.
                sync_metadata: export.sync_metadata,
                key,
                fsid: Some(u64::from(id)),
                identity: match export.identities {
                    Identities::Callers => IdentityMode::Auto,
                    Identities::ServerUser => IdentityMode::ServerUser,
                },
                ..LocalConfig::new(path, with.arena.clone())
            };
            let fs = LocalFs::open(config).map_err(|e| match e {
                LocalError::Identities => format!("{e} (identities = \"server-user\")"),
                e => e.to_string(),
            })?;
            tracing::info!(
                export = export.name,
                kernel_handles = fs.uses_kernel_handles(),
                io_uring = fs.uses_io_uring(),
                identities = fs.uses_caller_credentials(),
                "opened a local directory"
            );
            Ok(fs)
        }
    }
}
