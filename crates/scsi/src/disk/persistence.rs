//! The stored record of persistent reservations.

use millrace_vfs::{
    CreateHow, FileSystemRef, FsError, FsResult, Handle, Identity, SetAttr, Stability, Views,
};

use super::DiskConfig;
use crate::reservation::MAX_RECORD;

/// Where the record is stored.
pub(super) struct Record {
    fs: FileSystemRef,
    caller: Identity,
    directory: Handle,
    name: Vec<u8>,
}

impl Record {
    pub(super) fn new(fs: &FileSystemRef, caller: &Identity, config: &DiskConfig) -> Self {
        let name = config.record_name.clone();
        Self { fs: fs.clone(), caller: caller.clone(), directory: config.record_directory, name }
    }

    /// The stored record, if there is one. A record that is too long is returned with one byte too many.
    pub(super) async fn load(&self) -> FsResult<Option<Vec<u8>>> {
        let file = match self.fs.lookup(&self.caller, &self.directory, &self.name).await {
            Ok((file, _)) => file,
            Err(FsError::NoEnt) => return Ok(None),
            Err(e) => return Err(e),
        };
        let count = u32::try_from(MAX_RECORD + 1).unwrap_or(u32::MAX);
        let read = self.fs.read(&self.caller, &file, 0, count).await?;
        Ok(Some(read.data.to_vec()))
    }

    /// Replaces the record durably: `record` is written to a new file, which is renamed.
    pub(super) async fn store(&self, record: Views) -> FsResult<()> {
        let (fs, caller, directory) = (&self.fs, &self.caller, &self.directory);
        let temporary = [&self.name[..], b".new"].concat();
        let set = SetAttr { mode: Some(0o600), size: Some(0), ..SetAttr::default() };
        let file = fs.create(caller, directory, &temporary, &CreateHow::Unchecked(set)).await?.handle;
        let len = record.len();
        let written = fs.write(caller, &file, 0, record, Stability::FileSync).await?;
        if written.count as usize != len {
            return Err(FsError::Io);
        }
        fs.rename(caller, directory, &temporary, directory, &self.name).await.map(drop)
    }
}
