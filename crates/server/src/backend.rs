//! Opening what an export offers.

use std::{path::Path, sync::Arc};

use buffer::Arena;
use runtime::RuntimeRef;
use vfs::{
    FileSystemRef,
    memory::{MemoryConfig, MemoryFs},
};

use crate::{Backend, ExportConfig, ServerError, handle::export_id};

impl Backend {
    /// Arena memory that the backend needs for its content.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            Self::Memory { capacity } => capacity.0,
            Self::Local { .. } => 0,
        }
    }
}

/// Opens an export's file system.
pub(crate) fn open(
    export: &ExportConfig,
    arena: &Arena,
    rt: &RuntimeRef,
    _state_dir: Option<&Path>,
) -> Result<FileSystemRef, ServerError> {
    let fsid = u64::from(export_id(&export.name));
    match &export.backend {
        Backend::Memory { capacity } => Ok(MemoryFs::new(MemoryConfig {
            capacity_bytes: capacity.0,
            fsid,
            ..MemoryConfig::new(arena.clone(), Arc::clone(rt))
        })),
        Backend::Local { .. } => Err(ServerError::Export {
            name: export.name.clone(),
            backend: export.backend.to_string(),
            reason: "local directories are not supported by this build".into(),
        }),
    }
}
