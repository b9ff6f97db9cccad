//! Opening of the file systems of exports.

use std::{path::Path, sync::Arc};

use millrace_buffer::Arena;
use millrace_runtime::RuntimeRef;
use millrace_vfs::{
    FileSystemRef,
    memory::{MemoryConfig, MemoryFs},
};
use millrace_vfs_local::{IdentityMode, KeySource, LocalConfig, LocalError, LocalFs};

use crate::{Backend, ExportConfig, Identities, handle::export_id};

/// Resources for opening a file system.
pub struct Resources<'a> {
    /// Memory for data. Network buffers use the same arena, so that data can be moved by reference. Memory
    /// exports have separate quotas; the arena's limit applies to network buffers.
    pub arena: &'a Arena,
    /// Clock, random numbers, and threads for blocking work.
    pub runtime: &'a RuntimeRef,
    /// Directory for keys that survive a restart.
    pub state_dir: Option<&'a Path>,
}

/// Opens the file system of an export; the error is the reason of a failure.
pub(crate) type Opener =
    Box<dyn FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String> + Send>;

/// Opens the file system of an export's backend, as [`crate::Server::start`] does for each export.
///
/// # Errors
/// The reason of the failure, as a sentence.
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
                // Procedures enforce `read_only`, which a reload may change; the files stay open.
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
