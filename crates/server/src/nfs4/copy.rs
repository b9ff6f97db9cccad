//! Copies within the server: COPY, CLONE, OFFLOAD_STATUS and OFFLOAD_CANCEL (RFC 7862 sections 15.2, 15.8, 15.9, 15.13).
//! Other servers' files are not copied.

use std::sync::Arc;

use millrace_nfs::v4::{CloneArgs, CopyArgs, CopyOk, CopyRequirements, OffloadArgs, Stateid, Status};
use millrace_nfs4_state::Changing;
use millrace_vfs::FsError;

use super::{
    compound::Compound,
    convert,
    kind::{check_regular, data_error},
    object::File,
};

/// The files of a COPY or CLONE whose arguments are valid. The accesses last until it is dropped.
struct Transfer<'c> {
    source: &'c File,
    destination: &'c File,
    /// The number of bytes.
    length: u64,
    _accesses: [Changing; 2],
}

impl Transfer<'_> {
    /// The status of a failure of the file system.
    async fn error(&self, error: FsError) -> Status {
        match data_error(self.source, error).await {
            status if status == convert::status(error) => data_error(self.destination, error).await,
            status => status,
        }
    }
}

impl Compound<'_> {
    /// Copies synchronously, at most what one call of the file system copies: clients continue after a short
    /// copy.
    pub(super) async fn copy(&mut self, args: CopyArgs<'_>) -> Result<(), Status> {
        if !args.source_servers.is_empty() {
            self.transfer_files()?;
            return Err(Status::NotSupp);
        }
        let transfer = self.transfer((args.source, args.source_offset), args.destination, args.count).await?;
        let Transfer { source, destination, length, .. } = transfer;
        let fs = destination.fs();
        // The verifier is read before the copy, as for WRITE: a loss during the copy changes it.
        let verifier = fs.write_verifier();
        let (from, to) = (args.source_offset, args.destination_offset);
        let copied =
            fs.copy(destination.writer()?, &source.handle, from, &destination.handle, to, length).await;
        let copied = match copied {
            Ok(copied) => copied,
            Err(error) => return Err(transfer.error(error).await),
        };
        self.scope.env.written(&destination.export, self.usage.as_deref(), copied.count);
        drop(transfer);
        self.reply.put(&CopyOk {
            callback_id: None,
            count: copied.count,
            committed: convert::stable_how(copied.committed),
            verifier,
            requirements: CopyRequirements { consecutive: true, synchronous: true },
        });
        Ok(())
    }

    /// Shares the storage of the source.
    pub(super) async fn clone_range(&mut self, args: CloneArgs) -> Result<(), Status> {
        let (_, destination) = self.transfer_files()?;
        if destination.export.info().clone_block == 0 {
            return Err(Status::NotSupp);
        }
        let transfer = self.transfer((args.source, args.source_offset), args.destination, args.count).await?;
        let Transfer { source, destination, length, .. } = transfer;
        let (from, to) = (args.source_offset, args.destination_offset);
        let cloned = destination
            .fs()
            .clone_range(destination.writer()?, &source.handle, from, &destination.handle, to, length)
            .await;
        match cloned {
            Ok(_) => Ok(()),
            Err(error) => Err(transfer.error(error).await),
        }
    }

    /// OFFLOAD_STATUS and OFFLOAD_CANCEL: a copy is complete when COPY returns, and has no stateid.
    pub(super) fn offload(&self, args: OffloadArgs) -> Result<(), Status> {
        self.current()?;
        tracing::debug!(stateid = ?args.stateid, "no copy has this stateid");
        Err(Status::BadStateid)
    }

    /// The saved and the current file, which are in one export.
    fn transfer_files(&self) -> Result<(&File, &File), Status> {
        let source = self.saved_file(Status::IsDir)?;
        let destination = self.current()?.file(Status::IsDir)?;
        if Arc::ptr_eq(&source.export, &destination.export) {
            Ok((source, destination))
        } else {
            Err(Status::XDev)
        }
    }

    /// Checks the arguments of COPY or CLONE: `(stateid, offset)` of the source, the stateid of the destination, and the
    /// number of bytes, where 0 means those to the end of the source.
    async fn transfer(
        &self,
        (stateid, offset): (Stateid, u64),
        destination_stateid: Stateid,
        count: u64,
    ) -> Result<Transfer<'_>, Status> {
        let (source, destination) = self.transfer_files()?;
        destination.writer()?;
        // The current stateid stands for that of the saved file handle.
        let stateid = match stateid {
            Stateid::CURRENT => self.saved_stateid.ok_or(Status::BadStateid)?,
            stateid => stateid,
        };
        let accesses = [
            self.check_access(source, &stateid, false)?,
            self.check_access(destination, &destination_stateid, true)?,
        ];
        let length = source_length(source, offset, count).await?;
        Ok(Transfer { source, destination, length, _accesses: accesses })
    }
}

/// The number of bytes to copy: `count`, or for 0 those to the end of the source.
async fn source_length(source: &File, offset: u64, count: u64) -> Result<u64, Status> {
    let attr = source.fs().getattr(&source.handle).await.map_err(convert::status)?;
    check_regular(&attr)?;
    let rest = attr.size.checked_sub(offset).ok_or(Status::Inval)?;
    match count {
        0 => Ok(rest),
        count if count <= rest => Ok(count),
        _ => Err(Status::Inval),
    }
}
