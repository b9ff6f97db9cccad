//! Copies within the server: COPY and CLONE (RFC 7862 sections 15.2 and 15.13). Other servers' files are not copied.

use std::sync::Arc;

use millrace_nfs::v4::{CloneArgs, CopyArgs, CopyOk, CopyRequirements, Stateid, Status};

use super::{compound::Compound, convert, object::File};

impl Compound<'_> {
    /// Copies synchronously, at most what one call of the file system copies: clients continue after a short
    /// copy.
    pub(super) async fn copy(&mut self, args: CopyArgs<'_>) -> Result<(), Status> {
        let source = self.saved.as_ref().ok_or(Status::NoFileHandle)?.file(Status::IsDir)?;
        let destination = self.current()?.file(Status::IsDir)?;
        if !args.source_servers.is_empty() {
            return Err(Status::NotSupp);
        }
        if !Arc::ptr_eq(&source.export, &destination.export) {
            return Err(Status::XDev);
        }
        source.caller()?;
        let caller = destination.writer()?;
        let _source = self.check_access(source, &self.source_stateid(args.source)?, false)?;
        let _destination = self.check_access(destination, &args.destination, true)?;
        let length = source_length(source, args.source_offset, args.count).await?;
        let fs = destination.fs();
        // Read before the copy, as for WRITE.
        let verifier = fs.write_verifier();
        let copy = fs.copy(
            caller,
            &source.handle,
            args.source_offset,
            &destination.handle,
            args.destination_offset,
            length,
        );
        let copied = copy.await.map_err(convert::status)?;
        self.scope.env.written(&destination.export, self.usage.as_deref(), copied.count);
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
        let source = self.saved.as_ref().ok_or(Status::NoFileHandle)?.file(Status::IsDir)?;
        let destination = self.current()?.file(Status::IsDir)?;
        if !Arc::ptr_eq(&source.export, &destination.export) {
            return Err(Status::XDev);
        }
        if destination.export.info().clone_block == 0 {
            return Err(Status::NotSupp);
        }
        source.caller()?;
        let caller = destination.writer()?;
        let _source = self.check_access(source, &self.source_stateid(args.source)?, false)?;
        let _destination = self.check_access(destination, &args.destination, true)?;
        let length = source_length(source, args.source_offset, args.count).await?;
        let cloned = destination.fs().clone_range(
            caller,
            &source.handle,
            args.source_offset,
            &destination.handle,
            args.destination_offset,
            length,
        );
        cloned.await.map(drop).map_err(convert::status)
    }

    /// The stateid of the source: the current stateid stands for that of the saved file handle.
    fn source_stateid(&self, stateid: Stateid) -> Result<Stateid, Status> {
        match stateid {
            Stateid::CURRENT => self.saved_stateid.ok_or(Status::BadStateid),
            stateid => Ok(stateid),
        }
    }
}

/// The number of bytes to copy: `count`, or for 0 those to the end of the source.
async fn source_length(source: &File, offset: u64, count: u64) -> Result<u64, Status> {
    let size = source.fs().getattr(&source.handle).await.map_err(convert::status)?.size;
    let rest = size.checked_sub(offset).ok_or(Status::Inval)?;
    match count {
        0 => Ok(rest),
        count if count <= rest => Ok(count),
        _ => Err(Status::Inval),
    }
}
